"""What `gpubed doctor` finds at a GENI site, and what is said while one waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpubed.backends.virtualwall import doctor, transport
from gpubed.core import progress
from gpubed.testbeds.specification import load
from support.am import faults

pytestmark = pytest.mark.quick


def test_doctor_finds_every_line_in_order(server, wall):
    findings = wall.testbed.doctor(load(wall.paths.spec))
    assert [f.id for f in findings if not f.ok] == []
    looked_at = {f.id.removeprefix("virtualwall.") for f in findings}
    about = {"login", "key", "aggregate", "clock", "members", "project", "images", "way"}
    assert looked_at == about


def test_doctor_tells_which_disk_images_are_loaded_and_offered(server, wall):
    findings = wall.testbed.doctor(wall.plan.spec)
    [said] = [f.message for f in findings if f.id == "virtualwall.images"]
    assert said.startswith("debian-12 is the testbed's default")
    assert server.site.is_gcf or all(image in said for image in server.site.image_urns)


def test_doctor_names_the_bastion_where_there_is_no_ipv6(server, wall, monkeypatch):
    monkeypatch.setattr(doctor, "_has_ipv6", lambda: False)
    findings = wall.testbed.doctor(wall.plan.spec)
    [wrong] = [f for f in findings if not f.ok]
    assert "no IPv6 address" in wrong.message
    assert "backend.bastion" in wrong.fix


def test_doctor_names_a_clock_that_is_wrong(server, wall, monkeypatch):
    behind = datetime.now(UTC) - timedelta(seconds=600)
    monkeypatch.setattr(transport, "parsedate_to_datetime", lambda _: behind)
    findings = wall.testbed.doctor(load(wall.paths.spec))
    [wrong] = [f for f in findings if not f.ok]
    assert "s ahead of the testbed's clock" in wrong.message


def test_doctor_names_a_project_that_does_not_exist(server, wall):
    wall.block["project"] = "nosuch"
    findings = wall.testbed.doctor(wall.plan.spec)
    [wrong] = [finding for finding in findings if not finding.ok]
    assert "nosuch: the authority knows no such project" in wrong.message
    assert "backend.project" in wrong.fix


def test_doctor_tells_a_wrong_host_name_from_an_unknown_authority(server, wall):
    wall.block["aggregate"]["url"] = server.am_url.replace("127.0.0.1", "127.1")
    [wrong] = [f for f in wall.testbed.doctor(wall.plan.spec) if not f.ok]
    assert wrong.fix == "its certificate is another host's: correct 127.1 in cluster.yml"


def test_who_waits_for_a_testbed_is_told_what_for(server, wall, monkeypatch):
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    server.faults.on("GetVersion", faults.http(503), times=3)
    wall.testbed.resources(load(wall.paths.spec))
    [note] = told
    assert "the aggregate (GetVersion): server unavailable; trying again for" in note["message"]
