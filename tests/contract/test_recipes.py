"""The recipes and the package index say the same."""

import os

import pytest

from gpubed.cluster import recipe_check
from gpubed.recipes import recipe
from gpubed.recipes import recipe as recipes

pytestmark = pytest.mark.quick


@pytest.fixture(params=recipe.names())
def recipe(request):
    return recipes.load(request.param)


@pytest.fixture
def tampered(recipe, tmp_path, monkeypatch):
    """The recipe, with a lock that names files of numpy which the index does not have."""
    text = recipe.lock_path.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(text) if line.startswith("numpy=="))
    text[start + 1] = f"    --hash=sha256:{64 * '0'} \\\n"
    lock = tmp_path / "requirements.txt"
    lock.write_text("".join(text))
    monkeypatch.setattr(recipes.Recipe, "lock_path", lock)
    return recipe


def results(recipe):
    return {check.id: check for check in recipe_check.check(recipe)}


def test_a_recipe_passes_its_own_check(recipe):
    found = results(recipe)
    assert {check.result for check in found.values()} <= {"pass", "skip"}, found
    assert found["lock.resolves"].result == "pass"


def test_a_lock_with_a_strange_hash_fails(tampered):
    found = results(tampered)
    assert found["lock.checksum"].result == "fail"
    assert "numpy==" in found["lock.resolves"].reason


@pytest.mark.live
@pytest.mark.skipif(
    not os.environ.get("GPUBED_MEASURE"), reason="downloads 3 GB a recipe: set GPUBED_MEASURE=1"
)
def test_the_record_is_what_the_packages_carry(recipe):
    assert dict(recipe_check.measure(recipe)) == recipe.measured()
