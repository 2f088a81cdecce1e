"""GPUs are cut into slices or shared, Slurm counts the parts, and whole GPUs come back.

As docs/how-to/share-gpus.md says. The GPUs are simulated: ranks compute on the CPU.
"""

import time

import pytest

from support.cluster import Cluster, unique
from support.gpu_cluster import MACHINE, checks, standing

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(3600)]

MIG, MODEL = "1g.10gb", "A100-SXM4-80GB"
TYPE = "nvidia_a100-sxm4-80gb"
SLEEP = "sbatch --parsable --oversubscribe --mem=20 --output=/dev/null"


def _group(name, gpus):
    return {"name": name, "count": 1, "gpus": gpus, "simulate": MODEL, "machine": MACHINE}


@pytest.fixture(scope="module")
def cluster(docker, tmp_path_factory):
    made = Cluster(
        tmp_path_factory.mktemp("share"),
        unique("share"),
        nodes=[
            _group("cut", {"per_node": 1, "mig": MIG}),
            _group("shared", {"per_node": 2, "shards": 4}),
        ],
        recipe="cuda13",
        services={"slurm": {"users": [{"name": "alice"}]}},
    )
    with standing(made):
        # The test's machine has fewer CPUs than a GPU has slices.
        made.node("head", "sudo scontrol update PartitionName=main OverSubscribe=FORCE:16")
        yield made


def as_alice(cluster, command):
    return cluster.node("head", f"sudo -u alice sh -c 'cd /shared/home/alice && {command}' 2>&1")


def running(cluster):
    return cluster.node("head", "squeue -h -t RUNNING -o %N").split()


def wait_for(look, wanted):
    for _ in range(60):
        if (seen := look()) == wanted:
            return
        time.sleep(1)
    pytest.fail(f"{seen} instead of {wanted}")


@pytest.fixture
def queue(cluster):
    """Submit jobs that last until the test ends."""

    def submit(options):
        return as_alice(cluster, f'{SLEEP} {options} --wrap "sleep 300"')

    yield submit
    cluster.node("head", "sudo scancel --user=alice")
    wait_for(lambda: cluster.node("head", "squeue -h"), "")


def test_up_ends_in_slices_of_the_right_number_and_size(cluster):
    found = {(c["id"], c["node"]): c for c in checks(cluster.first_up)}
    assert cluster.first_up["verification"]["failed"] == 0
    slices = found["gpu.slices", "cut-0"]
    assert (slices["result"], slices["value"]) == ("simulated", f"7 x {MIG}")
    assert found["gpu.slices", "shared-0"]["result"] == "skip"
    assert found["gpu.count", "cut-0"]["value"] == 1, "a slice is no GPU"
    assert [node["gpus"] for node in cluster.json("status")["nodes"]] == [1, 2]


def test_slurm_counts_slices_and_shards(cluster):
    offered = dict(
        line.split() for line in cluster.node("head", "sinfo -h -N -o '%N %G'").splitlines()
    )
    assert offered["cut-0"] == f"slice:{MIG}:7"
    assert offered["shared-0"] == f"gpu:{TYPE}:2,shard:{TYPE}:8"


def test_a_job_gets_one_slice_by_its_name(cluster):
    there = cluster.node("cut-0", "nvidia-smi -L")
    say = "printenv CUDA_VISIBLE_DEVICES"
    names = as_alice(cluster, f"srun --mem=20 --gres=slice:{MIG}:1 {say}").split()
    assert len(names) == 1
    assert names[0].startswith("MIG-")
    assert names[0] in there
    two = as_alice(cluster, f"srun --mem=20 --oversubscribe --ntasks=2 --gres=slice:2 {say}")
    first = {line.split(",")[0] for line in two.split()}
    assert len(first) == 2, "each task begins with another slice"


def test_a_rank_in_a_slice_or_a_share_has_a_device(cluster):
    say = 'gpubed-srun -- sh -c "echo \\$CUDA_VISIBLE_DEVICES \\$GPUBED_DEVICE_NAME"'
    for part, visible in (("slice", "MIG-"), ("shard", "")):
        said = as_alice(cluster, f"salloc -Q --mem=500 --gres={part}:1 {say}")
        assert "simulated" in said, said
        assert said.startswith(visible)


def test_seven_run_beside_each_other_and_the_eighth_waits(cluster, queue):
    for _ in range(8):
        queue("--gres=slice:1")
    wait_for(lambda: running(cluster), ["cut-0"] * 7)
    assert cluster.node("head", "squeue -h -t PENDING -o %r").strip() == "Resources"
    used = cluster.node("head", "squeue -h -t RUNNING -o %i").split()
    detailed = "".join(cluster.node("head", f"scontrol -d show job {job}") for job in used)
    assert all(f"(IDX:{number})" in detailed for number in range(7))


def test_who_asks_for_gpus_never_gets_a_slice(cluster, queue):
    said = as_alice(cluster, "sbatch -w cut-0 --gres=gpu:1 --mem=20 --wrap true || true")
    assert "Requested node configuration is not available" in said
    queue("--gpus=1")
    queue("--gpus=1")
    wait_for(lambda: running(cluster), ["shared-0"] * 2)
    queue("--gres=shard:1")
    time.sleep(5)
    assert running(cluster) == ["shared-0"] * 2, "no job shares a GPU that another has whole"


def test_four_share_a_gpu(cluster, queue):
    for _ in range(8):
        queue("--gres=shard:1")
    wait_for(lambda: running(cluster), ["shared-0"] * 8)
    say = "srun --immediate=5 --mem=20 --oversubscribe --gres=gpu:1 true || true"
    assert "Unable to allocate" in as_alice(cluster, say)


def test_a_run_of_gpubed_is_refused_where_no_gpu_is_whole(cluster):
    said = cluster.call("run", "digits", rc=2).stderr
    assert "has no node that ranks could start on" in said
    assert "--gres=slice:1" in said


def test_slices_come_back_after_a_reboot(cluster):
    again = "sudo gpubed-slices whole 1; sudo rm -f /run/gpubed/slices"
    assert "MIG" not in cluster.node("cut-0", f"{again}; nvidia-smi -L")
    cluster.node("cut-0", "sudo systemctl restart gpubed-slices")
    assert cluster.node("cut-0", "nvidia-smi -L").count(f"MIG {MIG}") == 7


def test_gpus_in_use_are_not_made_whole(cluster, queue):
    queue("--gres=slice:1")
    wait_for(lambda: running(cluster), ["cut-0"])
    whole = lambda spec: spec["nodes"][0].update(gpus=1)  # noqa: E731
    cluster.edit(whole)
    try:
        assert "cut-0 is at work" in cluster.call("up", rc=1).stderr
        assert cluster.node("cut-0", "nvidia-smi -L").count(f"MIG {MIG}") == 7
    finally:
        cluster.node("head", "sudo scancel --user=alice")


def test_switched_off_gpus_are_whole_and_nothing_is_left(cluster):
    cluster.edit(lambda spec: [group.update(gpus=n + 1) for n, group in enumerate(spec["nodes"])])
    done = cluster.json("up")
    assert done["verification"]["failed"] == 0
    assert "MIG" not in cluster.node("cut-0", "nvidia-smi -L")
    left = "ls /etc/systemd/system/gpubed-slices.service /usr/local/bin/gpubed-slices "
    left += "/run/gpubed/slices 2>/dev/null || true"
    assert cluster.node("cut-0", left) == ""
    offered = cluster.node("head", "sinfo -h -N -o %G").split()
    assert offered == [f"gpu:{TYPE}:1", f"gpu:{TYPE}:2"]
    result = cluster.json("run", "digits", "--set", "epochs=5")
    assert result["world_size"] == 3


def test_a_gpu_without_mig_is_refused(cluster, tmp_path):
    v100 = _group("old", {"per_node": 1, "mig": MIG}) | {"simulate": "V100-SXM2-16GB"}
    slurm = {"slurm": {}}
    bad = Cluster(tmp_path, unique("share"), nodes=[v100], recipe="cuda12", services=slurm)
    errors = bad.json("check", rc=2)["errors"]
    assert [error["path"] for error in errors] == ["nodes.0.gpus.mig"]
    assert "cannot be cut: it has no MIG" in errors[0]["message"]
