"""Two nodes after role tracking."""

import pytest

PYTHON = "/shared/env/current/bin/python"


def test_a_login_logs_a_metric(host):
    program = "import mlflow; mlflow.log_metric('loss', 1)"
    done = host.run(f"runuser -l $(stat -c %U /shared/env) -c '{PYTHON} -c \"{program}\"'")
    assert done.rc == 0, done.stderr


@pytest.mark.parametrize("unit", ["gpubed-tracking", "gpubed-tracking-proxy"])
def test_it_starts_at_boot(host, unit):
    if host.file("/etc/gpubed/tracking/proxy.cfg").exists:
        assert host.service(unit).is_enabled
        assert host.service(unit).is_running


def test_the_database_is_the_servers_alone(host):
    assert host.file("/shared/tracking").mode == 0o700
