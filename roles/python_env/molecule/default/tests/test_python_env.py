"""Two nodes after role python_env; the first is the head."""

import json

import pytest

CURRENT = "/shared/env/current"
TOOLS = "/opt/gpubed/uv"


@pytest.fixture
def is_head(host):
    return host.check_output("hostname") == "node-0"


def test_current_points_to_a_named_environment(host):
    assert host.file(CURRENT).is_symlink
    assert host.run(f"readlink {CURRENT} | grep -Eq '^cpu-[0-9a-f]{{12}}$'").rc == 0


def test_the_user_imports_torch(host):
    done = host.run(
        f"runuser -u gpubed -- {CURRENT}/bin/python -c 'import torch; print(torch.ones(2).sum())'"
    )
    assert done.stdout.strip() == "tensor(2.)", done.stderr


def test_the_environment_says_what_it_was_made_from(host):
    note = json.loads(host.file(f"{CURRENT}/.complete").content_string)
    assert note["recipe"] == "cpu"
    assert (
        host.run(f"sha256sum {CURRENT}/requirements.txt").stdout.split()[0] == note["lock_sha256"]
    )


def test_everything_installed_is_in_the_lock(host, is_head):
    if not is_head:
        pytest.skip("the environment is one for all nodes")
    locked = host.check_output(f"grep -oE '^[a-z0-9-]+==' {CURRENT}/requirements.txt")
    installed = host.check_output(
        f"runuser -u gpubed -- {TOOLS}/bin/uv pip list --no-cache --format json"
        f" --python {CURRENT}/bin/python"
    )
    names = {package["name"] for package in json.loads(installed)}
    assert names <= {line.removesuffix("==") for line in locked.split()}


def test_the_environment_belongs_to_the_user(host):
    assert host.file(f"{CURRENT}/").user == "gpubed"


def test_the_installer_is_on_the_head_only(host, is_head):
    assert host.file(TOOLS).exists is is_head


def test_login_shells_find_the_environment(host):
    assert host.check_output("runuser -l gpubed -c 'command -v python'") == f"{CURRENT}/bin/python"
