"""What a confined container is made with, by the cgroup tree of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.local import container, daemon
from gpubed.backends.local.runtime import NodeInputs

NODE = NodeInputs.model_validate(
    {
        "cluster": "lab",
        "uuid": "6f0c0000-0000-4000-8000-000000000000",
        "name": "big-node-0",
        "image": "gpubed-node:debian-12-abc",
        "public_key": "ssh-ed25519 AAAA",
        "control": {"network": "c", "address": "10.0.0.10"},
    }
)
NAME = "gpubed_6f0c0000_big_node_0"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(**info: Any) -> container.Place | None:
        answering = SimpleNamespace(info=lambda: info)
        for way in ("client", "look"):
            monkeypatch.setattr(daemon, way, lambda: answering)
        return container.own_place(NODE)

    return of


def test_with_cgroup_v2_a_node_writes_to_its_own_folder_of_the_tree(place: Any) -> None:
    found = place(CgroupVersion="2", CgroupDriver="systemd")
    assert found.parent == f"{NAME}.slice", "without a dash, which would nest it"
    folder = f"/sys/fs/cgroup/{NAME}.slice"
    assert found.mounts == {folder: {"bind": folder, "mode": "rw"}}
    assert place(CgroupVersion="2", CgroupDriver="cgroupfs").parent == f"/{NAME}"


def test_nothing_is_confined_where_docker_maps_users(place: Any) -> None:
    assert place(CgroupVersion="2", SecurityOptions=["name=userns"]) is None


def test_docker_keeps_its_own_profiles(
    place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUBED_CACHE", str(tmp_path))
    place(CgroupVersion="2", MemTotal=2**30)
    confined = NODE.model_copy(update={"confined": True})
    flags = container.SystemContainer().flags(confined)
    assert "security_opt" not in flags
    assert flags["cap_drop"] == ["ALL"]
    assert not {"SYS_ADMIN", "MKNOD", "SYS_MODULE", "SYS_PTRACE"} & set(flags["cap_add"])
    assert container.holds({"CapDrop": flags["cap_drop"]})
    assert not container.holds({"CapDrop": None})
