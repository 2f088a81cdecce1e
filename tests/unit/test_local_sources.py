"""This machine's apt sources, in both formats."""

from __future__ import annotations

from pathlib import Path

from gpubed.backends.local.apt_sources import Source, deb822, one_line, sources

MIRROR = "http://mirror.example/debian"


def test_one_line_with_options_and_comment() -> None:
    text = (
        "# deb http://old.example/debian bookworm main\n"
        f"deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {MIRROR} "
        "bookworm main contrib  # the base\n"
        f"deb-src {MIRROR} bookworm main\n"
    )
    assert list(one_line(text)) == [Source(MIRROR, "bookworm")]


def test_deb822_with_several_suites_and_continuation() -> None:
    text = (
        "# made by the installer\n"
        "Types: deb deb-src\n"
        f"URIs: {MIRROR}/\n"
        "Suites: bookworm\n bookworm-updates\n"
        "# a comment inside\n"
        "Components: main non-free\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    assert list(deb822(text)) == [Source(MIRROR, "bookworm"), Source(MIRROR, "bookworm-updates")]


def test_disabled_source_only_and_third_party_stanzas_are_left_out() -> None:
    base = f"URIs: {MIRROR}\nSuites: bookworm\nComponents: main\n"
    text = "\n".join(
        [
            f"Types: deb\nEnabled: no\n{base}",
            f"Types: deb-src\n{base}",
            f"Types: deb\nSigned-By: /etc/apt/keyrings/vendor.gpg\n{base}",
            f"Types: deb\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n abc\n{base}",
            f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: stable\n",
        ]
    )
    assert list(deb822(text)) == []


def test_list_of_mirrors_gives_its_first(tmp_path: Path) -> None:
    mirrors = tmp_path / "debian.list"
    mirrors.write_text(f"# nearest first\n{MIRROR} priority:1\nhttp://other.example/debian\n")
    text = f"deb mirror+file:{mirrors} bookworm main"
    assert list(one_line(text)) == [Source(MIRROR, "bookworm")]


def test_suite_comes_before_its_updates_and_once(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        f"deb {MIRROR}-security bookworm-security main\ndeb {MIRROR} bookworm main\n"
        "deb cdrom:[Debian] bookworm main\ndeb http://x.example/pgdg bookworm-pgdg main\n"
    )
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: main\n"
    )
    assert [str(source) for source in sources("bookworm", tmp_path)] == [
        f"deb {MIRROR} bookworm main",
        f"deb {MIRROR}-security bookworm-security main",
    ]


def test_another_distribution_has_none(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a.example/ubuntu noble main\n")
    assert sources("bookworm", tmp_path) == []


def test_machine_of_another_release_names_the_archives(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        f"deb {MIRROR} bookworm main\ndeb {MIRROR} bookworm-updates main\n"
        f"deb {MIRROR}-security bookworm-security main\n"
    )
    assert [str(source) for source in sources("trixie", tmp_path)] == [
        f"deb {MIRROR} trixie main",
        f"deb {MIRROR} trixie-updates main",
        f"deb {MIRROR}-security trixie-security main",
    ]
    assert sources("noble", tmp_path) == []
