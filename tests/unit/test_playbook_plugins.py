"""What Ansible loads again and again must be light."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
PLUGINS = sorted([*PLAYBOOKS.glob("filter_plugins/*.py"), *PLAYBOOKS.glob("action_plugins/*.py")])
# Both take longer to import than most tasks take.
LOAD = """
import runpy, sys
runpy.run_path(sys.argv[1])
print(*{"gpubed", "pydantic"} & set(sys.modules))
"""


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_nothing_heavy_when_it_is_loaded(plugin):
    done = subprocess.run(
        [sys.executable, "-c", LOAD, plugin], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
