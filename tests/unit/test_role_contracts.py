"""What a specification renders for a role is what the role takes: names, types, choices, sense.

And what the roles' filters make of it, with facts of recorded machines.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gpubed.configuration import roles
from gpubed.core.paths import assets
from gpubed.hardware.facts import Facts
from gpubed.hardware.nvidia_driver import branch_of
from gpubed.recipes import recipe
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan
from support import by_path, machines, role_variables
from support.specs import BACKENDS, SERVICES, sample

FILTERS = Path(__file__).parents[2] / "playbooks/filter_plugins/gpubed_hardware.py"


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


@pytest.mark.parametrize("recipe", recipe.names())
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


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("wanted", ["auto", ["/dev/nvme1n1"]])
def test_disks_that_outlive_the_cluster_are_taken_by_name_only(backend, wanted):
    document = {
        "version": 1,
        "name": "lab",
        "backend": BACKENDS[backend],
        "nodes": [{"name": "node", "count": 2}],
        "storage": {"scratch": {"devices": wanted}},
    }
    found = roles.inputs(plan(model().model_validate(document)), "scratch")["scratch_devices"]
    assert found == ([] if (backend, wanted) == ("static", "auto") else wanted)


@pytest.fixture(scope="module")
def filters():
    """The filters, as Ansible gets them."""
    found = by_path.load(FILTERS, "gpubed_hardware_filters").FilterModule().filters()
    tried = {"gpubed_driver", "gpubed_bindings", "gpubed_horovod_settings"}
    assert set(found) == tried, "each of them is tried here"
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The files of facts that Ansible keeps of recorded machines, without and with a driver."""
    folder, files = tmp_path_factory.mktemp("facts"), {}
    for name in machines.NAMES:
        for driver in (False, True):
            path = folder / f"{name}-{driver}.json"
            told = machines.facts(name, folder / f"{name}-{driver}", driver=driver)
            path.write_text(json.dumps(told))
            files[name, driver] = path
    return files


def choice(filters, plan, release, path):
    """Return what the role nvidia_driver makes of its inputs on one node."""
    inputs = roles.inputs(plan, "nvidia_driver")
    return filters["gpubed_driver"](
        {"node-0": str(path)},
        role_variables.value("nvidia_driver", "__nvidia_driver_offers", release, **inputs),
        oldest=inputs["nvidia_driver_oldest"],
        cuda=inputs["nvidia_driver_cuda"],
    )


@pytest.mark.process
@pytest.mark.parametrize("release", sorted(role_variables.RELEASES))
@pytest.mark.parametrize("name", recipe.with_gpus())
@pytest.mark.parametrize("machine", machines.NAMES)
def test_each_machine_gets_a_driver_that_runs_the_recipe_or_a_reason(
    filters, kept, machine, name, release
):
    path, plan = kept[machine, False], sample("static", name, "all", 2)
    if release not in served(path, recipe.load(name)):
        with pytest.raises(AnsibleFilterError, match="node-0"):
            choice(filters, plan, release, path)
        return
    found = choice(filters, plan, release, path)
    assert found["branch"] >= branch_of(recipe.load(name).gpus.driver)
    assert found["cuda"] >= int(recipe.load(name).cuda.split(".")[0])


def served(path, known):
    """Return the releases on which a machine runs a recipe."""
    told = Facts.model_validate_json(path.read_text())
    capabilities = {gpu.compute_capability for gpu in told.gpus}
    if not capabilities or not all(c and known.gpus.serve(c) for c in capabilities):
        # CUDA 12's libraries know Blackwell, which the recipe's do not: a driver is no obstacle.
        return set(role_variables.RELEASES) if capabilities == {"10.0"} else set()
    return set(role_variables.RELEASES)


@pytest.mark.process
@pytest.mark.parametrize("machine", machines.NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_are_bound_on_each_machine(filters, kept, machine, ranks):
    bound = filters["gpubed_bindings"](str(kept[machine, True]), ranks)
    told = json.loads(kept[machine, True].read_text())
    seen = [gpu for gpu in told["gpus"] if gpu["index"] is not None]
    assert len(bound) == (ranks if seen else 0)
