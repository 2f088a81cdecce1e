"""Two nodes after role slurm."""

import pytest

HEAD = "node-0"


@pytest.fixture
def head(host):
    if host.check_output("hostname") != HEAD:
        pytest.skip("the controller is on the head")
    return host


@pytest.fixture
def worker(host):
    if host.check_output("hostname") == HEAD:
        pytest.skip("this is about workers")
    return host


def as_user(host, name, command):
    return host.run("runuser -u %s -- sh -c %s", name, f"cd /tmp && timeout 60 {command}")


@pytest.mark.parametrize("service", ["munge", "slurmd"])
def test_services_of_every_node_start_at_boot(host, service):
    assert host.service(service).is_enabled
    assert host.service(service).is_running


def test_every_node_is_idle(head):
    states = head.check_output("sinfo --noheader --Node --format '%N %T'").splitlines()
    assert states == ["node-0 idle", "node-1 idle"], head.check_output(
        "journalctl --no-pager -n 50 -u slurmctld"
    )


def test_a_researcher_runs_on_both_nodes(head):
    done = as_user(head, "bob", "srun -N2 --ntasks-per-node=1 sh -c 'hostname; id -un; id -u'")
    assert sorted(done.stdout.split()) == sorted(["node-0", "node-1", *["bob", "20002"] * 2])


def test_the_operator_runs_too(head):
    assert as_user(head, "gpubed", "srun hostname").stdout.strip() in ("node-0", "node-1")


@pytest.mark.parametrize(
    ("user", "asks", "reason"),
    [("alice", "-n2", "AssocGrpCpuLimit"), ("bob", "--gres=gpu:1", "AssocGrpGRES")],
)
def test_what_is_beyond_a_limit_is_refused(head, user, asks, reason):
    done = as_user(head, user, f"sbatch -o /dev/null {asks} --wrap true")
    assert done.rc != 0
    # Without GPUs in the cluster, Slurm refuses earlier.
    assert reason in done.stderr or "node configuration is not available" in done.stderr


def test_a_stranger_is_refused(head):
    done = as_user(head, "nobody", "sbatch -o /dev/null --wrap true")
    assert "Invalid account" in done.stderr


def test_a_job_beyond_a_limit_of_running_jobs_waits(head):
    for _ in range(2):
        assert as_user(head, "bob", "sbatch -J waits -o /dev/null --wrap 'sleep 30'").rc == 0
    try:
        head.check_output("sleep 2")
        reasons = head.check_output("squeue --noheader --name=waits --format='%T %r'").splitlines()
        assert sorted(reasons) == ["PENDING AssocGrpJobsLimit", "RUNNING None"]
    finally:
        head.check_output("scancel --name=waits")


def test_shares_are_booked(head):
    booked = head.check_output("sacctmgr -nP show assoc account=cluster format=user,fairshare")
    assert {"alice|3", "bob|1", "gpubed|1"} <= set(booked.splitlines())


def test_hooks_run_as_root_around_a_job(head):
    for when in ("prolog", "epilog"):
        head.check_output(
            f"printf '#!/bin/sh\\nid -un >/run/{when}.$SLURM_JOB_USER\\n'"
            f" >/etc/gpubed/slurm/{when}.d/90-test && chmod +x /etc/gpubed/slurm/{when}.d/90-test"
        )
    try:
        assert as_user(head, "bob", "srun -w node-0 true").rc == 0
        head.check_output("timeout 20 sh -c 'until [ -e /run/epilog.bob ]; do sleep 0.2; done'")
        assert head.check_output("cat /run/prolog.bob /run/epilog.bob").split() == ["root", "root"]
    finally:
        head.check_output("rm -f /etc/gpubed/slurm/*.d/90-test /run/*log.bob")


def test_a_job_whose_node_fails_its_prolog_runs_on_another(head):
    head.check_output(
        "printf '#!/bin/sh\\n[ $(hostname) != node-0 ]\\n' >/etc/gpubed/slurm/prolog.d/90-test"
        " && chmod +x /etc/gpubed/slurm/prolog.d/90-test"
    )
    try:
        job = as_user(head, "bob", "sbatch --parsable -o /dev/null --wrap 'sleep 1'").stdout
        tells = f"sacct -nXP -j {job.strip()} -o state,nodelist"
        # Slurm starts what it has requeued after two minutes at the earliest: until then a
        # credential of the first start may be valid.
        until = f"until {tells} | grep -q COMPLETED; do sleep 1; done"
        head.check_output(f"timeout 240 sh -c '{until}'")
        assert head.check_output(tells).split("|") == ["COMPLETED", "node-1"]
    finally:
        head.check_output("rm -f /etc/gpubed/slurm/prolog.d/90-test")
        head.check_output("scontrol update nodename=node-0 state=resume")


def test_leftovers_that_another_epilog_removes_drain_no_node(head):
    head.check_output(
        "mkdir -p /dev/shm/left && chown bob /dev/shm/left && "
        "runuser -u bob -- sh -c 'for i in $(seq 400); do : >/dev/shm/left/$i; done'"
    )
    epilog = "SLURM_JOB_UID=20002 sh /etc/gpubed/slurm/epilog.d/10-shared-memory"
    head.check_output(f"{epilog} & {epilog} & {epilog}; one=$?; wait; exit $one")
    assert not head.file("/dev/shm/left").exists


def test_the_key_is_for_munge_only(host):
    key = host.file("/etc/munge/munge.key")
    assert (key.user, key.mode) == ("munge", 0o400)


def test_homes_are_private(host):
    home = host.file("/shared/home/alice")
    assert (home.uid, home.mode) == (20001, 0o700)


def test_researchers_do_not_log_in_to_workers(worker):
    assert "denygroups researchers" in worker.check_output("sshd -T")


def test_researchers_log_in_with_the_keys_of_the_specification(head):
    settings = head.check_output("sshd -T -C user=alice,host=x,addr=10.0.0.1")
    assert "authorizedkeysfile /etc/gpubed/slurm/keys/%u" in settings
    assert "allowusers *" in settings
    assert "authorizedkeysfile .ssh/authorized_keys" in head.check_output("sshd -T")


def test_workers_have_no_controller_and_no_database(worker):
    for name in ("slurmctld", "slurmdbd", "mariadb-server"):
        assert not worker.package(name).is_installed


def test_the_database_is_not_on_the_network(head):
    assert not head.socket("tcp://3306").is_listening
