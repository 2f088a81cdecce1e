#!/usr/bin/env python3
"""Builds the apt archive of STAND-IN packages that packages.toml describes.

    build.py WORK OUT    WORK holds nvidia-smi and the sources; OUT becomes the archive

Runs in an image of the node's own distribution, so that what is compiled fits it.
"""

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from machine import CUDA  # noqa: E402

# As packages.toml has them.
Family = dict[str, Any]
Package = dict[str, Any]
# apt lets packages' scripts find no programs in /usr/local.
DKMS = "/usr/local/sbin/dkms"
ABOUT = """ A STAND-IN for a simulated node of gpubed: it pretends, and drives no GPU.
 Named like the one of {}."""


@dataclass(frozen=True)
class Release:
    """A package's version, as Debian writes it."""

    full: str
    broken: bool

    @property
    def version(self) -> str:
        """The version of what is in the package."""
        return self.full.rpartition("-")[0]

    @property
    def branch(self) -> str:
        """The driver branch, as text."""
        return self.version.partition(".")[0]

    @property
    def cuda(self) -> int:
        """The newest CUDA that the driver runs, as cuDriverGetVersion says it: 13000 is 13.0."""
        major, _, minor = CUDA[int(self.branch)].partition(".")
        return int(major) * 1000 + int(minor) * 10

    def fill(self, text: str, **more: object) -> str:
        """Put the version's parts into a text."""
        known = {"version": self.version, "full": self.full, "branch": self.branch}
        return Template(text).safe_substitute(**known, **more)


def releases(family: Family, suite: str) -> list[Release]:
    """Return the versions that a family has for a suite of Debian."""
    names = family.get("versions") or family["suites"].get(suite, [])
    return [Release(name, name in family.get("broken", [])) for name in names]


class Libraries:
    """What is compiled: once for each driver version, and only when a package has it."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def content(self, name: str, release: Release) -> bytes:
        """Return the bytes of a file of a package."""
        if name == "nvidia-smi":
            return (self._work / name).read_bytes()
        if name.endswith(".so"):
            return self._compiled(name, release).read_bytes()
        return (HERE / "programs" / name).read_bytes()

    def _compiled(self, name: str, release: Release) -> Path:
        made = self._work / f"{name}.{release.version}"
        if made.exists():
            return made
        if name == "libnvidia-ml.so":
            wanted = [f"VERSION={release.version}", f"DESTINATION={self._work}"]
            command = ["make", "--silent", f"--directory={HERE.parent / 'nvml'}", *wanted]
        else:
            command = ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made)]
            command += [f"-Wl,-soname,{name}.1", f"-DCUDA_VERSION={release.cuda}"]
            command += [str(HERE / f"{Path(name).stem}.c")]
        subprocess.run(command, check=True)
        return made


def put(root: Path, target: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file of a package."""
    path = root / target.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def control(package: Package, release: Release, family: Family) -> str:
    """Return the control file of a package."""
    fields = {
        "Package": release.fill(package["name"]),
        "Version": release.full,
        "Architecture": "amd64",
        "Maintainer": "gpubed simulation <root@localhost>",
        "Section": "contrib/simulation",
    }
    for key in ("depends", "provides", "conflicts"):
        if key in package:
            fields[key.capitalize()] = ", ".join(map(release.fill, package[key]))
    if "conflicts" in package:
        fields["Replaces"] = fields["Conflicts"]
    lines = [f"{key}: {value}" for key, value in fields.items()]
    described = f"Description: STAND-IN\n{ABOUT.format(family['source'])}"
    return "\n".join([*lines, described, ""])


def scripts(package: Package, release: Release) -> dict[str, str]:
    """Return the scripts that dpkg runs, by name, as Debian's own helpers write them."""
    configured, removed = [], []
    if user := package.get("user"):
        home = "--home /var/run/nvpd/ --no-create-home"
        configured.append(
            f"getent passwd {user} >/dev/null || adduser --quiet --system --group {home} {user}"
        )
    if name := package.get("dkms"):
        module = f"-m {name} -v {release.version}"
        configured.append(f"{DKMS} install {module}")
        removed.append(f"{DKMS} remove {module} --all || true")
    for unit in package.get("start", []):
        configured += [
            f"deb-systemd-helper enable {unit} >/dev/null || true",
            "[ ! -d /run/systemd/system ] || systemctl daemon-reload || true",
            f"deb-systemd-invoke start {unit} >/dev/null 2>&1 || true",
        ]
        removed.append(f"deb-systemd-invoke stop {unit} >/dev/null 2>&1 || true")
    found = {"postinst": ("configure", configured), "prerm": ("remove|upgrade", removed)}
    return {
        name: "#!/bin/sh\nset -e\ncase $1 in {}) ;; *) exit 0 ;; esac\n{}\n".format(
            verbs, "\n".join(lines)
        )
        for name, (verbs, lines) in found.items()
        if lines
    }


def dkms(package: Package, release: Release) -> bytes:
    """Return the description of a kernel module that `dkms` builds on the node."""
    lines = {
        "PACKAGE_NAME": package["dkms"],
        "PACKAGE_VERSION": release.version,
        "LICENSE": package["license"],
        "BUILT_MODULE_NAME[0]": "nvidia",
        "DEST_MODULE_NAME[0]": package["dkms"],
        "DEST_MODULE_LOCATION[0]": "/updates/dkms",
        "AUTOINSTALL": "yes",
        "BROKEN": "yes" if release.broken else "no",
    }
    text = "".join(f'{key}="{value}"\n' for key, value in lines.items())
    return f"# STAND-IN: read by gpubed-simulate, not by DKMS.\n{text}".encode()


def build(
    package: Package, release: Release, family: Family, libraries: Libraries, out: Path
) -> None:
    """Build one package."""
    with TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        put(root, "DEBIAN/control", control(package, release, family).encode())
        for name, text in scripts(package, release).items():
            put(root, f"DEBIAN/{name}", text.encode(), 0o755)
        for target, name in package.get("files", {}).items():
            put(root, release.fill(target), libraries.content(name, release), 0o755)
        for target, destination in package.get("links", {}).items():
            path = root / release.fill(target).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(release.fill(destination))
        for unit in package.get("units", []):
            text = release.fill((HERE / "units" / unit).read_text(), user=package.get("user"))
            put(root, f"lib/systemd/system/{unit}", text.encode())
        if name := package.get("dkms"):
            put(root, f"usr/src/{name}-{release.version}/dkms.conf", dkms(package, release))
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(out)],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def index(out: Path) -> None:
    """Write the archive's index, for a `Suites: ./` source."""
    scan = ["dpkg-scanpackages", "--multiversion", "."]
    listed = subprocess.run(scan, cwd=out, check=True, capture_output=True).stdout
    (out / "Packages").write_bytes(listed)
    described = {
        "APT::FTPArchive::Release::Origin": "gpubed simulation",
        "APT::FTPArchive::Release::Label": "STAND-IN",
    }
    options = [word for key, value in described.items() for word in ("-o", f"{key}={value}")]
    release = ["apt-ftparchive", *options, "release", "."]
    (out / "Release").write_bytes(
        subprocess.run(release, cwd=out, check=True, capture_output=True).stdout
    )


def main(work: Path, out: Path) -> None:
    """Build all packages that this distribution's nodes are offered."""
    told = Path("/etc/os-release").read_text().splitlines()
    suite = next(line.partition("=")[2] for line in told if line.startswith("VERSION_CODENAME="))
    families = tomllib.loads((HERE / "packages.toml").read_text())["family"]
    libraries = Libraries(work)
    out.mkdir(parents=True, exist_ok=True)
    for family in families:
        for release in releases(family, suite):
            for package in family["package"]:
                build(package, release, family, libraries, out)
    index(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
