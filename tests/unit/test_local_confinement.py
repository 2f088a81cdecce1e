"""What a confined container is made with, by the cgroup tree of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.local import confinement, daemon
from gpubed.backends.local.node_inputs import NodeInputs

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
    def of(**info: Any) -> confinement.Place | None:
        answering = SimpleNamespace(info=lambda: info)
        monkeypatch.setattr(daemon, "client", lambda: answering)
        return confinement.place(NODE)

    return of


def test_with_cgroup_v2_a_node_writes_to_its_own_folder_of_the_tree(place: Any) -> None:
    found = place(CgroupVersion="2", CgroupDriver="systemd")
    assert found.parent == f"{NAME}.slice", "without a dash, which would nest it"
    folder = f"/sys/fs/cgroup/{NAME}.slice"
    assert found.mounts == {folder: {"bind": folder, "mode": "rw"}}
    assert place(CgroupVersion="2", CgroupDriver="cgroupfs").parent == f"/{NAME}"


def test_with_cgroup_v1_it_sees_the_hierarchies_that_systemd_needs(
    place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(confinement, "_CGROUPS", tmp_path)
    for hierarchy in ("systemd", "unified"):
        assert place(CgroupVersion="1") is None, f"no {hierarchy}"
        (tmp_path / hierarchy).mkdir()
    found = place(CgroupVersion="1", CgroupDriver="cgroupfs")
    assert {source: there["mode"] for source, there in found.mounts.items()} == {
        str(tmp_path / "systemd"): "ro",
        str(tmp_path / "systemd" / NAME): "rw",
        str(tmp_path / "unified"): "ro",
        str(tmp_path / "unified" / NAME): "rw",
    }


def test_what_docker_leaves_of_a_node_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(confinement, "_CGROUPS", tmp_path)
    others = tmp_path / "cpu" / "gpubed_6f0c0000_big_node_1"
    for folder in (tmp_path / NAME, tmp_path / "cpu" / NAME, others):
        folder.mkdir(parents=True)
    confinement.tidy(NODE.uuid, NODE.name)
    assert sorted(tmp_path.rglob("gpubed_*")) == [others]


def test_nothing_is_confined_where_docker_maps_users(place: Any) -> None:
    assert place(CgroupVersion="2", SecurityOptions=["name=userns"]) is None


def test_docker_keeps_its_own_profiles(place: Any) -> None:
    flags = confinement.flags(place(CgroupVersion="2"))
    assert "security_opt" not in flags
    assert flags["cap_drop"] == ["ALL"]
    assert not {"SYS_ADMIN", "MKNOD", "SYS_MODULE", "SYS_PTRACE"} & set(flags["cap_add"])
    assert confinement.holds({"CapDrop": flags["cap_drop"]})
    assert not confinement.holds({"CapDrop": None})


def test_files_are_for_root_to_change_and_programs_can_be_run() -> None:
    modes = {file.path: file.mode for file in confinement.files()}
    assert modes["usr/local/sbin/gpubed-names"] == 0o755
    assert {mode for path, mode in modes.items() if path.startswith("etc/")} == {0o644}
