"""What role base installs changes no package of an owner's unasked.

apt and dpkg's database are real, on a system of the test's own; packages are small ones.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).parents[2] / "roles/base/files/packages.py"
# As the packages that they are called after: see `apt-cache show` of Debian's and docker.com's.
DEBIAN = {
    "base-files": "Version: 12.4",
    "docker.io": "Version: 20.10.24\nDepends: containerd (>= 1.4~), runc",
    "containerd": "Version: 1.6.20\nDepends: runc",
    "runc": "Version: 1.1.5",
    "tool": "Version: 2\nDepends: library (>= 2)",
    "library": "Version: 2",
    "needs-new-cuda": "Version: 1\nDepends: libcuda1 (>= 580)",
    "libcuda1": "Version: 580.65.06-1",
}
CONTAINERD = "Version: 1.7.22-1\nConflicts: containerd, runc\nReplaces: containerd, runc"
HELD = "hold ok installed"
PODMAN = "Version: 4.3.1\nConflicts: docker.io"


class System:
    """A system that apt and dpkg take for this machine."""

    def __init__(self, folder):
        self.root = folder
        for name in (
            "dpkg/updates",
            "dpkg/info",
            "dpkg/triggers",
            "lists/partial",
            "cache",
            "etc",
            "log",
        ):
            (folder / name).mkdir(parents=True)
        self.status = folder / "dpkg/status"
        self.status.write_text("")
        for name in ("available", "dpkg/lock"):
            (folder / name).touch()
        self.sources = []
        self.archive("debian", "Debian", DEBIAN)
        self.installed("base-files", DEBIAN["base-files"])
        config = {
            "Dir::Etc": folder / "etc",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": self.status,
            "Dir::State::extended_states": folder / "extended",
            "Dir::Cache": folder / "cache",
            "Dir::Log": folder / "log",
            "APT::Sandbox::User": "root",
        }
        (folder / "apt.conf").write_text("".join(f'{k} "{v}";\n' for k, v in config.items()))

    def archive(self, name, origin, packages):
        """Add an archive that has packages."""
        there = self.root / name
        there.mkdir()
        text = "".join(
            _package(*one) + f"Filename: ./{one[0]}.deb\nSize: 1\n\n" for one in packages.items()
        )
        (there / "Packages").write_text(text)
        (there / "Release").write_text(f"Origin: {origin}\nSuite: stable\n")
        self.is_updated = False
        self.sources.append(f"deb [trusted=yes allow-insecure=yes] file:{there}/ ./\n")
        (self.root / "etc/sources.list").write_text("".join(self.sources))

    def installed(self, name, fields, state="install ok installed"):
        """Have a package installed, from wherever."""
        with self.status.open("a") as status:
            status.write(f"{_package(name, fields)}Status: {state}\n\n")

    def run(self, *words):
        environment = {
            **os.environ,
            "APT_CONFIG": str(self.root / "apt.conf"),
            "DPKG_ADMINDIR": str(self.root / "dpkg"),
        }
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True)

    def look(self, *wanted, **request):
        """Return what the program says of an installation."""
        if not self.is_updated:  # apt finds nothing new in a folder, and then nothing at all
            self.run("apt-get", "update")
        self.is_updated = True
        asked = {"wanted": {"role": list(wanted)}, **request}
        said = self.run(sys.executable, PROGRAM, "look", json.dumps(asked)).stdout
        return json.loads(said)

    def refused(self, *wanted, **request):
        """Return what is refused, a line each."""
        [role] = self.look(*wanted, **request)["roles"]
        assert role["failed"] == ""
        return [change["says"] for change in role["changes"] if change["refused"]]


def _package(name, fields):
    return (
        f"Package: {name}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
        f"{fields}\nDescription: for a test\n"
    )


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


@pytest.fixture
def docker_com(system):
    system.archive("docker", "Docker", {"containerd.io": CONTAINERD})
    system.installed("containerd.io", CONTAINERD)
    system.installed("podman-docker", PODMAN)
    return system


def test_packages_that_would_go_are_refused_by_name(docker_com):
    assert docker_com.refused("docker.io") == [
        f"containerd.io 1.7.22-1 (from file:{docker_com.root}/docker) would be removed",
        "podman-docker 4.3.1 (from a .deb file) would be removed",
    ]


def test_those_that_the_owner_names_may_go_and_no_others(docker_com):
    [left] = docker_com.refused("docker.io", may_change=["containerd.io"])
    assert left.startswith("podman-docker")
    assert docker_com.refused("docker.io", may_change=["containerd.io", "podman-docker"]) == []


def test_of_a_host_that_was_made_for_the_cluster_only_holds_count(docker_com):
    assert docker_com.refused("docker.io", whole_host=True) == []
    docker_com.installed("held", "Version: 1\nConflicts: docker.io", HELD)
    [held] = docker_com.refused("docker.io", whole_host=True)
    assert "on hold" in held


def test_the_systems_own_packages_are_upgraded(system):
    """The archive has dropped the installed version by now, as archives do."""
    system.installed("library", "Version: 1")
    [role] = system.look("tool")["roles"]
    assert [(c["says"], c["refused"]) for c in role["changes"]] == [
        ("library 1 would be replaced by 2", False)
    ]


def test_a_held_package_stays_also_where_something_newer_needs_another(system):
    system.installed("library", "Version: 1", HELD)
    assert system.refused("tool") == ["library 1 (on hold) would be replaced by 2"]


def test_an_owners_own_deb_stays(system):
    """NVIDIA's, of a branch that the archive has not; that it is older than what is wanted."""
    system.installed("libcuda1", "Version: 590.1-0local1")
    assert system.refused("libcuda1=580.65.06-1") == [
        "libcuda1 590.1-0local1 (from a .deb file) would be downgraded to 580.65.06-1"
    ]


def test_an_owners_pin_holds(system):
    system.installed("libcuda1", "Version: 570.86.15-1")
    (system.root / "etc/preferences").write_text(
        "Package: libcuda1\nPin: version 570.*\nPin-Priority: 1001\n"
    )
    [role] = system.look("needs-new-cuda")["roles"]
    assert (role["changes"], role["failed"] != "") == ([], True)


def test_what_dpkg_has_not_finished_is_named(system):
    system.installed("library", "Version: 2", "install ok half-configured")
    assert system.look("tool")["unfinished"] == ["library"]
