"""Every role finds its variables on every release whose image somebody may choose.

Ubuntu cannot be installed from here: that names and packages are worked out is all that
is shown for it.
"""

import ast
import re

import pytest

from gpubed.configuration import roles
from gpubed.core.paths import assets
from support import role_variables
from support.specs import sample

RELEASES = sorted(role_variables.RELEASES)
INCLUDED = re.compile(
    r"include_vars:\s+(?:file: )?\"\{\{ (\{.+?\})\[ansible_facts\['(\w+)'\]\] \}\}\""
)


def included(role):
    """Return the facts that choose files of variables of a role, and the file for each answer."""
    texts = (p.read_text() for p in (assets() / "roles" / role / "tasks").glob("*.yml"))
    return [
        (fact, ast.literal_eval(known)) for text in texts for known, fact in INCLUDED.findall(text)
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("role", roles.names())
def test_the_files_that_a_role_reads_are_there(role, release):
    told, folder = role_variables.facts(release), assets() / "roles" / role / "vars"
    chosen = [known[told[fact]] for fact, known in included(role)]
    assert [name for name in chosen if not (folder / name).is_file()] == []


@pytest.mark.parametrize(
    ("release", "missed"),
    [("debian-12", []), ("debian-13", []), ("ubuntu-22.04", [">=3.11"]), ("ubuntu-24.04", [])],
)
def test_a_release_whose_python_is_too_old_is_refused_at_once(release, missed):
    given = roles.inputs(sample("static", "cuda13", "all", 2), "base")
    told = role_variables.facts(release)["python_version"]
    asked = {"stdout": ".".join(told.split(".")[:2])}
    found = role_variables.value(
        "base", "__base_python_misses", release, __base_python_asked=asked, **given
    )
    assert found == missed
