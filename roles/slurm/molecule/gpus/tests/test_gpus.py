"""Who gets which GPU: node-0 has three and is asked for two, node-1 has one of another model."""

import json

import pytest

HEAD = "node-0"
SLOTS = json.dumps([{"local_size": 1, "local_rank": rank} for rank in (0, 1, 0)])
SAY = 'echo "$SLURMD_NODENAME gpu=$GPUBED_GPU hca=$GPUBED_HCA visible=$CUDA_VISIBLE_DEVICES"'
RANK = f"export GPUBED_SLOTS='{SLOTS}'; srun gpubed-srun --rank sh -c '{SAY}; %s'"


@pytest.fixture
def head(host):
    if host.check_output("hostname") != HEAD:
        pytest.skip("jobs are submitted on the head")
    return host


def submit(head, script, options, user="alice"):
    """Queue a script; return its number."""
    path = f"/shared/home/{user}/job.sh"
    head.run_expect([0], f"cat > {path} <<'EOF'\n#!/bin/sh\n{script}\nEOF")
    batch = f"sbatch --parsable -o %j.out {options} {path}"
    done = head.run(f"cd /shared/home/{user} && runuser -u {user} -- {batch}")
    assert done.rc == 0, done.stderr
    return done.stdout.strip()


def said(head, job, user="alice"):
    """Wait for a job's end; return what it said."""
    head.check_output(
        f"timeout 60 sh -c 'while squeue -h -j {job} 2>/dev/null | grep -q .; do sleep 0.5; done'"
    )
    return head.check_output(f"sleep 0.5; cat /shared/home/{user}/{job}.out").splitlines()


@pytest.fixture
def login(head):
    """A function that runs a command in a login of alice's, as from her desk."""
    keys = "/etc/gpubed/slurm/keys/alice"
    head.check_output(f"ssh-keygen -q -t ed25519 -N '' -f /run/desk && cp /run/desk.pub {keys}")
    yield lambda command: head.run(
        "ssh -F none -i /run/desk -o BatchMode=yes alice@node-0 %s", command
    )
    head.check_output(f": >{keys}; rm /run/desk /run/desk.pub")


def test_a_login_has_all_devices_but_gpus(head, login):
    """Docker holds back these device files from the whole node, so that systemd is asked."""
    assert "/user.slice/user-20001.slice/" in login("cat /proc/self/cgroup").stdout
    asked = "systemctl show --property=DevicePolicy,DeviceAllow user-20001.slice"
    assert sorted(head.check_output(asked).splitlines()) == [
        "DeviceAllow=block-* rwm",
        "DeviceAllow=char-[!n]* rwm",
        "DevicePolicy=closed",
    ]
    assert login("head -c 4 /dev/urandom | wc -c").stdout.strip() == "4"


def test_a_job_is_in_no_slice_of_its_researcher(head):
    lines = said(head, submit(head, "cat /proc/self/cgroup", "-n1 -w node-0"))
    assert any("/system.slice/" in line for line in lines)
    assert not any("/user.slice/" in line for line in lines)


def test_a_node_offers_what_is_asked_for_by_model(head):
    lines = head.check_output("sinfo --noheader --Node --format '%N %G'").splitlines()
    assert [line.split("(")[0] for line in lines] == [
        "node-0 gpu:nvidia_a100-sxm4-80gb:2",
        "node-1 gpu:nvidia_tesla_t4:1",
    ]


def test_gpus_are_counted_in_the_order_of_the_bus(head):
    """What ranks and containers call GPU 0 and 1; the third one was not asked for."""
    lines = head.file("/etc/slurm/gres.conf").content_string.splitlines()
    files = [line.rpartition("File=")[2] for line in lines if "NodeName=node-0" in line]
    assert files == ["/dev/nvidia1", "/dev/nvidia2"]


def test_two_jobs_at_once_have_different_gpus(head):
    jobs = [submit(head, RANK % "sleep 8", "-n1 --gpus=1 -w node-0") for _ in range(2)]
    head.check_output("sleep 4")
    states = head.check_output("squeue -h -o %T").split()
    lines = sorted(line for job in jobs for line in said(head, job))
    assert states == ["RUNNING", "RUNNING"]
    assert lines == [
        "node-0 gpu=0 hca=mlx5_0 visible=0",
        "node-0 gpu=1 hca=mlx5_1 visible=1",
    ]


def test_a_job_that_asks_for_no_gpu_sees_none(head):
    assert said(head, submit(head, RANK % "true", "-n1 -w node-0")) == ["node-0 gpu= hca= visible="]


def test_a_model_may_be_asked_for(head):
    lines = said(head, submit(head, RANK % "true", "-n1 --gres=gpu:nvidia_tesla_t4:1"))
    assert lines == ["node-1 gpu=0 hca=mlx5_0 visible=0"]
    refused = head.run(
        "runuser -u alice -- sbatch -o /dev/null --gres=gpu:nvidia_h100:1 --wrap true"
    )
    assert refused.rc != 0


def test_the_launchers_job_has_all_gpus_of_all_nodes(head):
    """As `--launcher slurm` and gpubed-srun start it: local ranks take GPUs in turn."""
    script = (
        f"export GPUBED_SLOTS='{SLOTS}' SLURM_HOSTFILE=/shared/home/alice/places\n"
        "printf 'node-0\\nnode-0\\nnode-1\\n' > $SLURM_HOSTFILE\n"
        "srun --distribution=arbitrary --ntasks=3 --kill-on-bad-exit=1"
        f" gpubed-srun --rank sh -c '{SAY}'"
    )
    options = "--nodes=2 --nodelist=node-0,node-1 --gpus=3 --exclusive --mem=0 --no-requeue"
    assert sorted(said(head, submit(head, script, options))) == [
        "node-0 gpu=0 hca=mlx5_0 visible=0,1",
        "node-0 gpu=1 hca=mlx5_1 visible=0,1",
        "node-1 gpu=0 hca=mlx5_0 visible=0",
    ]


def test_gpus_are_accounted_for_by_model(head):
    job = submit(head, "true", "-n1 --gres=gpu:nvidia_tesla_t4:1")
    said(head, job)
    head.check_output("sleep 2")
    booked = head.check_output(f"sacct -nPX -j {job} -o alloctres")
    assert {"gres/gpu=1", "gres/gpu:nvidia_tesla_t4=1"} <= set(booked.split(","))


def test_one_beyond_the_limit_of_gpus_is_refused(head):
    done = head.run("runuser -u bob -- sbatch -o /dev/null --gpus=2 --wrap true")
    assert done.rc != 0
    assert "AssocGrpGRES" in done.stderr
