"""Two nodes after role hub."""


def test_the_hub_and_its_proxy_run_on_the_head_alone(host):
    on_head = host.check_output("hostname") == "node-0"
    for unit in ("gpubed-hub.service", "gpubed-hub-proxy.service"):
        assert host.service(unit).is_running == on_head


def test_a_server_can_start_on_each_node(host):
    assert host.file("/shared/env/hub/bin/gpubed-hub-server").mode == 0o755


def test_others_read_no_configuration(host):
    if host.check_output("hostname") == "node-0":
        assert host.file("/etc/gpubed/hub/jupyterhub_config.py").mode == 0o600
        assert host.file("/var/lib/gpubed-hub").mode == 0o700
