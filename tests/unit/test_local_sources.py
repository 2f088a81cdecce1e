"""This machine's apt sources, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubed.backends.local.apt_sources import sources

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
