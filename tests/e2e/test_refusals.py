"""What is missing is said in one sentence, and nothing is half-made."""

import subprocess

import pytest

from support.cluster import BIN, ROOT, Cluster, labelled

pytestmark = [pytest.mark.e2e]


def refused(cluster, rc, environment, verb="up"):
    command = [str(BIN / "gpubed"), verb, cluster.name]
    done = subprocess.run(
        command,
        env={**cluster.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stderr
    assert "Traceback" not in done.stderr
    assert "→" in done.stderr, "it names the way out"
    return done.stderr


@pytest.fixture
def project(tmp_path):
    nodes = [{"name": "node", "count": 1, "machine": {"cpus": 1, "memory": "512 MiB"}}]
    return Cluster(tmp_path, "e2e-refused", nodes=nodes, configure=False)


def test_no_docker_daemon(project):
    said = refused(project, 3, {"DOCKER_HOST": "unix:///nowhere.sock"})
    assert "Docker" in said
    assert not (
        project.root / ".gpubed" / "pulumi" / ".pulumi" / "stacks" / "gpubed" / "e2e-refused.json"
    ).exists()


def test_the_cli_engine_is_refused_when_there_is_no_cli(project):
    environment = {"PATH": f"{BIN}:/usr/bin:/bin"}
    command = [str(BIN / "gpubed"), "up", project.name, "--engine", "cli"]
    done = subprocess.run(
        command,
        env={**project.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "doctor --fix" in done.stderr


def test_an_old_python_is_refused_before_anything_is_made(tmp_path):
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    (tmp_path / "setup.sh").write_text((ROOT / "setup.sh").read_text())
    done = subprocess.run(
        ["/bin/bash", str(tmp_path / "setup.sh"), "run"],
        capture_output=True,
        text=True,
        env={"PATH": f"{old.parent}:/nowhere", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 3
    assert "Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def disk(project):
    """The project lies on a disk of its own, of 2 MiB."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(project.root)]
    spec = project.spec
    done = subprocess.run(mounted, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    project.spec_path.parent.mkdir(parents=True)
    project.write(spec)
    yield project.root
    subprocess.run(["umount", "-l", str(project.root)], check=True)


@pytest.mark.parametrize("verb", ["plan", "up", "audit"])
def test_a_read_only_project(project, disk, verb):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert "Read-only file system" in refused(project, 3, {}, verb)
    assert labelled(project.name) == []


@pytest.mark.parametrize("room", [0, 4096, 16384, 65536])
def test_a_full_disk_is_named_and_room_is_all_it_needs(project, disk, docker, room):
    """Wherever the disk becomes full, nothing half-made is in the way of the next run."""
    filler = disk / "filler"
    fill = ["dd", "if=/dev/zero", f"of={filler}", "bs=4k"]
    assert "No space left" in subprocess.run(fill, capture_output=True, text=True).stderr
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - room)
    assert "No space left on device" in refused(project, 3, {})
    filler.unlink()
    try:
        project.call("up")
        assert project.json("audit")["unrecorded"] == []
    finally:
        project.call("down", "-y")
    assert labelled(project.name) == []


def test_a_subnet_that_is_taken_is_named(project, docker):
    project.edit(lambda spec: spec["networks"].update(control={"subnet": "10.99.128.0/20"}))
    taken = ["docker", "network", "create", "--subnet", "10.99.128.0/20", "e2e-taken"]
    subprocess.run(taken, check=True, capture_output=True)
    try:
        assert "10.99.128.0/20" in refused(project, 3, {})
        assert labelled(project.name) == []
    finally:
        subprocess.run(["docker", "network", "rm", "e2e-taken"], check=True, capture_output=True)
