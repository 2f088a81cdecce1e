"""Reads this machine's apt sources, in both formats, to bootstrap a node image.

Uses component `main` of a suite, its updates and security updates, from no third-party archives.
The archives of another Debian release serve too: they have all releases.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpubed.backends.local.config import RELEASES
from gpubed.core import reading

_ONE_LINE = re.compile(
    r"^[ \t]*deb[ \t]+(?:\[(?P<options>[^]]*)\][ \t]*)?(?P<uris>\S+)[ \t]+(?P<suites>\S+)"
    r"[ \t]+(?P<components>[^#\n]+)",
    re.MULTILINE,
)
_LIST_OF_MIRRORS = "mirror+file:"


class Source(NamedTuple):
    """One suite of an archive."""

    uri: str
    suite: str

    def __str__(self) -> str:
        return f"deb {self.uri} {self.suite} main"


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
            for match in _ONE_LINE.finditer(reading.file(path, f"correct {path}").text()):
                signed_by = re.search(r"signed-by=(\S+)", match["options"] or "")
                yield from _usable(match, signed_by and signed_by[1])
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        text = re.sub(r"^#.*\n", "", reading.file(path, f"correct {path}").text(), flags=re.M)
        for stanza in re.split(r"\n\s*\n", text):
            lines = (line.partition(":") for line in stanza.replace("\n ", " ").splitlines())
            fields = {key.strip().lower(): value.strip() for key, _, value in lines}
            if fields.get("enabled") != "no" and "deb" in fields.get("types", "").split():
                yield from _usable(defaultdict(str, fields), fields.get("signed-by"))


def _usable(fields: Mapping[str, str] | re.Match[str], signed_by: str | None) -> Iterator[Source]:
    # Third-party archives have a key of their own.
    if "main" in fields["components"].split() and "debian-archive-keyring" in (
        signed_by or "debian-archive-keyring"
    ):
        for mirror in (mirror for uri in fields["uris"].split() for mirror in _mirrors(uri)):
            yield from (Source(mirror.rstrip("/"), suite) for suite in fields["suites"].split())


def _mirrors(uri: str) -> list[str]:
    """Return a URI, or the first one of a mirror list, since nodes do not have the list."""
    if uri.startswith(_LIST_OF_MIRRORS):
        path = Path(uri.removeprefix(_LIST_OF_MIRRORS))
        lines = reading.file(path).text().splitlines() if path.is_file() else []
        return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")][:1]
    return [] if uri.startswith("cdrom:") else [uri]
