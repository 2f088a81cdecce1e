"""The JSON Schema of cluster.yml: an editor refuses by form what `gpubed check` refuses."""

import jsonschema
import pytest
import yaml

from gpubed.spec import backend_config, schema

SPEC = """
version: 1
backend: {type: local}
nodes: [{count: 3, machine: {memory: 6 GiB}}]
networks: {experiment: {rate: 200 Mbit/s}}
recipe: cpu
"""


@pytest.fixture(scope="module")
def errors():
    """A function that returns what an editor would say: (path, message) pairs."""
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    return lambda text: [
        (".".join(map(str, error.absolute_path)), error.message)
        for error in validator.iter_errors(yaml.safe_load(text))
    ]


def test_a_right_specification_passes(errors):
    assert errors(SPEC) == []


@pytest.mark.parametrize("backend", backend_config.types())
def test_what_init_writes_passes(errors, backend):
    assert errors(backend_config.template(backend).read_text()) == []


@pytest.mark.parametrize(
    ("right", "wrong", "path"),
    [
        ("recipe: cpu", "recipe: cuda14", "recipe"),
        ("200 Mbit/s", "fast", "networks.experiment.rate"),
        ("200 Mbit/s", "200 Mb", "networks.experiment.rate"),
        ("200 Mbit/s", "12", "networks.experiment.rate"),
        ("6 GiB", "6G", "nodes.0.machine.memory"),
        ("6 GiB", "0", "nodes.0.machine.memory"),
        ("6 GiB", "6", "nodes.0.machine.memory"),
        ("6 GiB", "6 GiB, cpus: 0.001", "nodes.0.machine.cpus"),
        ("200 Mbit/s", "1 Gbit/s, latency: 5 minutes", "networks.experiment.latency"),
        ("{type: local}", "{type: locl}", "backend.type"),
        ("{type: local}", "{}", "backend"),
        ("{type: local}", "{type: local, colour: red}", "backend"),
    ],
)
def test_what_check_refuses_by_form_the_schema_refuses(errors, right, wrong, path):
    assert path in [where for where, _ in errors(SPEC.replace(right, wrong))]


def test_a_misspelt_backend_is_told_which_there_are(errors):
    assert errors(SPEC.replace("{type: local}", "{type: locl}")) == [
        ("backend.type", f"'locl' is not one of {list(backend_config.types())}")
    ]


def test_an_unknown_key_of_a_backend_is_named(errors):
    [(_, message)] = errors(SPEC.replace("{type: local}", "{type: local, colour: red}"))
    assert "'colour' was unexpected" in message


def test_an_editor_asks_for_no_number_that_is_drawn_from_the_name():
    assert schema.json_schema()["$defs"]["SlurmUser"]["required"] == ["name"]
