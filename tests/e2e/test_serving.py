"""A registered model is served, over HTTP and from a stream to another; of serve.md."""

import http.client
import json
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from support.cluster import BIN, Cluster, unique

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.services]

MANY, BATCH = 10_000, 100
# Images of the test set, which no run has trained on, and what is on them.
DIGITS = """
import json
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
import sys
digits = load_digits()
_, test = train_test_split(range(len(digits.target)), test_size={share}, random_state={seed},
                           stratify=digits.target)
print(json.dumps([digits.data[test].tolist(), digits.target[test].tolist()]))
"""
# The same model in a loop by hand: an image a call, and a batch a call.
BY_HAND = """
import mlflow, numpy, time
model = mlflow.pyfunc.load_model("models:/digits/1")
for rows in (1, {batch}):
    images, start, calls = numpy.zeros((rows, 64), "float32"), time.monotonic(), 0
    while time.monotonic() < start + 5:
        model.predict({call})
        calls += 1
    print(calls * rows / (time.monotonic() - start))
"""
CONNECT = """
import asyncio, json, ssl, sys
from pathlib import Path
import nats
me = json.loads(Path("~/.config/gpubed/streams.json").expanduser().read_text())
tls = ssl.create_default_context(cafile=me["ca"])
login = {"tls": tls, "user": me["user"], "password": me["password"]}
"""
PUBLISH = (
    CONNECT
    + """
async def main(bodies):
    async with await nats.connect(me["url"], **login) as connection:
        js = connection.jetstream()
        await js.add_stream(name="images", subjects=["images"], **me["stream"])
        for first in range(0, len(bodies), 500):
            some = bodies[first:first + 500]
            await asyncio.gather(*(js.publish("images", body.encode()) for body in some))
asyncio.run(main(json.loads(Path("/tmp/bodies.json").read_text())))
"""
)
READ = (
    CONNECT
    + """
async def main(name):
    async with await nats.connect(me["url"], **login) as connection:
        js, found = connection.jetstream(), []
        info = await js.stream_info(name)
        pulled = await js.pull_subscribe("", durable=f"read-{name}", stream=name)
        while len(found) < info.state.messages:
            for message in await pulled.fetch(500, timeout=5):
                found.append([message.headers, message.data.decode(errors="replace")])
                await message.ack()
        print(json.dumps(found))
asyncio.run(main(sys.argv[1]))
"""
)
COUNT = (
    CONNECT
    + """
async def main(name):
    async with await nats.connect(me["url"], **login) as connection:
        print((await connection.jetstream().stream_info(name)).state.messages)
asyncio.run(main(sys.argv[1]))
"""
)
# A model in a folder of the account that serves, which whoever registers it may choose.
OUTSIDE = """
import mlflow
client = mlflow.MlflowClient()
experiment = client.create_experiment("outside", "file:///home/gpubed")
run = client.create_run(experiment)
client.set_tag(run.info.run_id, "gpubed.environment", "/shared/env/current")
client.create_registered_model("outside")
client.create_model_version("outside", run.info.artifact_uri + "/.ssh", run.info.run_id)
"""
LEFT = """
getent passwd gpubed-serving
ps -eo args | grep -E '^[^ ]*python[^ ]* .*gpubed_serving|^/usr/sbin/haproxy.*serving/proxy.cfg'
ls -d /etc/gpubed/serving /etc/gpubed/leave.d/serving /etc/systemd/system/gpubed-serving* \
  /usr/local/lib/gpubed/gpubed_serving /run/gpubed-serving.sock 2>/dev/null
squeue -h
ss -Hltn 'sport = :8443'
true
"""


@pytest.fixture(scope="module")
def served(docker, tmp_path_factory):
    """Two nodes with a model that is registered twice, as docs/how-to/serve.md has them."""
    nodes = [{"name": "node", "count": 2, "machine": {"cpus": 2, "memory": "5 GiB"}}]
    services = {"jupyterlab": None, "slurm": {}, "tracking": {}, "streams": {}, "serving": {}}
    root = tmp_path_factory.mktemp("project")
    made = Cluster(root, unique("serve"), nodes=nodes, services=services)
    try:
        made.json("up")
        made.node("head", "gpubed-pip install --quiet nats-py==2.16.0")
        for epochs in (30, 20):
            words = ["--set", f"epochs={epochs}", "--set", "register=digits"]
            made.runs = [*getattr(made, "runs", []), made.json("run", "digits", *words)]
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


@pytest.fixture(scope="module")
def digits(served):
    """Images and labels of the first run's test set, again and again."""
    images, labels = json.loads(python(served, DIGITS.format(share=0.2, seed=1)).splitlines()[-1])
    often = MANY // len(labels) + 1
    return (images * often)[:MANY], (labels * often)[:MANY]


def python(cluster, program, *words):
    """Run a program in the cluster's Python, as a login has it."""
    return cluster.node("head", f"bash -lc 'cd && gpubed-rank python - {' '.join(words)}'", program)


def request(images):
    data = [pixel for image in images for pixel in image]
    tensor = {"name": "images", "datatype": "FP32", "shape": [len(images), 64], "data": data}
    return json.dumps({"inputs": [tensor]})


class Client:
    """A connection to the head, as a program of a user's has it."""

    def __init__(self, cluster):
        ways = cluster.json("serve", "--status")
        host, _, port = ways["url"].removeprefix("https://").removesuffix("/v2").partition(":")
        context = ssl.create_default_context(cafile=ways["certificate"])
        self.connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        token = Path(ways["token_file"]).read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}

    def ask(self, path, body=None, **headers):
        method = "POST" if body else "GET"
        self.connection.request(method, path, body, self.headers | headers)
        reply = self.connection.getresponse()
        return reply.status, json.loads(reply.read())

    def score(self, images):
        status, said = self.ask("/v2/models/digits/infer", request(images))
        assert status == 200, said
        return said["outputs"][0]["data"]


class Load:
    """Requests from several connections, until it is left; `failed` has what was no answer."""

    def __init__(self, cluster, rows=10, threads=4):
        self.rows, self.failed, self.versions, self.done = rows, [], {}, 0
        self.ends = threading.Event()
        clients = [Client(cluster) for _ in range(threads)]
        self.threads = [threading.Thread(target=self._ask, args=(client,)) for client in clients]

    def __enter__(self):
        self.start = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        self.rate = self.done / (time.monotonic() - self.start)

    def _ask(self, client):
        body = request([[0.0] * 64] * self.rows)
        while not self.ends.is_set():
            try:
                status, said = client.ask("/v2/models/digits/infer", body)
                version = said["model_version"] if status == 200 else None
            except (OSError, http.client.HTTPException) as error:
                status, said, version = None, repr(error), None
            if version is None:
                self.failed.append((status, said))
            else:
                self.versions[version] = self.versions.get(version, 0) + 1
                self.done += self.rows


def accuracy(found, labels):
    return sum(int(a) == b for a, b in zip(found, labels, strict=True)) / len(labels)


def wait_for(look, wanted, seconds=180):
    deadline = time.monotonic() + seconds
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(2)


def test_it_answers_as_the_registry_says(served, digits):
    images, labels = digits
    shown = served.json("serve", "digits@1", "--replicas", "2")
    assert [t["ready"] for t in shown["models"]["digits"]["tracks"]] == [2]
    client = Client(served)
    found = [
        digit
        for first in range(0, MANY, BATCH)
        for digit in client.score(images[first : first + BATCH])
    ]
    stated = served.runs[0]["metrics"]["test_accuracy"]
    assert accuracy(found, labels) == pytest.approx(stated, abs=0.005)


def test_its_checks_pass_and_a_wrong_token_is_refused(served):
    checks = served.json("verify")["verification"]["checks"]
    found = {c["id"]: c["result"] for c in checks if c["id"].startswith("serving.")}
    assert found == dict.fromkeys(("serving.tls", "serving.wrong_token", "serving.ready"), "pass")
    client = Client(served)
    assert client.ask("/v2/models/digits", Authorization="Bearer wrong")[0] == 401
    assert client.ask("/v2/models/other")[0] == 404
    assert client.ask("/v2/models/digits")[1]["inputs"][0]["shape"] == [-1, 64]
    assert client.ask("/v2/models/digits/infer", "no JSON")[0] == 400


def test_models_run_as_an_account_that_has_nothing(served):
    def by_model(command):
        return served.node("head", f"sudo runuser -u gpubed-serving -- {command} 2>&1; echo $?")

    replicas = "ps -eo user:20,args | grep '[g]pubed_serving.replica'"
    running = served.node("head", replicas).splitlines()
    assert {line.split()[0] for line in running} == {"gpubed-serving"}
    for command in (
        "ls /home/gpubed/.ssh",
        "ls /shared/runs",
        "cat /home/gpubed/.mlflow/credentials",
    ):
        assert "Permission denied" in by_model(command)
    assert by_model("sudo -n true")[-2:] != "0\n"
    assert "Permission denied" in by_model("touch /shared/serving/files/mine")


def test_a_replica_answers_the_proxy_alone(served):
    replicas = served.node("head", "sudo sh -c 'cat /shared/serving/state/replicas/*.json'")
    one = json.JSONDecoder().raw_decode(replicas)[0]
    url = f"https://{one['address']}:{one['port']}/v2/health/ready"
    own = "--cert /etc/gpubed/serving/replica.pem"
    assert '"ready":true' in served.node("head", f"sudo curl -sk {own} {url}")
    assert "ready" not in served.node("head", f"curl -sk {url}; true")


def test_its_throughput_is_that_of_a_loop_by_hand(served):
    call = (
        "{'images': images}"
        if Client(served).ask("/v2/models/digits")[1]["inputs"][0]["name"] == "images"
        else "images"
    )
    said = python(served, BY_HAND.format(batch=BATCH, call=call)).split()
    one, many = map(float, said[-2:])
    with Load(served, rows=BATCH) as load:
        time.sleep(15)
    track = served.json("serve", "--status")["models"]["digits"]["tracks"][0]
    print(  # noqa: T201  for serve.md
        f"by hand: {one:.0f} images/s one by one, {many:.0f} in batches of {BATCH}; served: "
        f"{load.rate:.0f} in requests of {BATCH}, p50 {track['p50_s']}, p99 {track['p99_s']}"
    )
    assert not load.failed
    assert load.rate >= 0.8 * one


def test_update_canary_and_rollback_fail_no_request(served):
    with Load(served) as load:
        served.json("serve", "digits@2", "--replicas", "2")
        time.sleep(3)
        served.json("serve", "digits", "--rollback")
        time.sleep(3)
        served.json("serve", "digits@2", "--canary", "10", "--replicas", "1")
        load.versions.clear()
        time.sleep(10)
    assert load.failed == []
    share = load.versions["2"] / sum(load.versions.values())
    assert share == pytest.approx(0.1, abs=0.03)
    served.json("serve", "digits", "--rollback")


def test_a_stream_is_scored_through_an_update_and_bad_messages_are_put_aside(served, digits):
    images, labels = digits
    bodies = [request([image]) for image in images]
    bodies.insert(5000, "this is no image")
    served.node("head", "cat > /tmp/bodies.json", json.dumps(bodies))
    python(served, PUBLISH)
    served.json("serve", "digits@2", "--from", "images", "--to", "scored", "--replicas", "1")
    served.json("serve", "digits@1", "--from", "images", "--to", "scored", "--replicas", "2")
    wait_for(lambda: int(python(served, COUNT, "scored").split()[-1]), MANY)
    scored = json.loads(python(served, READ, "scored").splitlines()[-1])
    by_number = {int(h["Gpubed-Source"].split(":")[1]): json.loads(body) for h, body in scored}
    assert len(by_number) == len(scored) == MANY
    found = [by_number[number]["outputs"][0]["data"][0] for number in sorted(by_number)]
    stated = min(run["metrics"]["test_accuracy"] for run in served.runs)
    assert accuracy(found, labels) >= stated - 0.005
    ((headers, body),) = json.loads(python(served, READ, "images-dead").splitlines()[-1])
    assert body == "this is no image"
    assert "nor an image" in headers["Gpubed-Reason"]


def test_what_cannot_be_served_is_told(served):
    said = served.call("serve", "digits@9", rc=1).stderr
    assert "digits@9 is not served" in said
    assert "there are digits@1, digits@2" in said
    said = served.call("serve", "other@1", rc=1).stderr
    assert "other@1 is not served" in said
    assert "registered models: digits" in said
    before = served.json("serve", "--status")["models"]["digits"]["revision"]
    said = served.call("serve", "digits@1", "--cpus", "99", rc=1).stderr
    assert "Requested node configuration is not available" in said
    assert served.json("serve", "--status")["models"]["digits"]["revision"] == before
    python(served, OUTSIDE)
    assert "not on the tracking server" in served.call("serve", "outside@1", rc=1).stderr
    python(
        served,
        "import mlflow; c = mlflow.MlflowClient(); v = c.get_model_version('digits', 2);"
        "c.set_tag(v.run_id, 'gpubed.environment', '/shared/env/broken')",
    )
    assert "/shared/env/broken is gone" in served.call("serve", "digits@2", rc=1).stderr
    served.node("head", "python3 -m venv --without-pip /shared/env/broken")
    said = served.call("serve", "digits@2", rc=1).stderr
    assert "No module named" in said
    assert "--rollback" in said
    assert Client(served).score([[0.0] * 64])
    served.json("serve", "digits", "--rollback")
    said = served.call("serve", "digits@1", "--cpus", "2", "--replicas", "4", rc=1).stderr
    assert "waits in Slurm's queue" in said


def test_it_goes_without_trace(served):
    served.edit(lambda spec: spec["services"].pop("serving"))
    served.call("up")
    for node in ("head", "node-1"):
        assert served.node(node, LEFT) == ""
