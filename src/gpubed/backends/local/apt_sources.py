"""Where this machine gets its Debian packages from: its own apt sources, both formats.

Only what a base system of the same distribution needs: archives of one suite and
its updates, component `main`. Sources of third parties are left out. A machine of
another release of Debian names the archives too: one that has a release has the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubed.backends.local.image import RELEASES
from gpubed.core import reading

_COMPONENT = "main"
_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<rest>.+)"
)
_LIST_OF_MIRRORS = "mirror+file:"


@dataclass(frozen=True)
class Source:
    """An archive, one suite of it."""

    uri: str
    suite: str

    def __str__(self) -> str:
        return f"deb {self.uri} {self.suite} {_COMPONENT}"


def sources(suite: str, folder: Path = Path("/etc/apt")) -> list[Source]:
    """Return the sources of a suite and its updates; empty when this machine has none."""
    found = dict.fromkeys(_read(folder))
    debian = [release.suite for release in RELEASES.values()]
    for own in (suite, *debian) if suite in debian else (suite,):
        parts = (own, f"{own}-updates", f"{own}-security")
        ordered = [source for part in parts for source in found if source.suite == part]
        if any(source.suite == own for source in ordered):
            return [Source(each.uri, each.suite.replace(own, suite)) for each in ordered]
    return []


def _read(folder: Path) -> Iterator[Source]:
    for path in [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]:
        if path.is_file():
            yield from one_line(reading.file(path, f"correct {path}").text())
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        yield from deb822(reading.file(path, f"correct {path}").text())


def one_line(text: str) -> Iterator[Source]:
    """Read `deb [options] uri suite component…` lines."""
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(o.split("=", 1) for o in (match["options"] or "").split() if "=" in o)
        yield from _usable(
            [match["uri"]], [match["suite"]], match["rest"], options.get("signed-by")
        )


def deb822(text: str) -> Iterator[Source]:
    """Read stanzas of `Key: value` lines."""
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields = {
            key.strip().lower(): value.strip()
            for key, _, value in (
                line.partition(":") for line in "\n".join(lines).replace("\n ", " ").splitlines()
            )
        }
        if fields.get("enabled", "yes") == "no" or "deb" not in fields.get("types", "").split():
            continue
        yield from _usable(
            fields.get("uris", "").split(),
            fields.get("suites", "").split(),
            fields.get("components", ""),
            fields.get("signed-by"),
        )


def _usable(
    uris: Iterable[str], suites: Iterable[str], components: str, signed_by: str | None
) -> Iterator[Source]:
    # A key of its own marks the archive of somebody else.
    if _COMPONENT not in components.split() or "debian-archive-keyring" not in (
        signed_by or "debian-archive-keyring"
    ):
        return
    for mirror in (mirror for uri in uris for mirror in _mirrors(uri)):
        yield from (Source(mirror.rstrip("/"), suite) for suite in suites)


def _mirrors(uri: str) -> list[str]:
    """Look into a list of mirrors, as cloud images have it; its path means nothing in a node."""
    if uri.startswith(_LIST_OF_MIRRORS):
        path = Path(uri.removeprefix(_LIST_OF_MIRRORS))
        lines = reading.file(path).text().splitlines() if path.is_file() else []
        return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")][:1]
    return [] if uri.startswith("cdrom:") else [uri]
