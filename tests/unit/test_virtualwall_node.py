"""What is said of a node whose name is not known here yet."""

from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import node
from gpubed.backends.virtualwall.documents import Given
from gpubed.nodes.ssh import Unreachable


def test_a_name_that_is_not_known_yet_says_what_helps():
    with pytest.raises(Unreachable, match=r"n1\.invalid stands for no address") as failed:
        node._resolved(SimpleNamespace(name="node-0"), Given(host="n1.invalid"))
    assert failed.value.hint.endswith("gpubed up CLUSTER")
