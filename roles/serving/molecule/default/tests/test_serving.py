"""Nodes after role serving."""


def test_the_proxy_refuses_who_has_no_token(host):
    if host.check_output("hostname") == "node-0":
        said = host.check_output(
            "curl -sk -o /dev/null -w '%{http_code}' https://localhost:8443/v2"
        )
        assert said == "401"


def test_the_controller_writes_what_it_sees(host):
    if host.check_output("hostname") == "node-0":
        assert host.service("gpubed-serving").is_running
        assert '"models": {}' in host.file("/shared/serving/state/state.json").content_string
