"""What role base says of a node that others cannot reach over IPv4."""

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from support import machines


@pytest.mark.parametrize(
    ("control", "experiment", "is_right"),
    [("2001:db8::7", None, False), ("2001:db8::7", "10.0.0.10", True), ("10.2.33.7", None, True)],
)
def test_a_node_without_an_ipv4_address_is_refused_before_anything_changes(
    control, experiment, is_right
):
    text = (machines.ROOT / "roles/base/vars/main.yml").read_text()
    [problem] = [p for p in yaml.safe_load(text)["__base_problems"] if "needs IPv4" in p]
    node = {"control_address": control, "experiment_address": experiment}
    said = Environment(undefined=StrictUndefined).from_string(problem).render(__base_node=node)
    assert (said == "") == is_right
    assert is_right or "through a bastion" in said
