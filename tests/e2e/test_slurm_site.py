"""Jobs on another cluster's Slurm, as a researcher there without root: docs/how-to/slurm.md.

The other cluster is one of gpubed's own, with Slurm and an account; the login goes through OpenSSH
and an alias of its configuration.
"""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from support.blocks import blocks
from support.cluster import BIN, Cluster, unique

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]

SCRIPTS = Path(__file__).parent / "own_work"
POINTS = {
    "schema": "gpubed/campaign-file/1",
    "description": "Two learning rates; no measurement",
    "job": "digits",
    "factors": {"learning_rate": [0.002, 0.003]},
    "settings": {"epochs": 2},
}


class Desk(Cluster):
    """A project on a researcher's machine, whose OpenSSH knows the cluster's head as `uni`."""

    @property
    def environment(self):
        path = f"{self.root / 'bin'}{os.pathsep}{super().environment['PATH']}"
        return {**super().environment, "PATH": path}


@pytest.fixture(scope="module")
def site(docker, tmp_path_factory):
    """Three nodes with Slurm, and an account on them whose key is beside the project."""
    root = tmp_path_factory.mktemp("site")
    key = root / "alice"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    user = {"name": "alice", "ssh_keys": [key.with_suffix(".pub").read_text().strip()]}
    services = {"jupyterlab": None, "slurm": {"users": [user]}}
    made = Cluster(root, unique("site"), services=services, networks={})
    try:
        made.call("up")
        made.node("head", "sudo usermod --append --groups gpubed alice")  # who may read the wheels
        made.node("head", "sudo apt-get install -qy g++ make python3-dev")
        yield made
    finally:
        gpubed = str(BIN / "gpubed")
        subprocess.run([gpubed, "down", made.name, "-y"], env=made.environment, check=False)


@pytest.fixture(scope="module")
def desk(site, tmp_path_factory):
    """The researcher's project, up."""
    root = tmp_path_factory.mktemp("desk")
    head = site.json("status")["nodes"][0]["control_address"]
    (root / "ssh_config").write_text(
        f"Host uni\n HostName {head}\n User alice\n IdentityFile {site.root / 'alice'}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {site.state / 'known_hosts'}\n"
    )
    (root / "bin").mkdir()
    ssh = root / "bin" / "ssh"  # as ~/.ssh/config would be read
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {root / "ssh_config"} "$@"\n')
    ssh.chmod(0o755)
    # Wheels that the nodes have already need not be downloaded.
    setup = ["export PIP_CERT=/etc/ssl/certs/ca-certificates.crt"]
    setup += ["export GPUBED_WHEELS=/var/cache/gpubed/shared/python"]
    made = Desk(
        root,
        "uni",
        backend={"type": "slurm", "login": "uni", "setup": setup},
        nodes=[{"name": "node", "count": 3, "machine": {"cpus": 1}}],
        networks={},
        services={},
        lease={"duration": "20 min"},
    )
    made.folder = root / "my-training"
    made.folder.mkdir()
    for name, script in (("train.py", "ddp.py"), ("hvd.py", "hvd.py"), ("dies.py", "dies.py")):
        (made.folder / name).write_text((SCRIPTS / script).read_text())
    (made.folder / "points.yml").write_text(yaml.safe_dump(POINTS))
    made.first_up = made.call("up")
    return made


def typed(desk, line, rc=0):
    """Type a line in the researcher's folder; return what it says."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=desk.folder, env=desk.environment, capture_output=True, text=True
    )
    assert rc in (None, done.returncode), f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def alice(site, command):
    return site.node("head", f"sudo -i -u alice sh -c {json.dumps(command)}")


def wait_for(site, command, ready, seconds=120):
    deadline = time.monotonic() + seconds
    while not ready(said := alice(site, command).strip()):
        assert time.monotonic() < deadline, f"{command}: {said}"
        time.sleep(1)
    return said


def test_every_command_of_the_page_does_what_it_says(desk, site):
    """But `up`, which the fixture calls, and `down`, which comes last."""
    said = {}
    for block in blocks("docs/how-to/slurm.md"):
        for command in block.commands:
            if command.words.startswith(("gpubed up", "gpubed down", "cd ")):
                continue
            line = command.words.replace("init uni", "init anew")
            said[command.words] = typed(desk, line)
    assert "3 node(s)" in said["gpubed check uni"]
    assert "FAIL" not in said["gpubed doctor uni"]
    assert re.search(r"to start at .* on nodes? node-\[0-2\]", said["gpubed doctor uni"])
    assert re.search(r"\bmain\b.*\b3\b", said["gpubed resources uni"])
    assert "sbatch --nodes=3 --ntasks-per-node=1 --cpus-per-task=1 --time=20" in " ".join(
        said["gpubed plan uni"].split()
    )
    for program in ("python", "torchrun"):
        for rank in range(3):
            line = f"ddp: rank {rank} of 3, local 0, same weights: True"
            assert line in said[f"gpubed run uni -- {program} train.py"]
    assert "train: ok, world size 3" in said["gpubed run uni -- torchrun train.py"]
    assert "rank 0 of 3" in said["gpubed logs uni last"]
    assert "digits: ok, world size 3" in said["gpubed run uni digits"]
    points = desk.json("runs")["runs"]
    assert sum(run["job"] == "digits" and run["status"] == "ok" for run in points) == 3
    assert list(desk.state.glob("campaigns/points/report/*.html"))


def test_horovod_is_built_where_a_compiler_is(desk):
    assert "Horovod is left out" not in desk.first_up.stderr
    assert "hvd: rank 2 of 3" in typed(desk, "gpubed run uni -- python hvd.py")


def test_packages_of_the_folder_are_on_all_nodes(desk):
    (desk.folder / "requirements.txt").write_text("einops\n")
    try:
        said = typed(desk, "gpubed run uni -- python -c 'import einops; print(einops.__name__)'")
    finally:
        (desk.folder / "requirements.txt").unlink()
    assert said.count("einops") >= 3


def test_a_rank_that_fails_is_named_with_its_node(desk):
    document = json.loads(
        typed(desk, "gpubed run uni --json -- python dies.py key 2>/dev/null", rc=1)
    )
    assert document["cause"]["message"].startswith("rank 1 on node-1: KeyError: 'labels.csv'")


def at_work(desk, site, *states):
    process = desk.start("run", "uni", "digits", "--set", "epochs=99999")
    wait_for(site, "squeue --me -h -o %T", lambda said: said in (states or ("RUNNING",)))
    return process


def test_a_lost_node_is_named_and_the_run_fails(desk, site):
    process = at_work(desk, site)
    try:
        site.node("head", "sudo scontrol update nodename=node-2 state=down reason=test")
        assert process.wait(timeout=120) == 1
    finally:
        process.kill()
        # It may have come back by itself.
        site.node("head", "sudo scontrol update nodename=node-2 state=resume || true")
    last = json.loads(typed(desk, "gpubed runs uni show last --json"))
    assert last["cause"]["kind"] == "node_lost"
    assert re.fullmatch(r"node-2 failed, and job \d+ with it", last["cause"]["message"])


def test_status_says_why_a_job_waits_and_ctrl_c_cancels_it(desk, site):
    site.node("head", "sudo scontrol update nodename=node-2 state=drain reason=test")
    process = at_work(desk, site, "PENDING")
    try:
        [row] = desk.json("status")["jobs"]
        assert row["state"] == "PENDING"
        assert row["reason"]
        process.send_signal(2)
        assert process.wait(timeout=90) == 130
    finally:
        process.kill()
        site.node("head", "sudo scontrol update nodename=node-2 state=resume")
    assert alice(site, "squeue --me -h") == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"partition": "gpus"}, r"no partition gpus; there are: main"),
        ({"account": "robots"}, r"you may not use account robots; there are: "),
        ({"qos": "urgent"}, r"you may not use qos urgent; there are: "),
        ({"login": "nowhere.invalid"}, r"the login to nowhere.invalid fails: .*resolve"),
        ({"login": "bob@uni"}, r"the login to bob@uni fails: .*Permission denied"),
        ({"folder": "/proc/gpubed"}, r"/proc/gpubed: "),
    ],
)
def test_bad_options_are_refused_with_what_there_is(desk, change, says):
    def merged(spec):
        spec["backend"].update(change)

    before = desk.spec
    desk.edit(merged)
    try:
        said = desk.call("doctor", rc=3).stdout
    finally:
        desk.write(before)
    assert re.search(says, " ".join(said.split())), said


def test_more_gpus_than_a_node_has_are_refused(desk):
    before = desk.spec
    desk.write({**before, "nodes": [{**before["nodes"][0], "gpus": 2}], "recipe": "cuda13"})
    try:
        assert "has 2 GPU(s); the largest has 0" in desk.json("plan", rc=4)["obstacles"][0]
    finally:
        desk.write(before)


def test_down_removes_what_a_killed_run_left(desk, site):
    process = at_work(desk, site)
    process.kill()
    process.wait()
    assert len(desk.json("status")["jobs"]) == 1
    done = desk.json("down", "-y")
    assert done["survivors"] == []
    assert [name for name in done["removed"] if name.startswith("job gpubed.")]
    assert alice(site, "squeue --me -h") == ""
    assert alice(site, "ls -A gpubed") == ""
    assert list(desk.state.glob("runs/*/run.json")), "results stay"
