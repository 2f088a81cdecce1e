"""Researchers share a cluster from their browsers: JupyterHub on Slurm (docs/how-to/hub.md)."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from support import browser
from support.cluster import BIN, ROOT, Cluster, unique

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.services]

PEOPLE = ("alice", "bob", "carol")
SERVICES = {
    "jupyterlab": {"port": 8888},
    "slurm": {"users": [{"name": name} for name in PEOPLE]},
    "hub": {"idle": "60 s", "admins": ["alice"]},
}
NODES = [{"name": "node", "count": 2, "machine": {"cpus": 2, "memory": "4 GiB"}}]
NEW_TOKEN = """async () => {
  const page = "/hub/api/users/alice/tokens?_xsrf=" + window.jhdata.xsrf_token;
  return (await (await fetch(page, {method: "POST"})).json()).token;
}"""
# What batchspawner itself would let a server set.
FOREIGN = {
    "cmd": ["id"],
    "batch_script": "#!/bin/sh\nid",
    "exec_prefix": "",
    "req_options": "--comment=foreign",
}
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def group(docker, tmp_path_factory):
    """Two nodes of two CPUs, for a group of three."""
    if browser.program() is None:
        pytest.skip("chromium is not installed")
    made = Cluster(
        tmp_path_factory.mktemp("project"), unique("hub"), nodes=NODES, services=SERVICES
    )
    try:
        made.call("up")
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


@pytest.fixture(scope="module")
def chromium():
    with browser.started() as started:
        yield started


@contextmanager
def desk(chromium):
    """Give a page in a browser profile of its own."""
    context = chromium.new_context(
        ignore_https_errors=True, viewport={"width": 1100, "height": 640}
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


def url(cluster):
    return cluster.call("open", "--hub", "--print").stdout.strip()


def password(cluster, name):
    return (cluster.state / "secrets" / "hub" / name).read_text().strip()


def log_in(page, cluster, name, word=None):
    page.goto(url(cluster))
    page.fill("#username_input", name)
    page.fill("#password_input", word or password(cluster, name))
    page.click("#login_submit")


def ask_for_a_node(page):
    page.wait_for_selector("[name=cpus]")
    page.fill("[name=cpus]", "2")
    page.fill("[name=memory]", "1")


def queue(cluster):
    """Return node, or why there is none, by owner of the servers in the queue."""
    lines = cluster.node("head", "squeue -h --name=jupyterhub -o '%u %T %R'").splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}


def wait_for(look, seconds=240):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(2)
    return found


def ask(cluster, token, method, page, document=None):
    """Call the hub's API; return status and answer."""
    request = urllib.request.Request(
        f"{url(cluster)}hub/api/{page}",
        json.dumps(document).encode() if document is not None else None,
        {"Authorization": f"token {token}", "Content-Type": "application/json"},
        method=method,
    )
    trusted = ssl.create_default_context(cafile=str(cluster.state / "hub.crt"))
    try:
        with urllib.request.urlopen(request, context=trusted) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def process(cluster, node):
    """Return the process of alice's server."""
    find = "sudo -u bob pgrep --full --oldest --euid alice jupyterhub-singleuser"
    return cluster.node(node, find).strip()


def own_token(cluster, node):
    """Return the token that alice's server shows to the hub."""
    found = cluster.node(node, f"sudo -u alice cat /proc/{process(cluster, node)}/environ")
    return found.partition("JUPYTERHUB_API_TOKEN=")[2].partition("\0")[0]


def place(cluster):
    """Return address and port of alice's server."""
    listens = "sudo awk '$1 == \"/user/alice/\" {print $2}' /var/lib/gpubed-hub/routes"
    return cluster.node("head", listens).strip()


def picture(page, name):
    page.screenshot(path=IMAGES / f"hub-{name}.png")


def test_its_checks_pass_and_status_names_it(group):
    checks = group.json("verify")["verification"]["checks"]
    found = {check["id"]: check["result"] for check in checks}
    assert (found["hub.tls"], found["hub.stranger"]) == ("pass", "pass")
    assert {check["id"] for check in checks if check["result"] == "fail"} == set()
    services = {service["name"]: service["url"] for service in group.json("status")["services"]}
    assert services["hub"] == url(group)
    # Whoever knows the cluster's own authority needs to trust nothing else.
    trusted = ssl.create_default_context(cafile=str(group.state / "hub.crt"))
    with urllib.request.urlopen(services["hub"], context=trusted) as answer:
        assert answer.headers["Strict-Transport-Security"]


def test_a_wrong_password_is_refused_and_slowed(group, chromium):
    with desk(chromium) as page:
        began = time.monotonic()
        log_in(page, group, "alice", "wrong")
        page.wait_for_selector(".login_error")
        assert time.monotonic() - began > 2
        picture(page, "login")
        # The cluster's own account is no researcher.
        log_in(page, group, "gpubed", "wrong")
        page.wait_for_selector(".login_error")


def test_two_work_apart_and_a_third_waits_for_an_idle_server(group, chromium):
    with desk(chromium) as alice, desk(chromium) as bob, desk(chromium) as carol:
        for page, name in ((alice, "alice"), (bob, "bob")):
            log_in(page, group, name)
            ask_for_a_node(page)
            if name == "alice":
                picture(page, "form")
            page.click("#spawn_form [type=submit]")
            page.wait_for_selector(".jp-LauncherCard", timeout=240_000)
        nodes = queue(group)
        assert {nodes["alice"], nodes["bob"]} == {"RUNNING node-0", "RUNNING node-1"}
        is_apart(group, bob, nodes["alice"].split()[1])
        assert alice.request.get(f"{url(group)}hub/admin").status == 200
        assert bob.request.get(f"{url(group)}hub/admin").status == 403

        log_in(carol, group, "carol")
        ask_for_a_node(carol)
        carol.click("#spawn_form [type=submit]")
        carol.wait_for_selector("text=what it asks for is in use by other jobs (Resources)")
        picture(carol, "waiting")
        assert queue(group)["carol"] == "PENDING (Resources)"
        alice.goto("about:blank")
        carol.wait_for_selector(".jp-LauncherCard", timeout=300_000)
        now = queue(group)
        assert "alice" not in now
        assert now["carol"] == nodes["alice"]


def is_apart(cluster, bob, node):
    """Look from bob's login for what is alice's."""
    base = url(cluster)
    assert bob.request.get(f"{base}user/bob/api/contents").status == 200
    assert bob.request.get(f"{base}user/alice/api/contents").status in (403, 404)
    for private in (
        f"/proc/{process(cluster, node)}/environ",
        "/shared/home/alice",
        "/shared/home/alice/.python",
    ):
        said = cluster.node(
            node, f"sudo -u bob cat {private} 2>&1 || sudo -u bob ls {private} 2>&1 || true"
        )
        assert "Permission denied" in said, private
    # From within the cluster, past the proxy.
    look = (
        f"curl -s -o /dev/null -w '%{{http_code}}' http://{place(cluster)}/user/alice/api/contents"
    )
    assert cluster.node("node-1", f"sudo -u bob {look}") == "403"
    token = own_token(cluster, node)
    assert token
    assert token not in cluster.node("head", "ps -e -o args; sudo journalctl --boot --no-pager")


def test_a_job_beyond_what_a_node_has_is_refused_in_words(group, chromium):
    with desk(chromium) as page:
        log_in(page, group, "alice")
        page.wait_for_selector("[name=cpus]")
        page.evaluate("document.querySelector('[name=cpus]').removeAttribute('max')")
        page.fill("[name=cpus]", "64")
        page.click("#spawn_form [type=submit]")
        page.wait_for_selector("text=CPUs: partition main has 1 to 2 on a node.")


def started(cluster, token):
    """Start a server of alice's; return its node and its job's script."""
    asked = {"cpus": 1, "memory": 1, "hours": 1}
    assert ask(cluster, token, "POST", "users/alice/server", asked)[0] in (201, 202)

    def ready():
        servers = json.loads(ask(cluster, token, "GET", "users/alice")[1])["servers"]
        return servers and servers[""]["ready"]

    wait_for(ready)
    job = cluster.node("head", "squeue -h --name=jupyterhub --user=alice -o %i").strip()
    script = cluster.node("head", f"sudo scontrol write batch_script {job} -")
    return queue(cluster)["alice"].split()[1], script


def test_tokens_open_nothing_else(group, chromium):
    with desk(chromium) as page:
        log_in(page, group, "alice")
        page.wait_for_selector("[name=cpus]")
        token = page.evaluate(NEW_TOKEN)
    for name in ("gpubed", "root", "unknown"):
        assert ask(group, token, "POST", f"users/{name}")[0] in (403, 404)
        assert ask(group, token, "POST", f"users/{name}/server", {})[0] in (403, 404)
    users = json.loads(ask(group, token, "GET", "users")[1])
    assert {user["name"] for user in users} <= set(PEOPLE)
    for asked, said in (
        ({"cpus": []}, "CPUs: [] is no number."),
        ({"partition": ["main"]}, "choose one of main."),
    ):
        status, answer = ask(group, token, "POST", "users/alice/server", asked)
        assert status == 400
        assert said in json.loads(answer)["message"]
    assert set(queue(group)) <= set(PEOPLE) - {"alice"}

    node, script = started(group, token)
    own, port = own_token(group, node), int(place(group).rpartition(":")[2])
    assert ask(group, own, "POST", "batchspawner", FOREIGN)[0] == 403
    assert ask(group, own, "POST", "batchspawner", {**FOREIGN, "port": port})[0] == 201
    assert ask(group, token, "DELETE", "users/alice/server")[0] in (202, 204)
    wait_for(lambda: not json.loads(ask(group, token, "GET", "users/alice")[1])["servers"])
    assert started(group, token)[1] == script
    ask(group, token, "DELETE", "users/alice/server")


def test_switched_off_nothing_is_left(group):
    group.edit(lambda spec: spec["services"].pop("hub"))
    group.call("up")
    look = (
        "systemctl list-unit-files --no-legend 'gpubed-hub*';"
        " pgrep --full jupyterhub | grep -vx $$;"
        " sudo ls -d /etc/gpubed/hub /etc/pam.d/gpubed-hub /var/lib/gpubed-hub /shared/env/hub"
        " /etc/systemd/system/haproxy.service /usr/sbin/haproxy 2>/dev/null;"
        " sudo ss -Hltn | grep -E ':(8000|8081) '; sudo passwd --status alice; squeue -h"
    )
    for node in ("node-0", "node-1"):
        said = group.node(node, f"{look}; true").splitlines()
        assert [line.split()[:2] for line in said] == [["alice", "L"]]
    assert not any(service["name"] == "hub" for service in group.json("status")["services"])
