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


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that tidies a STAND-IN for the cgroup tree, where so many nodes are left."""
    monkeypatch.setattr(container, "_CGROUPS", tmp_path)
    monkeypatch.setattr(container, "_LETS_GO_S", 1.0)

    def tidy(left: int) -> list[str]:
        asked = SimpleNamespace(list=lambda **_: [None] * left)
        for way in ("client", "look"):
            monkeypatch.setattr(daemon, way, lambda: SimpleNamespace(containers=asked))
        container.tidy(NODE.uuid, NODE.name)
        return sorted(path.name for path in tmp_path.rglob("gpubed_*"))

    return tidy


OTHER = "gpubed_6f0c0000_big_node_1"


def test_what_docker_leaves_of_a_node_is_removed(tree: Any, tmp_path: Path) -> None:
    for folder in (tmp_path / NAME, tmp_path / "cpu" / NAME / "id" / "init.scope"):
        folder.mkdir(parents=True)
    (tmp_path / "cpu" / OTHER).mkdir()
    assert tree(1) == [OTHER]


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
