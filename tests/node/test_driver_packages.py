"""What apt would install of each driver branch of Debian's real archive; nothing is installed.

One version of everything: a part of another version would be no driver, only a mixture.
"""

import re
import shutil
import subprocess
from functools import cache

import pytest

from gpubed.backends.local import apt_sources
from support import role_variables

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
ROWS = [
    (release, row)
    for release in SUITES
    for row in role_variables.value("nvidia_driver", "__nvidia_driver_catalog", release)[
        "distribution"
    ]
    if row["release"] == role_variables.value("nvidia_driver", "__nvidia_driver_release", release)
]
# Have versions of their own.
OTHERS = re.compile(r"nvidia-(persistenced|modprobe|support|kernel-common|installer-cleanup)|glx-")

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is Debian's")


@pytest.fixture(scope="module")
def apt(tmp_path_factory):
    """Ask apt about a machine of a release on which nothing is installed."""
    root = tmp_path_factory.mktemp("apt")

    @cache
    def options(release):
        archive = next(iter(apt_sources.sources(SUITES[release])), None)
        if archive is None:
            pytest.skip("this machine's own sources name no archive of Debian")
        folder = root / release
        for name in ("lists/partial", "parts", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "parts" / "debian.sources").write_text(
            f"Types: deb\nURIs: {archive.uri}\n"
            f"Suites: {SUITES[release]}\nSigned-By: {KEYRING}\n"
            "Components: main contrib non-free non-free-firmware\n"
        )
        found = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": folder / "parts",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
        }
        given = [f"--option={key}={value}" for key, value in found.items()]
        run(["apt-get", *given, "--quiet", "update"])
        return given

    return lambda release, program, *words: run([program, *options(release), *words])


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("release", "row"), ROWS, ids=[f"{release}-{row['branch']}" for release, row in ROWS]
)
@pytest.mark.parametrize("module", ["dkms", "open_dkms"])
def test_all_parts_of_a_branch_have_one_version(apt, tmp_path, release, row, module):
    if not row[module]:
        pytest.skip("the archive has no such module of this branch")
    shown = apt(release, "apt-cache", "madison", row["libraries"][0])
    version = re.search(r"\| (\d+[.\d]+)", shown)[1]
    assert version.split(".")[0] == str(row["branch"])
    pin = tmp_path / "pin"
    pin.write_text(f"Package: *nvidia* libcuda*\nPin: version {version}-*\nPin-Priority: 1001\n")
    wanted = [f"{name}={version}-*" for name in [*row["libraries"], row[module]]]
    said = apt(
        release,
        "apt-get",
        f"--option=Dir::Etc::Preferences={pin}",
        "--simulate",
        "--no-install-recommends",
        "install",
        *wanted,
        "nvidia-persistenced",
    )
    installed = re.findall(r"^Inst (\S*nvidia\S*|libcuda\S*) \((\S+)", said, re.MULTILINE)
    mixed = [(name, v) for name, v in installed if not OTHERS.match(name)]
    assert len(mixed) > 4
    assert {v.split("-")[0] for _, v in mixed} == {version}
