"""Who may ask Alertmanager on the head, where others have shells."""

import pytest
import yaml

from support import role_variables

NODE = {"name": "node-0", "control_address": "192.0.2.1", "experiment_address": None, "gpus": 0}
GIVEN = {
    "gpubed_nodes": [NODE],
    "gpubed_head": "node-0",
    "inventory_hostname": "node-0",
    "gpubed_cluster": "lab",
    "ansible_managed": "managed",
}


@pytest.fixture(params=sorted(role_variables.RELEASES))
def made(request):
    """Make a file of the role's, for each of the images."""
    return lambda name: role_variables.template("monitoring", name, request.param, **GIVEN)


def test_alertmanager_answers_only_who_holds_the_heads_key(made):
    assert "--web.config.file=/etc/gpubed/monitoring/web.yml" in made(
        "prometheus-alertmanager.conf.j2"
    )
    asks = yaml.safe_load(made("web.yml.j2"))["tls_server_config"]
    assert asks["client_auth_type"] == "RequireAndVerifyClientCert"
    assert asks["client_ca_file"] == "/etc/gpubed/monitoring/head.crt"


def test_prometheus_shows_it_the_heads_key(made):
    """And finds the head's certificate there, though it asks at loopback."""
    settings = yaml.safe_load(made("prometheus.yml.j2"))
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    (asked,) = settings["alerting"]["alertmanagers"]
    for one in (asked, jobs["alertmanager"]):
        assert one["scheme"] == "https"
        assert one["static_configs"][0]["targets"] == ["127.0.0.1:9093"]
        assert one["tls_config"] == {**jobs["node"]["tls_config"], "server_name": "node-0"}
    assert jobs["node"]["tls_config"]["key_file"].startswith("/etc/gpubed/monitoring/")
