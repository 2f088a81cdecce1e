"""Runs log themselves to MLflow, scripts find it, and it goes without trace; of track.md."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from support import browser
from support.cluster import BIN, Cluster, unique

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.services]

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "tracking.png"
SCRIPT = "import mlflow\nmlflow.log_metric('mine', 7)\n"
FIND = """
import json, mlflow
runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
print(json.dumps([run.to_dictionary() for run in runs]))
"""
LOAD = """
import mlflow, numpy, sklearn.datasets
mlflow.MlflowClient().set_registered_model_alias("digits", "champion", 1)
model = mlflow.pyfunc.load_model("models:/digits@champion")
data = sklearn.datasets.load_digits()
found = model.predict(data.data.astype("float32"))
print((found == data.target).mean())
"""
LEFT = """
ps -eo args | grep -E '[m]lflow|[h]aproxy'
ls -d /etc/gpubed/tracking /etc/gpubed/leave.d/tracking /etc/systemd/system/gpubed-tracking* \
  /opt/gpubed/tracking* /usr/sbin/haproxy /etc/profile.d/gpubed-tracking.sh ~/.mlflow \
  /etc/systemd/system/haproxy.service \
  /shared/home/alice/.mlflow /home/*/.mlflow /shared/env/tracking* \
  /shared/env/*/lib/python3*/site-packages/gpubed-tracking.pth 2>/dev/null
getent passwd gpubed-tracking
ss -Hltn 'sport = :5000'
true
"""


@pytest.fixture(scope="module")
def tracked(docker, tmp_path_factory):
    """Two nodes with MLflow and a researcher."""
    nodes = [{"name": "node", "count": 2, "machine": {"cpus": 2, "memory": "5 GiB"}}]
    services = {"jupyterlab": {}, "slurm": {"users": [{"name": "alice"}]}, "tracking": {}}
    made = Cluster(
        tmp_path_factory.mktemp("project"), unique("tracking"), nodes=nodes, services=services
    )
    try:
        made.json("up")
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


def python(cluster, program, user="gpubed", login=True):
    """Run a program in the cluster's Python, as a login of a user has it."""
    shell = f"sudo -iu {user} bash -lc" if login else f"sudo -u {user} sh -c"
    return cluster.node("head", f"{shell} 'cd && python -'", program)


def runs(cluster):
    """Return MLflow's runs, by the name that gpubed gave them."""
    found = json.loads(python(cluster, FIND).splitlines()[-1])
    return {run["data"]["tags"]["mlflow.runName"]: run for run in found}


@pytest.fixture(scope="module")
def trained(tracked):
    return tracked.json("run", "digits", "--set", "epochs=12", "--set", "register=digits")


def test_its_checks_pass(tracked):
    checks = tracked.json("verify")["verification"]["checks"]
    found = {c["id"]: c["result"] for c in checks if c["id"].startswith("tracking.")}
    assert found == {"tracking.tls": "pass", "tracking.wrong_password": "pass"}
    assert "tracking" in {service["name"] for service in tracked.json("status")["services"]}


def test_a_run_logs_itself(tracked, trained):
    run = runs(tracked)[trained["run_id"]]
    assert run["info"]["status"] == "FINISHED"
    assert run["data"]["params"]["epochs"] == "12"
    assert run["data"]["metrics"]["test_accuracy"] == pytest.approx(trained["test_accuracy"])
    assert run["data"]["tags"]["gpubed.environment"].startswith("/shared/env/")


def test_a_model_is_registered_and_comes_back(tracked, trained):
    accuracy = float(python(tracked, LOAD).splitlines()[-1])
    assert accuracy > trained["test_accuracy"] - 0.05


def test_a_scripts_own_metric_lands_in_its_run(tracked, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [str(BIN / "gpubed"), "run", tracked.name, "--ranks", "1", "--json", "--"]
    done = subprocess.run(
        [*words, "python", "script.py"],
        cwd=tmp_path,
        env=tracked.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert runs(tracked)[json.loads(done.stdout)["run_id"]]["data"]["metrics"]["mine"] == 7


@pytest.mark.parametrize("user", ["gpubed", "alice", "jupyter"])
def test_a_login_finds_it(tracked, user):
    python(tracked, SCRIPT, user)


def test_a_slurm_job_of_a_researcher_finds_it(tracked):
    tracked.node("head", "sudo tee /shared/home/alice/job.py", SCRIPT.replace("mine", "queued"))
    submit = "sbatch --wait --output=job.out --wrap 'python job.py' || cat job.out"
    tracked.node("head", f"sudo -iu alice bash -lc {json.dumps(submit)}")
    assert any("queued" in run["data"]["metrics"] for run in runs(tracked).values())


def test_a_wrong_password_is_refused_and_slowed(tracked):
    ask = "curl -so /dev/null -w '%{http_code} %{time_total}\\n' https://node-0:5000/"
    ask += " --cacert /etc/gpubed/tracking/ca.crt"
    said = tracked.node("node-1", f"for i in 1 2 3 4 5; do {ask} -u alice:no; done")
    codes, seconds = zip(*(line.split() for line in said.splitlines()), strict=True)
    assert set(codes) == {"401"}
    assert float(seconds[-1]) > 2.5
    assert tracked.node("node-1", ask).split()[0] == "401"


@pytest.mark.skipif(browser.program() is None, reason="there is no Chromium on this machine")
def test_its_page_is_seen_in_a_browser(tracked, trained):
    url = tracked.call("open", "--tracking", "--print").stdout.strip()
    said = tracked.node("head", "cat ~/.mlflow/credentials")
    password = said.split("mlflow_tracking_password = ")[1].split()[0]
    with browser.started() as chromium:
        page = chromium.new_page(
            ignore_https_errors=True,
            http_credentials={"username": "gpubed", "password": password},
            viewport={"width": 1280, "height": 800},
        )
        page.goto(f"{url}#/experiments/1/runs")
        page.get_by_text(trained["run_id"]).first.wait_for(timeout=120_000)
        if os.environ.get("GPUBED_PICTURES"):
            page.wait_for_timeout(3000)
            page.screenshot(path=PICTURE)


def test_a_job_goes_on_without_it_and_says_why(tracked):
    tracked.node("head", "sudo systemctl stop gpubed-tracking.service")
    done = tracked.call("run", "digits", "--set", "epochs=1")
    assert "MLflow answers 503" in done.stderr
    tracked.node("head", "sudo systemctl start gpubed-tracking.service")


def test_switched_off_it_leaves_its_data_alone(tracked):
    tracked.edit(lambda spec: spec["services"].pop("tracking"))
    tracked.call("up")
    for node in ("node-0", "node-1"):
        assert tracked.node(node, "sudo sh", LEFT) == ""
    assert "mlflow.db" in tracked.node("head", "sudo ls /shared/tracking")
