"""The program that both engines run, where it cannot begin."""

import pytest

from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.engines.embedded import Engine
from gpubed.engines.stack import passphrase_file

pytestmark = pytest.mark.quick


def test_a_stack_without_a_specification_ends_in_a_sentence(tmp_path, monkeypatch):
    """As after `pulumi stack rename`: plain `pulumi up` ended in a traceback."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    project = Project(tmp_path)
    project.prepare()
    engine = Engine(
        tmp_path, "lab", backend_dir=project.pulumi, passphrase_file=passphrase_file(project)
    )
    said = []
    with pytest.raises(GpubedError) as caught:
        engine.preview(said.append)
    assert "inventories/lab/cluster.yml:1: the file does not exist" in caught.value.message
    assert "Traceback" not in "".join(map(str, said))
