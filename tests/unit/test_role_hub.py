"""What JupyterHub takes from researchers: options of its form or of its API."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from support import by_path, machines

PARTITIONS = {"main": {"gpus": 0.0, "cpus": 2.0, "memory": 3.5, "hours": 168.0}}
USUAL = {"partition": "main", "gpus": 0, "cpus": 1, "memory": 2.0, "hours": 8.0}


class HTTPError(Exception):
    """STAND-IN for tornado's."""

    def __init__(self, status):
        self.status_code = status


@pytest.fixture
def hub(monkeypatch):
    """Import gpubed_hub.py, with STAND-INS for JupyterHub and batchspawner."""
    parts = {
        "batchspawner": {"SlurmSpawner": object},
        "batchspawner.api": {"BatchSpawnerAPIHandler": SimpleNamespace()},
        "jupyterhub.proxy": {"Proxy": object},
        "tornado": {"web": SimpleNamespace(authenticated=lambda call: call, HTTPError=HTTPError)},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    module = by_path.load(machines.ROOT / "roles/hub/files/gpubed_hub.py", "gpubed_hub")
    monkeypatch.setattr(module, "_partitions", lambda: PARTITIONS)
    return module


def taken(hub, asked):
    spawner = SimpleNamespace(user_options=asked)
    hub.Job.apply_user_options(spawner, asked)
    return spawner.user_options


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ({}, {}),
        (
            {"cpus": "2", "memory": "0.5", "hours": "0.25"},
            {"cpus": 2, "memory": 0.5, "hours": 0.25},
        ),
        ({"cmd": "id", "homedir": "/root", "keepvars": "ALL"}, {}),
    ],
)
def test_known_options_are_taken_and_no_others(hub, asked, differs):
    assert taken(hub, asked) == USUAL | differs


@pytest.mark.parametrize("value", [[], {}, None, [1], "many", "nan", "inf", 0, 3, -1])
def test_what_is_no_number_of_cpus_is_refused_in_words(hub, value):
    with pytest.raises(HTTPError) as refused:
        taken(hub, {"cpus": value})
    assert refused.value.status_code == 400
    assert refused.value.jupyterhub_message.startswith("CPUs: ")


@pytest.mark.parametrize("name", ["other", ["main"], {"main": 1}, "main --uid=0"])
def test_another_partition_is_refused_in_words(hub, name):
    with pytest.raises(HTTPError) as refused:
        taken(hub, {"partition": name})
    assert refused.value.jupyterhub_message.endswith("choose one of main.")


@pytest.mark.parametrize(
    ("limit", "hours"),
    [("infinite", 168), ("30:00", 0.5), ("12:00:00", 12), ("2-06:00:00", 54), ("30-00:00:00", 168)],
)
def test_limits_of_slurm_are_hours_and_a_week_at_most(hub, limit, hours):
    assert hub._hours(limit) == hours
