"""What of this machine reaches local nodes: its environment, apt sources, and the node image."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

import simulated_gpus
from gpubed.backends.local import environment, image
from gpubed.backends.local.apt_sources import sources
from gpubed.backends.local.image import Recipe
from gpubed.core import paths

NAMES = (
    *environment._BUNDLES,
    *environment._INDEXES,
    *environment._LISTS,
    *environment._PROXIES,
    *(name.lower() for name in environment._PROXIES),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_bundle_gets_its_path_on_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "corp.pem"
    bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert environment.environment() == {"SSL_CERT_FILE": environment.NODE_BUNDLE}
    assert environment.ca_mount() == {str(bundle): environment.NODE_BUNDLE}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("nameserver 192.0.2.1\n", "", ["192.0.2.1"]),
        ("nameserver 127.0.0.53\n", "nameserver 192.0.2.2\n", ["192.0.2.2"]),
        ("nameserver 127.0.0.1\nnameserver 192.0.2.3\n", "", ["192.0.2.3"]),
        ("nameserver 127.0.0.1\n", "", []),
    ],
)
def test_name_servers_are_those_that_nodes_reach(
    tmp_path: Path, first: str, second: str, found: list[str]
) -> None:
    files = (tmp_path / "resolv.conf", tmp_path / "resolved.conf")
    for path, text in zip(files, (first, second), strict=True):
        path.write_text(text)
    assert environment.nameservers([*files, tmp_path / "missing"]) == found


@pytest.mark.parametrize(
    "value",
    [
        "https://user:word@index.example/simple",
        "https://token@index.example/simple",
        "user:word@proxy.example:3128",
        "https://a.example/simple https://user:word@b.example/simple",
        "http://127.0.0.1:3128",
        "http://localhost:3128",
    ],
)
def test_secrets_and_loopback_addresses_stay_here(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", value)
    assert environment.environment() == {}
    assert "PIP_EXTRA_INDEX_URL" in environment.left_out()


MIRROR = "http://mirror.example/debian"
STANZA = f"Types: deb\nURIs: {MIRROR}/\nSuites: bookworm\n bookworm-updates\nComponents: main x\n"
BASE, UPDATES = f"deb {MIRROR} bookworm main", f"deb {MIRROR} bookworm-updates main"


@pytest.mark.parametrize(
    ("lines", "stanzas", "found"),
    [
        (
            f"# deb http://a bookworm main\n{BASE} contrib  # x\ndeb-src y bookworm main\n",
            "",
            [BASE],
        ),
        (
            f"deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] {MIRROR} bookworm main\n",
            "",
            [BASE],
        ),
        (f"deb [signed-by=/k/vendor.gpg] {MIRROR} bookworm main\n", "", []),
        ("deb cdrom:[Debian] bookworm main\n", "", []),
        ("deb http://a.example/ubuntu noble main\n", "", []),
        (f"{BASE}\n", STANZA, [BASE, UPDATES]),
        (
            "",
            f"# a comment\n{STANZA}# inside\nSigned-By: /k/debian-archive-keyring.gpg\n",
            [BASE, UPDATES],
        ),
        ("", f"Enabled: no\n{STANZA}", []),
        ("", STANZA.replace("deb\n", "deb-src\n"), []),
        ("", f"{STANZA}Signed-By: /etc/apt/keyrings/vendor.gpg\n", []),
        ("", f"{STANZA}Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n abc\n", []),
        ("", STANZA.replace("main x", "stable"), []),
    ],
)
def test_sources_of_debian_are_found(
    tmp_path: Path, lines: str, stanzas: str, found: list[str]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(lines)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(stanzas)
    assert [str(source) for source in sources("bookworm", tmp_path)] == found
    assert sources("noble", tmp_path) == [] or "noble" in lines
    later = [text.replace("bookworm", "trixie") for text in found]
    assert [str(source) for source in sources("trixie", tmp_path)] == later


def test_list_of_mirrors_gives_its_first(tmp_path: Path) -> None:
    mirrors = tmp_path / "debian.list"
    mirrors.write_text(f"# nearest first\n{MIRROR} priority:1\nhttp://other.example/debian\n")
    (tmp_path / "sources.list").write_text(f"deb mirror+file:{mirrors} bookworm main\n")
    assert [str(source) for source in sources("bookworm", tmp_path)] == [BASE]


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "templates"
    shutil.copytree(paths.assets() / "templates", copy)
    shutil.copytree(simulated_gpus.IMAGE, copy / "simulation")
    monkeypatch.setattr(image, "assets", lambda: tmp_path)
    monkeypatch.setattr(simulated_gpus, "IMAGE", copy / "simulation")
    return copy / "node"


def test_permissions_do_not_come_from_the_checkout(templates: Path) -> None:
    (templates / "files/etc/sudoers.d/gpubed").chmod(0o666)
    (templates / "files/usr/local/sbin/gpubed-link").chmod(0o600)
    with tarfile.open(fileobj=io.BytesIO(Recipe("debian-12").files)) as tar:
        modes = {entry.name: entry.mode for entry in tar}
        owners = {(entry.uid, entry.gid) for entry in tar}
    assert modes["etc/sudoers.d/gpubed"] == 0o440
    assert modes["usr/local/sbin/gpubed-link"] == 0o755
    assert modes["etc/ssh/sshd_config.d/gpubed.conf"] == 0o644
    assert owners == {(0, 0)}


@pytest.mark.parametrize(
    "name", ["Dockerfile", "packages", "setup", "files/etc/ssh/sshd_config.d/gpubed.conf"]
)
def test_digest_changes_with_every_input(templates: Path, name: str) -> None:
    before = Recipe("debian-12").tag
    with (templates / name).open("a") as file:
        file.write("# one more line\n")
    assert Recipe("debian-12").tag != before
