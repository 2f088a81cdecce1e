"""Slurm is switched on, shared by researchers, and switched off again."""

import re
import socket
import subprocess
import time
from contextlib import suppress

import pytest

from support.own_work import WAYS, Researcher

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]

USERS = [
    {"name": "alice", "ssh_keys": []},
    {"name": "bob", "ssh_keys": []},
    {"name": "carol"},
    {"name": "dave", "max_cpus": 1},
]
WHOLE = "--nodes=3 --exclusive --output=/dev/null"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The private keys of those who have one, by name; each on a desk of its own."""
    folder = tmp_path_factory.mktemp("desks")
    for user in USERS:
        if "ssh_keys" in user:
            key = folder / user["name"]
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(make, check=True)
            user["ssh_keys"] = [key.with_suffix(".pub").read_text().strip()]
    return {user["name"]: folder / user["name"] for user in USERS if "ssh_keys" in user}


@pytest.fixture(scope="module")
def shared(cluster, keys):
    """The cluster with Slurm; as it was, afterwards."""
    cluster.edit(lambda spec: spec["services"].update(slurm={"users": USERS}))
    cluster.call("up")
    yield cluster
    if "slurm" in cluster.spec["services"]:
        cluster.edit(lambda spec: spec["services"].pop("slurm"))
        cluster.call("up")


def as_user(cluster, name, command):
    """Run a command on the head as a researcher; return all that it says."""
    return cluster.node("head", f"sudo -u {name} sh -c 'cd /shared/home/{name} && {command}' 2>&1")


def door(cluster, key, node="node-0"):
    """Return the words of `ssh` with which a researcher comes from a desk, without a command."""
    addresses = {n["name"]: n["control_address"] for n in cluster.json("status")["nodes"]}
    options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes"]
    options.append(f"UserKnownHostsFile={cluster.state / 'known_hosts'}")
    words = ["ssh", "-F", "none", "-i", str(key), *(f"-o{option}" for option in options)]
    return words, f"{key.name}@{addresses[node]}"


def from_desk(cluster, key, command, node="node-0"):
    words, whom = door(cluster, key, node)
    return subprocess.run([*words, whom, command], capture_output=True, text=True, check=False)


def wait_for(cluster, command, ready, seconds=120):
    deadline = time.monotonic() + seconds
    while not ready(said := cluster.node("head", command).strip()):
        assert time.monotonic() < deadline, f"{command}: {said}"
        time.sleep(1)
    return said


def fair_shares(cluster):
    lines = cluster.node("head", "sshare -a --noheader --parsable2 --format=user,fairshare")
    return {user: float(share or 0) for user, share in (row.split("|") for row in lines.split())}


def test_its_checks_pass(shared):
    checks = shared.json("verify")["verification"]["checks"]
    found = {(c["id"], c["result"]) for c in checks if c["id"].startswith("slurm.")}
    assert found == {
        ("slurm.munge", "pass"),
        ("slurm.node", "pass"),
        ("slurm.gpus", "skip"),
        ("slurm.step", "pass"),
    }


def test_who_has_used_less_goes_first(shared):
    as_user(shared, "alice", f'sbatch --wait {WHOLE} --wrap "sleep 20"')
    as_user(shared, "bob", 'sbatch --wait --output=/dev/null --wrap "sleep 5"')
    # Usage is booked when a job ends, and weighed once a minute.
    for _ in range(150):
        share = fair_shares(shared)
        if share["alice"] < share["bob"] < share["carol"]:
            break
        time.sleep(1)
    else:
        pytest.fail(f"Slurm does not weigh what was used: {share}")
    # All nodes are taken until the three wait, the one who used most in front.
    shared.node("head", f"cd /tmp && sbatch {WHOLE} --job-name=blocker --wrap 'sleep 300'")
    wait_for(shared, "squeue -h --name=blocker -o %T", "RUNNING".__eq__)
    for name in ("alice", "bob", "carol"):
        as_user(shared, name, f'sbatch {WHOLE} --job-name=turn --wrap "sleep 2"')
    priorities = wait_for(
        shared, "sprio --noheader --format='%Y %u'", lambda said: len(said.splitlines()) == 3
    )
    by_priority = sorted((int(row.split()[0]), row.split()[1]) for row in priorities.splitlines())
    assert [name for _, name in reversed(by_priority)] == ["carol", "bob", "alice"]
    shared.node("head", "scancel --name=blocker")
    wait_for(shared, "squeue -h --name=turn", "".__eq__)
    started = shared.node(
        "head", "sacct -aX --noheader --name=turn --format=start,user --parsable2"
    )
    order = [row.split("|")[1] for row in sorted(started.splitlines())]
    assert order == ["carol", "bob", "alice"]


def test_one_beyond_the_quota_is_refused_and_told_why(shared):
    said = as_user(shared, "dave", "sbatch --ntasks=2 --wrap true || true")
    assert "AssocGrpCpuLimit" in said
    assert "violates accounting/QOS policy" in said


def test_a_researchers_horovod_job_runs_under_srun_on_three_nodes(shared):
    program = (
        "import horovod.torch as hvd, os, torch; hvd.init(); "
        "total = hvd.allreduce(torch.ones(1), op=hvd.Sum); "
        "print(hvd.rank(), hvd.size(), os.uname().nodename, int(total))"
    )
    shared.node("head", "sudo -u carol tee /shared/home/carol/job.py", program)
    as_user(
        shared,
        "carol",
        "sbatch --wait --nodes=3 --ntasks-per-node=1 --output=job.out "
        '--wrap "gpubed-srun -- python job.py" || cat job.out',
    )
    said = shared.node("head", "sudo cat /shared/home/carol/job.out")
    assert sorted(said.splitlines()) == [f"{i} 3 node-{i} 3" for i in range(3)]


def test_researchers_come_in_with_their_own_keys_to_the_head_only(shared, keys):
    said = from_desk(shared, keys["bob"], "sbatch --parsable --output=/dev/null --wrap true")
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip().isdigit()
    refused = from_desk(shared, keys["bob"], "true", node="node-1")
    assert "Permission denied" in refused.stderr
    borrowed = keys["bob"].rename(keys["bob"].with_name("carol"))
    try:
        assert "Permission denied" in from_desk(shared, borrowed, "true").stderr
    finally:
        borrowed.rename(keys["bob"])


def test_a_researchers_own_jupyterlab_is_a_job_and_is_reached_through_the_tunnel(shared, keys):
    started = from_desk(shared, keys["alice"], "gpubed-jupyter --nodelist=node-1")
    assert started.returncode == 0, started.stderr
    said = started.stdout
    forwarding, whom = re.search(r"ssh -N -L (\S+) (alice@[\d.]+)$", said, re.M).groups()
    url = re.search(r"https://localhost:\d+/lab\?token=\w+", said)[0]
    certificate = re.search(r"certificate: +(\S+)", said)[1]
    trusted = keys["alice"].with_suffix(".crt")
    trusted.write_text(from_desk(shared, keys["alice"], f"cat {certificate}").stdout)
    words, head = door(shared, keys["alice"])
    assert whom == head
    tunnel = subprocess.Popen([*words, "-N", "-oExitOnForwardFailure=yes", "-L", forwarding, whom])
    try:
        _await_port(int(forwarding.split(":")[0]), tunnel)
        answers = [
            _answer(url.replace("/lab?", "/api/status?") + added, trusted) for added in ("", "x")
        ]
    finally:
        tunnel.terminate()
        tunnel.wait()
    assert answers == ["200", "403"]
    token = url.rpartition("=")[2]
    listed = shared.node("head", "squeue -h -o '%u %j %T %N'").strip()
    assert listed == "alice jupyter RUNNING node-1"
    assert "alice" in shared.node("node-1", "ps -C jupyter-lab -o user=")
    assert token not in shared.node("node-1", "ps -e -o args")
    assert shared.node("head", f"sudo stat -c %a {certificate}").strip() == "600"
    as_user(shared, "alice", "scancel --name=jupyter")
    wait_for(shared, "squeue -h", "".__eq__)
    wait_for(shared, f"sudo ls {certificate} 2>/dev/null || true", "".__eq__)


def _await_port(port, process):
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return
        time.sleep(0.2)
    pytest.fail("the tunnel does not stand")


def _answer(url, certificate):
    """Return the HTTP status; the token comes by a file, as it should."""
    ask = ["curl", "-sS", "--noproxy", "*", "--cacert", str(certificate), "-o", "/dev/null"]
    done = subprocess.run(
        [*ask, "-w", "%{http_code}", "-K", "-"],
        input=f'url = "{url}"',
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_launcher_brings_the_results_back(shared):
    result = shared.json("run", "digits", "--launcher", "slurm")
    assert (result["status"], result["world_size"]) == ("ok", 3)
    assert result["metrics"]["test_accuracy"] >= 0.97


@pytest.fixture
def own(shared, tmp_path):
    return Researcher(shared, tmp_path / "mine")


@pytest.mark.parametrize("program", ["python", "torchrun"])
def test_a_script_of_torch_distributed_runs_in_the_queue(own, shared, program):
    done = own("run", shared.name, "--launcher", "slurm", "--", program, "ddp.py")
    for rank in range(3):
        assert f"ddp: rank {rank} of 3, local 0, same weights: True" in done.stdout + done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_run_in_the_queue_that_fails_names_its_cause(own, way):
    own.fails(way, "--launcher", "slurm")


def test_a_researchers_packages_are_found_on_all_nodes_and_by_no_other(shared):
    program = "import importlib.util\nprint(bool(importlib.util.find_spec('einops')))\n"
    as_user(shared, "carol", "gpubed-pip install --quiet einops")
    for user, found in (("carol", "True"), ("bob", "False")):
        shared.node("head", f"sudo -u {user} tee /shared/home/{user}/find.py", program)
        as_user(
            shared,
            user,
            "sbatch --wait --nodes=3 --ntasks-per-node=1 --output=find.out "
            '--wrap "gpubed-srun -- python find.py"',
        )
        said = shared.node("head", f"sudo cat /shared/home/{user}/find.out")
        assert said.split() == [found] * 3


def test_ctrl_c_leaves_nothing_in_the_queue(shared):
    process = shared.start(
        "run", shared.name, "digits", "--launcher", "slurm", "--set", "epochs=9999"
    )
    try:
        wait_for(shared, "squeue -h -o %T", "RUNNING".__eq__)
        process.send_signal(2)
        assert process.wait(timeout=90) == 130
    finally:
        process.kill()
    assert shared.node("head", "squeue -h") == ""
    assert "main.py" not in shared.node("node-1", "ps -e -o args")


def test_a_node_with_another_munge_key_is_named(shared):
    shared.node(
        "node-1",
        "sudo sh -c 'head -c 64 /dev/urandom >/etc/munge/munge.key && systemctl restart munge'",
    )
    checks = shared.json("verify", rc=1)["verification"]["checks"]
    refused = [c for c in checks if c["id"] == "slurm.munge" and c["result"] == "fail"]
    assert [check["node"] for check in refused] == ["node-1"]
    assert "Invalid credential" in refused[0]["reason"]
    shared.call("configure", "--tags", "slurm")
    assert "Success" in shared.node("node-1", "munge -n | ssh node-0 unmunge | head -1")


def test_one_who_leaves_loses_account_and_user_but_no_home(shared):
    shared.edit(lambda spec: spec["services"]["slurm"]["users"].pop())
    shared.call("up")
    for node in ("head", "node-1"):
        assert "absent" in shared.node(node, "getent passwd dave || echo absent")
    assert "dave" not in shared.node("head", "sudo sacctmgr -nP show assoc format=user")
    assert shared.node("head", "sudo ls -d /shared/home/dave").strip() == "/shared/home/dave"


def test_switched_off_nothing_is_left(shared):
    shared.edit(lambda spec: spec["services"].pop("slurm"))
    shared.call("up")
    for node in ("head", "node-1"):
        tools = "/usr/local/bin/gpubed-srun /usr/local/bin/gpubed-jupyter"
        # No package is purged, so its own settings stay.
        ours = f"$(find /etc/slurm -type f ! -name plugstack.conf) /etc/gpubed/slurm {tools}"
        left = f"ls -d {ours} /usr/sbin/slurmd"
        assert shared.node(node, f"{left} 2>/dev/null || true") == ""
        assert "absent" in shared.node(node, "getent passwd alice || echo absent")
        daemons = "ps -e -o comm | grep -E 'slurm|munge|mariadb' || true"
        assert shared.node(node, daemons) == ""
    assert "nothing to change" in shared.call("up").stderr
