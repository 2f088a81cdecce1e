"""The head after role monitoring: Prometheus, its rules, and one that really fires."""

import json
import time
from pathlib import Path

import pytest

ASK = "curl -sS --noproxy '*' http://127.0.0.1:9090/api/v1/"
RULES = Path(__file__).parents[3] / "files" / "rules.yml"
METRICS = "/var/lib/gpubed/metrics"


@pytest.fixture(autouse=True)
def head_only(host):
    if host.check_output("hostname") != "node-0":
        pytest.skip("Prometheus is on the head")


def ask(host, what):
    return json.loads(host.check_output(ASK + what))["data"]


def wait_for(what, seconds=60):
    """Wait until a function gives something, and return that."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, what
        time.sleep(2)
    return found


@pytest.mark.parametrize("port", [9090, 9093])
def test_it_listens_on_loopback_only(host, port):
    assert host.socket(f"tcp://127.0.0.1:{port}").is_listening
    assert not host.socket(f"tcp://0.0.0.0:{port}").is_listening
    assert not host.socket(f"tcp://:::{port}").is_listening


def test_alertmanager_looks_for_no_others(host):
    assert not host.socket("tcp://0.0.0.0:9094").is_listening
    assert not host.socket("tcp://:::9094").is_listening


def test_alertmanager_answers_prometheus_and_nobody_without_the_key(host):
    """Who has a shell here would silence alerts, and send the operator false ones."""
    alerts = "127.0.0.1:9093/api/v2/alerts"
    for scheme in ("http", "https"):
        asked = f"curl -sS --fail --noproxy '*' --insecure {scheme}://{alerts}"
        answer = host.run(f"runuser -u nobody -- {asked}")
        assert (answer.rc != 0, answer.stdout) == (True, "")
    web = "/etc/gpubed/monitoring/web.yml"
    certificate = host.check_output(f"sed -n 's/  cert_file: //p' {web}")
    key = certificate.replace(".crt", ".key")
    assert host.run(f"runuser -u nobody -- cat {key}").rc != 0
    own = f"curl -sS --fail --noproxy '*' --insecure --cert {certificate} --key {key}"
    assert isinstance(json.loads(host.check_output(f"{own} https://{alerts}")), list)
    (known,) = ask(host, "alertmanagers")["activeAlertmanagers"]
    assert known["url"] == f"https://{alerts}"


def test_every_target_is_up(host):
    def settled():
        targets = ask(host, "targets?state=active")["activeTargets"]
        return targets if all(t["health"] != "unknown" for t in targets) else None

    targets = wait_for(settled)
    assert {(t["labels"]["job"], t["labels"]["node"], t["health"]) for t in targets} == {
        ("node", "node-0", "up"),
        ("node", "node-1", "up"),
        ("prometheus", "node-0", "up"),
        ("alertmanager", "node-0", "up"),
    }


def test_what_is_kept_is_limited(host):
    flags = ask(host, "status/flags")
    assert flags["storage.tsdb.retention.time"] == "15d"
    assert flags["storage.tsdb.retention.size"].startswith("953MiB")  # 10^9 bytes


def test_every_alert_fires_on_a_fault_and_none_on_a_healthy_cluster(host):
    folder = host.check_output("mktemp -d")
    for path in (RULES, Path(__file__).with_name("rules_test.yml")):
        host.check_output(f"cat > {folder}/{path.name} <<'END'\n{path.read_text()}END")
    tested = host.run(f"promtool test rules {folder}/rules_test.yml")
    assert tested.rc == 0, tested.stdout + tested.stderr


def test_prometheus_reads_all_figures(host):
    """promtool's exit code 3 only complains about help texts."""
    assert host.run(f"cat {METRICS}/*.prom | promtool check metrics").rc in (0, 3)


def test_an_injected_fault_fires_and_ends(host):
    def firing():
        alerts = ask(host, "alerts")["alerts"]
        return [a for a in alerts if a["labels"]["alertname"] == "GpuEccUncorrected"]

    assert firing() == []
    host.check_output(
        f"echo 'gpubed_gpu_ecc_uncorrected_errors{{gpu=\"3\"}} 2' > {METRICS}/injected.prom"
    )
    try:
        (alert,) = wait_for(firing)
    finally:
        host.check_output(f"rm {METRICS}/injected.prom")
    assert alert["state"] == "firing"
    assert alert["annotations"]["summary"] == "GPU 3 of node-0 has 2 uncorrected memory errors"
    assert "gpubed ssh molecule-" in alert["annotations"]["repair"]
    wait_for(lambda: not firing())
