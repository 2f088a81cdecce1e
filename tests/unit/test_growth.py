"""A thousand nodes: what is looked for once, not for each node; the table of `make bench`."""

import pytest
import yaml

from gpubed.backends.local.component import gpu_ids
from gpubed.core import yaml_lines
from gpubed.spec import backend_config
from support.samples import sample_plan


def test_no_two_nodes_share_a_gpu_and_those_that_pretend_have_none():
    groups = [
        {"name": "a", "count": 2, "gpus": 2},
        {"name": "b", "count": 1, "simulate": "V100-SXM2-16GB", "gpus": 4},
        {"name": "c", "count": 1, "gpus": 1},
    ]
    found = gpu_ids(sample_plan(nodes=groups))
    assert found == {"a-0": ["0", "1"], "a-1": ["2", "3"], "b-0": [], "c-0": ["4"]}


# As whoever writes YAML may: what the two parsers make of it must not differ.
TEXTS = [
    "a: |\n  x\n  y\nb: >-\n  c\n  d\n",
    "a: 'x'\nb: \"\\u00e9\\x41\"\nc: ~\nd:\ne: 1e3\nf: 0o17\ng: 017\nh: 2001-01-01\n",
    "# c\n---\na: &x {b: 1}\nc: *x\n",
    "a:\t[b]\n",
    "a: [b, ? c]\n",
    "a: {b: 1\n",
    "a: 1\na: 2\n",
    "[" * 5000,
    "a: \x01\n",
    "a: !@x 1\n",
    "a: [!1, b]\n",
    "%YAML 1.1#\n---\na: 1\n",
    *(backend_config.template(name).read_text() for name in backend_config.names()),
]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is built without libyaml")
@pytest.mark.parametrize("text", TEXTS)
def test_both_parsers_read_the_same(text, monkeypatch):
    def said():
        try:
            found = yaml_lines.parse(text.encode())
        except yaml_lines.MalformedYamlError as error:
            return error.message, error.line
        return found.data, found.lines

    with_libyaml = said()
    monkeypatch.setattr(yaml, "__with_libyaml__", 0)
    assert said() == with_libyaml
