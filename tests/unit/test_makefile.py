"""Each test runs in one of `make test`, `make test-all`, and the targets of what takes hours."""

import re
import shlex
import subprocess
from itertools import product, takewhile

import pytest

from support.cluster import ROOT

pytestmark = pytest.mark.process


def runs(*targets):
    """Return what targets give pytest: pairs of paths and of what chooses among the marks."""
    command = ["make", "--dry-run", *targets]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    given = [shlex.split(words) for words in re.findall(r"-m pytest ([^|;\n]+)", told)]
    return [
        (
            list(takewhile(lambda word: word[0] != "-", words)),
            words[words.index("-m") + 1] if "-m" in words else "",
        )
        for words in given
    ]


@pytest.mark.parametrize(("target", "marks"), [("test", "not process"), ("test-all", "process")])
def test_a_unit_test_is_of_the_target_that_its_mark_says(target, marks):
    assert runs(target)[0] == (["tests/unit"], marks)


def test_any_other_test_is_of_one_target_whatever_its_marks():
    later = {marks for _, marks in runs("test-nightly", "test-experiment", "test-endurance")}
    later = later - {""} | {"simulated"}  # chosen by files, as below
    chosen = [compile(runs(target)[-1][1], target, "eval") for target in ("test", "test-all")]
    names = ["quick", *later]
    for values in product((False, True), repeat=len(names)):
        marks = dict(zip(names, values, strict=True))
        of = [*(eval(one, {}, dict(marks)) for one in chosen), any(map(marks.get, later))]
        assert of.count(True) == 1, marks


def test_whole_clusters_of_simulated_gpus_are_of_one_target():
    [(files, _)] = runs("test-gpu")
    for path in ROOT.glob("tests/e2e/test_*.py"):
        if "mark.simulated" in path.read_text():
            assert str(path.relative_to(ROOT)) in files
