"""The reference is what the code says; what documents link to exists."""

import re
import runpy
from pathlib import Path

import pytest
import typer.main

from gpubed import cli

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")])


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name):
    assert (ROOT / "docs" / "reference" / name).read_text() == PAGES[name], "run `make docs`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_readme_names_only_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in set(DOCUMENTS) - {ROOT / "CHANGELOG.md"}:  # which tells of former ones, too
        named = set(re.findall(r"`make ([a-z-]+)", path.read_text()))
        assert named <= targets, path


GUIDES = [ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/contributing/*.md"))]
# Where a path of a page may begin: it speaks of a package, a test, or of any role as of this one.
# What the pages themselves add.
ADDED = {
    path
    for page in GUIDES
    for name in re.findall(r"(?m)^`([\w/.]+)`\n\n```", page.read_text())
    for path in (name, *(str(parent) for parent in Path(name).parents))
}


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_a_command_of_a_contributing_page_exists(page):
    added = {Path(path).stem for path in ADDED if "cli/commands/" in path}
    verbs = set(typer.main.get_group(cli.build()).commands) | added
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    said = re.findall(r"(?:^\$ |`)(gpubed|make) ([a-z][a-z-]*)", text, re.M)
    lost = [
        f"{program} {word}"
        for program, word in said
        if word not in (targets if program == "make" else verbs)
    ]
    assert lost == []


def test_every_promise_names_tests_that_exist():
    """`docs/concepts/security.md` says what would show that a promise is broken."""
    page = (ROOT / "docs" / "concepts" / "security.md").read_text()
    named = re.findall(r"`((?:tests|roles)/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, test in named:
        assert re.search(rf"^ *def {test or 'test_'}", (ROOT / path).read_text(), re.M), (
            path,
            test,
        )
