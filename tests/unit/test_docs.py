"""The reference is what the code says; what documents link to exists."""

import re
import runpy
from pathlib import Path

import pytest

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
    for path in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", path.read_text()))
        assert named <= targets, path


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
