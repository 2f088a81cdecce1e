"""Two nodes after role horovod; the first is the head."""

import pytest

BIN = "/shared/env/current/bin"
SUM = (
    "import horovod.torch as hvd, torch; hvd.init();"
    "print('sum', int(hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum)[0]))"
)


@pytest.fixture
def is_head(host):
    return host.check_output("hostname") == "node-0"


@pytest.fixture
def settings(host):
    lines = host.file("/etc/gpubed/horovod.env").content_string.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("feature", ["PyTorch", "MPI", "Gloo"])
def test_horovod_has_the_recipes_features(host, feature):
    build = host.check_output(f"runuser -u gpubed -- env PATH={BIN}:$PATH horovodrun --check-build")
    assert f"[X] {feature}" in build


def test_the_wheel_and_its_log_are_kept(host, is_head):
    if not is_head:
        pytest.skip("wheels are on shared storage and in the head's cache")
    key = host.check_output(f"cat {BIN}/../.horovod")
    assert host.run(f"ls /shared/wheels/{key}/*.whl").rc == 0
    assert host.run(f"ls /var/cache/gpubed/shared/wheels/{key}/*.whl").rc == 0


def test_ranks_use_the_interface_of_the_experiment_address(host, settings):
    addresses = host.check_output(f"ip -o address show dev {settings['HOROVOD_GLOO_IFACE']}")
    assert f" {settings['GPUBED_ADDRESS']}/" in addresses


def test_a_rank_computes_on_the_cpu_where_no_gpu_was_asked_for(host):
    rank = "HOROVOD_LOCAL_RANK=0 gpubed-rank sh -c 'echo $GPUBED_DEVICE $CUDA_DEVICE_ORDER'"
    assert host.check_output(rank) == "cpu PCI_BUS_ID"


def test_the_first_rank_of_a_run_leaves_the_nodes_settings_with_it(host, settings):
    folder = host.check_output("mktemp --directory")
    host.check_output(f"HOROVOD_RANK=0 GPUBED_RUN_DIR={folder} gpubed-rank true")
    kept = host.file(f"{folder}/rank-0.env").content_string.splitlines()
    assert f"OMP_NUM_THREADS={settings['OMP_NUM_THREADS']}" in kept


def test_a_rank_whose_gpu_is_not_there_does_not_start(host):
    done = host.run("GPUBED_GPUS=1 gpubed-device 0")
    assert done.rc == 1
    assert "was asked for GPUs, but there is no NVIDIA driver" in done.stderr


def test_workers_have_no_compiler(host, is_head):
    if is_head:
        pytest.skip("the head may have built the wheel")
    assert not host.exists("g++")


def test_shared_memory_outlives_a_logout(host):
    assert "RemoveIPC=no" in host.check_output("systemd-analyze cat-config systemd/logind.conf")


@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
def test_all_nodes_sum(host, is_head, controller):
    if not is_head:
        pytest.skip("jobs start on the head")
    done = host.run(
        f'runuser -l gpubed -c "gpubed-horovodrun {controller} -- python -c \\"{SUM}\\""'
    )
    ranks = len(host.file("/etc/gpubed/hostfile").content_string.splitlines())
    total = ranks * (ranks + 1) // 2
    assert done.stdout.count(f"sum {total}") == ranks, done.stdout + done.stderr


def test_tensors_travel_over_the_experiment_network(host, is_head, settings):
    if not is_head:
        pytest.skip("jobs start on the head")
    counter = f"/sys/class/net/{settings['GPUBED_INTERFACE']}/statistics/tx_bytes"
    before = int(host.check_output(f"cat {counter}"))
    code = "import horovod.torch as hvd, torch; hvd.init(); hvd.allreduce(torch.zeros(1 << 22))"
    host.check_output(f"runuser -l gpubed -c \"gpubed-horovodrun -- python -c '{code}'\"")
    assert int(host.check_output(f"cat {counter}")) - before > 16 << 20


TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(ranks)
print("sum", int(ranks))
"""


def test_torchrun_sums_over_the_nodes(host, is_head):
    if not is_head:
        pytest.skip("jobs start on the head")
    host.run_expect([0], f"cat > /shared/torchrun.py <<'EOF'\n{TORCHRUN}\nEOF")
    start = (
        "gpubed-rank torchrun --nnodes 2 --nproc-per-node 1"
        " --rdzv-backend c10d --rdzv-endpoint node-0:29400 /shared/torchrun.py"
    )
    both = f"ssh node-1 {start} & {start}; wait"
    done = host.run(f"runuser -l gpubed -c '{both}'")
    assert done.stdout.count("sum 3") == 2, done.stdout + done.stderr


def test_the_wheel_is_not_the_one_that_others_can_write_to(host, is_head):
    if not is_head:
        pytest.skip("the head installs it")
    key = host.check_output(f"cat {BIN}/../.horovod")
    sums = host.check_output(
        f"sha256sum /var/lib/gpubed/wheels/{key}/*.whl /var/cache/gpubed/shared/wheels/{key}/*.whl"
    )
    wanted = host.check_output(f"cat /var/lib/gpubed/wheels/{key}/requirements.txt")
    assert f"--hash=sha256:{sums.split()[0]}" in wanted
    assert "file:///var/lib/gpubed/wheels/" in wanted


def test_ranks_meet_where_only_they_may(host, is_head, settings):
    """On the network of jobs, and with the run's secret, which is on no command line."""
    if not is_head:
        pytest.skip("jobs start on the head")
    wait = "import horovod.torch as hvd, time; hvd.init(); time.sleep(10)"
    run = f'gpubed-horovodrun --gloo -- python -c \\"{wait}\\"'
    host.check_output(f'systemd-run --unit=run runuser -l gpubed -c "{run}"')
    try:
        # Root of a confined node may not see whose others' sockets are.
        ask = "runuser -u gpubed -- ss -Hltnp"
        find = f'{ask} | grep horovodrun | tr -s " " | cut -d " " -f 4'
        place = host.check_output(f"timeout 60 sh -c 'until {find} | grep .; do sleep 0.2; done'")
        assert place.rpartition(":")[0] == settings["GPUBED_ADDRESS"]
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' http://{place}/global/nothing"
        assert host.check_output(ask) == "403"
        (secret,) = host.check_output("cat $(ls -t /shared/rendezvous/* | head -1)").split()
        assert host.check_output(f"{ask} -H 'X-Horovod-Secret: {secret}'") == "404"
        words = host.check_output("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'")
        assert secret not in words
    finally:
        host.check_output("systemctl stop run")
