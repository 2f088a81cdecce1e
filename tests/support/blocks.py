"""The commands of README, tutorial and how-to pages, block by block."""

import re
from dataclasses import dataclass, field

import yaml

from support.cluster import ROOT

PAGES = [
    "README.md",
    "docs/tutorial/first-cluster.md",
    "docs/tutorial/your-own-training.md",
    "docs/tutorial/first-benchmark.md",
    "docs/tutorial/from-data-to-answers.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/how-to/*.md")),
]
TABLE = ROOT / "tests" / "e2e" / "walk.yaml"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(r"[$#] ")
_COMMENT = re.compile(r"\s+# .*|\s{2,}#.*")
_NUMBER = re.compile(r"\d[\d.,]*(?:e-?\d+)?")


@dataclass
class Command:
    """A line after a prompt, and what the page shows that it prints."""

    text: str
    printed: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return _COMMENT.sub("", self.text).strip()

    def missing(self, said: str) -> list[str]:
        """Return the lines of the page that were not printed, whatever their figures."""
        said = " ".join(said.split())
        return [line for line in self.printed if not re.search(_pattern(line), said)]


@dataclass
class Block:
    """Commands that stand together on a page."""

    page: str
    line: int
    commands: list[Command]
    above: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _pattern(line: str) -> str:
    parts = (re.escape(" ".join(part.split())) for part in line.split("…"))
    return ".*?".join(_NUMBER.sub(lambda _: r"\d[\d.,e-]*", part) for part in parts)


def blocks(page: str) -> list[Block]:
    text, found, above = (ROOT / page).read_text(), [], ""
    for fence in _FENCE.finditer(text):
        kind, body = fence.groups()
        if kind == "yaml":
            above = body
        if kind in ("console", "sh", "bash"):
            line = text[: fence.start()].count("\n") + 1
            found.append(Block(page, line, _commands(body, f"{page}:{line}"), above))
            above = ""
    return found


def _commands(body: str, where: str) -> list[Command]:
    found: list[Command] = []
    for line in body.splitlines():
        if _PROMPT.match(line):
            found.append(Command(line[2:]))
        elif not found:
            raise ValueError(f"{where}: {line!r} follows no prompt")
        else:
            found[-1].printed.append(line)
    return found


def table() -> dict[str, list[tuple[str, dict]]]:
    """Return by page what becomes of each block: its first command, and how it is walked."""
    pages = yaml.safe_load(TABLE.read_text())
    return {
        page: [(words, how or {}) for entry in entries for words, how in entry.items()]
        for page, entries in pages.items()
    }
