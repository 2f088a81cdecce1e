"""What a specification renders for a role is what the role takes: names, types and choices."""

from functools import cache

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gpubed import registry, roles
from gpubed.paths import assets
from support.specs import BACKENDS, SERVICES, sample


@cache
def validator(role):
    """Return the judge that Ansible itself asks, for the inputs that gpubed renders of a role."""
    path = assets() / "roles" / role / "meta" / "argument_specs.yml"
    options = yaml.safe_load(path.read_text())["argument_specs"]["main"].get("options") or {}
    return ArgumentSpecValidator(
        {name: {**option, "required": False} for name, option in options.items()}
    )


def complaints(role, values):
    """Return what the role says against values; that one had to be converted is against it, too."""
    result = validator(role).validate(values)
    taken = result.validated_parameters
    converted = [
        f"{name} is {value!r} and the role reads {taken[name]!r}"
        for name, value in values.items()
        if name in taken and plainly(taken[name]) != plainly(value)
    ]
    return result.error_messages + converted


def plainly(value):
    """Return a value with its types, where whole numbers may stand for numbers."""
    if isinstance(value, dict):
        return {key: plainly(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plainly(item) for item in value]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "number" if number else type(value).__name__, value


@pytest.mark.parametrize("recipe", registry.recipe_names())
@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("services", sorted(SERVICES))
@pytest.mark.parametrize("gpus", [0, 2])
def test_roles_take_the_values_that_are_rendered(backend, recipe, services, gpus):
    cluster = sample(backend, recipe, services, gpus)
    wrong = {}
    for role in roles.active(cluster):
        if found := complaints(role, roles.inputs(cluster, role)):
            wrong[role] = found
    assert wrong == {}


def test_the_samples_are_of_every_backend():
    assert tuple(sorted(BACKENDS)) == registry.backend_names()
