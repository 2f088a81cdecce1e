"""Three servers keep a group's streams; job ingest makes datasets of them through every kill.

As docs/how-to/streams.md shows.
"""

import json
import subprocess
import time

import pytest

from support.cluster import BIN, Cluster, unique

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.services]

MANY = 100_000
CONNECT = """
import asyncio, hashlib, json, ssl, sys
from pathlib import Path
import nats

me = json.loads(Path("~/.config/gpubed/streams.json").expanduser().read_text())
tls = ssl.create_default_context(cafile=me["ca"])
login = {"user": me["user"], "password": me["password"]}
"""
PUBLISH = (
    CONNECT
    + """
async def main(name, count, size):
    async with await nats.connect(me["servers"], tls=tls, **login) as connection:
        js = connection.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.*"], **me["stream"])
        for first in range(0, count, 2000):
            sent = []
            for number in range(first, min(first + 2000, count)):
                content = f"{number}".rjust(size).encode()
                checksum = hashlib.sha256(content).hexdigest()
                sent.append(
                    await js.publish_async(
                        f"{name}.x", content, headers={"checksum": checksum, "class": "a"}
                    )
                )
            await asyncio.gather(*sent)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""
)
LOOK = (
    CONNECT
    + """
async def main(name):
    login.update(json.loads(sys.argv[2]))
    try:
        async with await nats.connect(
            me["url"], tls=tls, allow_reconnect=False, **login
        ) as connection:
            print((await connection.jetstream().stream_info(name)).state.messages)
    except (nats.errors.Error, nats.js.errors.Error) as error:
        print(error)

asyncio.run(main(sys.argv[1]))
"""
)
FILL = (
    CONNECT
    + """
async def main():
    async with await nats.connect(me["url"], tls=tls, **login) as connection:
        js = connection.jetstream()
        await js.add_stream(name="large", subjects=["large.*"], **me["stream"])
        try:
            for _ in range(200):
                await js.publish("large.x", bytes(700_000))
        except nats.js.errors.Error as error:
            print(error)

asyncio.run(main())
"""
)
SPOIL = (
    CONNECT
    + """
async def main(name):
    async with await nats.connect(me["url"], tls=tls, **login) as connection:
        js = connection.jetstream()
        await js.publish(f"{name}.x", b"spoilt", headers={"checksum": "0" * 64})
        await js.publish(f"{name}.x", b"whole")

asyncio.run(main(sys.argv[1]))
"""
)


@pytest.fixture(scope="module")
def streams(docker, tmp_path_factory):
    """Three nodes with three servers and two researchers."""
    services = {
        "jupyterlab": None,
        "slurm": {"users": [{"name": "alice"}, {"name": "bob"}]},
        "streams": {"replicas": 3, "quota": "64 MiB"},
    }
    made = Cluster(tmp_path_factory.mktemp("project"), unique("streams"), services=services)
    try:
        made.call("up")
        made.node(
            "head",
            "python3 -m venv /tmp/client && /tmp/client/bin/pip -q install nats-py==2.16.0 && "
            "chmod -R a+rX /tmp/client",
        )
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


def python(cluster, program, *words, user="gpubed"):
    given = " ".join(f"'{word}'" for word in words)
    asked = f"cd / && sudo -H -u {user} timeout 120 /tmp/client/bin/python - {given} 2>&1"
    # Python's own remark about TLS.
    command = f"{asked} | grep -v eof_received || true"
    return cluster.node("head", command, program)


def last(cluster, name):
    shown = cluster.node(
        "head", f"cat /shared/datasets/{name}/dataset.json 2>/dev/null || echo {{}}"
    )
    return json.loads(shown).get("last_sequence", 0)


def ingest(cluster, name, on):
    words = ["--on", on, "--set", f"stream={name}", "--set", f"dataset={name}"]
    return cluster.start(
        "run", cluster.name, "ingest", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def reaches(cluster, name, number, seconds=120):
    deadline = time.monotonic() + seconds
    while last(cluster, name) < number:
        assert time.monotonic() < deadline, last(cluster, name)
        time.sleep(0.2)


def test_verify_sees_three_servers_that_refuse_strangers(streams):
    checks = streams.json("verify")["verification"]["checks"]
    found = [(c["id"], c["result"]) for c in checks if c["id"].startswith("streams.")]
    wanted = ("streams.replicas", "streams.stranger", "streams.tls")
    assert sorted(found) == [(id_, "pass") for id_ in wanted for _ in range(3)]


def test_a_researcher_does_not_read_the_figures(streams):
    ask = "curl --silent --noproxy '*' -o /dev/null -w '%{http_code}' http://127.0.0.1:8222"
    for path in ("/", "/jsz", "/connz"):
        assert streams.node("head", f"sudo -u bob {ask}{path}") == "404"


def test_none_is_lost_and_none_is_twice_through_three_kills(streams):
    python(streams, PUBLISH, "many", MANY, 6)
    job = ingest(streams, "many", "node-1")
    reaches(streams, "many", 10_000)
    streams.node("node-1", "sudo pkill -9 -f 'main.py --stream=?many' || sudo pkill -9 -f main.py")
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 1, said
    first = last(streams, "many")
    assert first < MANY
    job = ingest(streams, "many", "node-1")
    reaches(streams, "many", first + 10_000)
    streams.node("node-2", "sudo systemctl kill --signal=KILL nats-server.service")
    reaches(streams, "many", last(streams, "many") + 10_000)
    label = f"label=gpubed.name={streams.name}"
    shown = ["docker", "ps", "--filter", label, "--format", "{{.Names}}"]
    names = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    node = next(name for name in names if name.endswith("node-1"))
    subprocess.run(["docker", "kill", node], check=True, capture_output=True)
    job.communicate(timeout=300)
    assert job.returncode == 1
    assert last(streams, "many") < MANY
    streams.call("up")
    said, _ = ingest(streams, "many", "node-1").communicate(timeout=300)
    assert last(streams, "many") == MANY, said
    streams.node("head", "cd /shared/datasets/many && sha256sum --quiet --check SHA256SUMS")
    # Each number is the content of the message after it.
    listed = (
        "import glob, tarfile\n"
        "for name in sorted(glob.glob('/shared/datasets/many/*.tar')):\n"
        "    with tarfile.open(name) as shard:\n"
        "        for one in shard:\n"
        "            if one.name.endswith('.bin'):\n"
        "                print(int(one.name[:-4]), int(shard.extractfile(one).read()))\n"
    )
    rows = streams.node("head", "python3 -", listed).splitlines()
    assert rows == [f"{number + 1} {number}" for number in range(MANY)]


def test_a_message_with_a_wrong_checksum_goes_to_another_stream(streams):
    python(streams, PUBLISH, "few", 10, 1)
    python(streams, SPOIL, "few")
    done = streams.json(
        "run", "ingest", "--ranks", "1", "--set", "stream=few", "--set", "dataset=few"
    )
    assert (done["metrics"]["messages"], done["metrics"]["dead_messages"]) == (11, 1)
    assert python(streams, LOOK, "few-dead", "{}").strip() == "1"


def test_researchers_have_streams_of_their_own(streams):
    assert python(streams, PUBLISH, "own", 5, 1, user="alice") == ""
    assert python(streams, LOOK, "own", "{}", user="alice").strip() == "5"
    assert "stream not found" in python(streams, LOOK, "own", "{}", user="bob")
    assert "Authorization" in python(streams, LOOK, "own", '{"user": "alice"}', user="bob")


def test_a_full_account_is_told_so(streams):
    said = python(streams, FILL, user="bob")
    assert "resource limits exceeded for account" in said
    assert python(streams, LOOK, "own", "{}", user="alice").strip() == "5"


def test_another_number_of_servers_is_refused_while_there_are_streams(streams):
    streams.edit(lambda spec: spec["services"]["streams"].update(replicas=1))
    refused = streams.call("up", rc=1).stderr
    assert "servers would not find; they were not touched" in " ".join(refused.split())
    streams.edit(lambda spec: spec["services"]["streams"].update(replicas=3))
    assert python(streams, LOOK, "own", "{}", user="alice").strip() == "5"
    for node in ("node-0", "node-1", "node-2"):
        streams.node(node, "systemctl is-active nats-server")


def test_switched_off_it_leaves_the_data_folder_alone(streams):
    streams.edit(lambda spec: spec["services"].pop("streams"))
    streams.call("up")
    for node in ("node-0", "node-1", "node-2"):
        left = streams.node(
            node,
            "ls -d /etc/gpubed/streams /etc/systemd/system/nats-server*/* /usr/sbin/nats-server "
            "/etc/nats-server.conf ~/.config/gpubed 2>/dev/null; pgrep -l nats; "
            "ss -Hltn | grep -E ':(4222|6222|8222) '; "
            "sudo ls /shared/home/*/.config/gpubed 2>/dev/null; ls -d /var/lib/gpubed-streams",
        )
        assert left.split() == ["/var/lib/gpubed-streams"]
