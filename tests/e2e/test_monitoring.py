"""Monitoring switched on and off again on a cluster, its page in a real browser."""

import json
import re
import time

import pytest

from support import browser

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]
ASK = "curl -sS --noproxy '*' http://127.0.0.1:9090/api/v1/"


@pytest.fixture(scope="module")
def monitored(cluster):
    """The cluster with monitoring; the last test takes it away."""
    cluster.edit(lambda spec: spec["services"].update(monitoring={}))
    cluster.call("up")
    return cluster


@pytest.fixture
def page(monitored):
    if browser.program() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.started() as found:
        yield found.new_context(ignore_https_errors=True).new_page()


def names(cluster):
    return [node["name"] for node in cluster.json("status")["nodes"]]


def checks(document):
    return {
        (check["id"], check["node"]): check
        for check in document["checks"]
        if check["id"].startswith("monitoring.")
    }


def test_every_target_rule_and_the_page_are_verified(monitored):
    found = checks(monitored.json("status")["verification"])
    assert {check["result"] for check in found.values()} == {"pass"}
    asked = [node for id_, node in found if id_ == "monitoring.target"]
    assert asked == names(monitored)
    assert found["monitoring.page", "node-0"]["value"] == 200


def test_an_unchanged_up_changes_nothing(monitored):
    assert "nothing to change" in monitored.call("up").stderr


def test_the_verification_reaches_prometheus(monitored):
    def known():
        answer = monitored.node("head", f"{ASK}query?query=gpubed_verification_checks")
        return {
            one["metric"]["result"]: int(one["value"][1])
            for one in json.loads(answer)["data"]["result"]
        }

    verified = monitored.json("status")["verification"]
    counts = {"pass": "passed", "skip": "skipped", "simulated": "simulated"}
    wanted = {result: verified[count] for result, count in counts.items()} | {"fail": 0}
    end = time.monotonic() + 60
    while known() != wanted:
        assert time.monotonic() < end, (known(), wanted)
        time.sleep(3)


def test_a_node_has_the_memory_that_it_was_given_not_the_machines(monitored):
    """The exporter tells of all of the machine around a container."""
    wanted = {
        node: 1024 * json.loads(monitored.node(node, "gpubed-facts"))["memory_kib"]
        for node in names(monitored)
    }
    answer = monitored.node("head", f"{ASK}query?query=gpubed_container_memory_limit_bytes")
    found = {
        one["metric"]["node"]: int(one["value"][1]) for one in json.loads(answer)["data"]["result"]
    }
    assert found == wanted


@pytest.mark.browser
def test_the_page_shows_the_cluster_in_a_browser_and_keeps_itself_fresh(monitored, page):
    said = []
    page.on("console", lambda message: said.append(message.text))
    url = monitored.call("open", "--status", "--print").stdout.strip()
    assert page.goto(url).status == 200
    assert "token" not in page.url, "the token leaves the address bar"
    assert page.title() == f"{monitored.name} – status"  # noqa: RUF001
    nodes = names(monitored)
    for node in nodes:
        assert "up" in page.get_by_role("row", name=node).first.inner_text()
    tiles = " ".join(page.locator(".tiles").inner_text().split())
    assert f"Nodes {len(nodes)} of {len(nodes)} answer" in tiles
    assert page.get_by_role("img", name="node-1 memory").count() == 1
    before = page.locator("main").get_attribute("data-clock")
    page.wait_for_function(
        "clock => document.querySelector('main').dataset.clock !== clock", arg=before, timeout=60000
    )
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Resume").get_attribute("aria-pressed") == "true"
    assert said == [], "the page's own policy stops nothing that it needs"


@pytest.mark.browser
def test_without_the_token_the_page_shows_nothing(monitored, page):
    url = monitored.call("open", "--status", "--print").stdout.strip()
    page.goto(url.split("token=")[0] + "token=" + "0" * 64)
    page.wait_for_selector("input[type=password]")
    assert page.locator(".tiles").count() == 0


def test_a_stopped_exporter_and_a_missing_rule_are_named_with_their_repair(monitored):
    rules = "/etc/gpubed/monitoring/rules.yml"
    monitored.node("node-1", "sudo systemctl stop prometheus-node-exporter")
    monitored.node("head", f"sudo sed -i '/alert: GpuLost/,/^$/d' {rules}")
    monitored.node("head", "sudo systemctl restart prometheus")
    found = checks(monitored.json("verify", rc=1)["verification"])
    target = found["monitoring.target", "node-1"]
    repair = f"repair: gpubed configure {monitored.name} --tags monitoring"
    assert "exporter node does not answer" in target["reason"]
    assert "connection refused" in target["reason"]
    assert target["reason"].endswith(repair)
    rule = found["monitoring.rules", "node-0"]
    said = re.fullmatch(r"Prometheus judges (\d+) rules instead of (\d+); (.*)", rule["reason"])
    assert int(said[1]) == int(said[2]) - 1
    assert said[3] == repair
    assert {check["result"] for key, check in found.items() if check not in (target, rule)} == {
        "pass"
    }
    monitored.call("configure", "--tags", "monitoring")
    assert set(checks(monitored.json("verify")["verification"])) == set(found)


def test_switched_off_it_is_undone(monitored):
    monitored.edit(lambda spec: spec["services"].pop("monitoring"))
    monitored.call("up")
    left = "ls -d /etc/gpubed/monitoring /var/lib/gpubed/metrics /var/lib/prometheus"
    services = "systemctl list-units --all --plain --no-legend 'prometheus*' 'gpubed-metrics*'"
    for node in names(monitored):
        assert monitored.node(node, f"{left} 2>/dev/null || true") == ""
        assert monitored.node(node, services) == ""
        assert ":9100" not in monitored.node(node, "ss -Hltn")
    assert "is not monitored" in monitored.call("open", "--status", "--print", rc=1).stderr
    assert monitored.json("plan")["changes"] == []
