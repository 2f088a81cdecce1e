"""Two nodes after role health."""

import json

import pytest

UNIT = "/run/systemd/system/slurmd.service"


def status(host):
    return json.loads(host.run("gpubed-health status").stdout)


@pytest.fixture
def failing(host):
    """A unit that jobs depend on has failed; the node looks only when it is told to."""
    host.check_output("systemctl stop gpubed-health.timer")
    host.check_output(f"printf '[Service]\\nExecStart=/bin/false\\n' > {UNIT}")
    host.run("systemctl daemon-reload; systemctl start slurmd.service; sleep 0.5")
    yield
    host.check_output(f"rm {UNIT}")
    host.run("systemctl reset-failed slurmd.service; systemctl daemon-reload")
    assert host.run("gpubed-health requalify").rc == 0
    host.check_output("systemctl start gpubed-health.timer")


def test_a_good_node_is_well(host):
    assert host.run("gpubed-health check").rc == 0
    assert status(host) == {"problems": [], "quarantine": None}


def test_it_looks_regularly(host):
    timer = host.service("gpubed-health.timer")
    assert timer.is_running
    assert timer.is_enabled


def test_a_failed_unit_is_named(host, failing):
    found = host.run("gpubed-health check")
    assert found.rc == 1
    assert "slurmd.service has failed" in found.stdout


def test_the_second_failing_look_quarantines_and_tells_the_hooks(host, failing):
    hook = "/etc/gpubed/quarantine.d/50-told"
    host.check_output(
        f"printf '#!/bin/sh\\necho \"$@\" >> /run/told\\n' > {hook} && chmod 755 {hook}"
    )
    host.run("gpubed-health watch")
    assert status(host)["quarantine"] is None
    host.run("systemctl start gpubed-health.service")
    assert "slurmd.service has failed" in status(host)["quarantine"]["reason"]
    assert host.run("gpubed-health requalify").rc == 1, "it is still failing"
    assert status(host)["quarantine"]
    assert host.file("/run/told").content_string.startswith("quarantine slurmd.service has failed")
    host.check_output(f"rm {hook} /run/told")


def test_a_person_may_quarantine_a_node_that_is_well(host):
    host.check_output("gpubed-health quarantine fan is loud")
    assert status(host)["quarantine"]["reason"] == "fan is loud"
    assert "in quarantine since" in host.run("gpubed-health check").stdout
    assert host.run("gpubed-health requalify").rc == 0
    assert host.run("gpubed-health check").rc == 0


def test_a_shared_folder_that_is_not_there_is_noticed(host):
    host.check_output("sed 's#/shared#/nowhere#' /etc/gpubed/health.json > /run/expected.json")
    found = host.run("GPUBED_HEALTH_EXPECTED=/run/expected.json gpubed-health check")
    assert (found.rc, "/nowhere does not answer" in found.stdout) == (1, True)


def use(host):
    return json.loads(host.check_output("gpubed-use status"))


def test_it_writes_down_regularly_what_it_is_used_for(host):
    timer = host.service("gpubed-use.timer")
    assert timer.is_running
    assert timer.is_enabled
    host.check_output("systemctl start gpubed-use.service")
    first, _, second = use(host), host.check_output("sleep 2"), use(host)
    assert first["mute"] == []
    assert 2 <= second["idle_s"] - first["idle_s"] < 30 or second["spell"] != first["spell"]


def test_what_a_person_computes_is_a_use(host):
    use(host)
    login = "setpriv --reuid 1234 --clear-groups"
    host.check_output(f"{login} timeout 50 sh -c 'while :; do :; done' > /dev/null 2>&1 &")
    host.check_output("sleep 35")
    found = use(host)
    assert found["idle_s"] == 0
    assert found["last"] == {"who": "1234", "what": "programs compute"}
    assert any(row["user"] == "1234" and row["cpu_s"] > 5 for row in found["use"])


# What an account without root does to hide others: files in its home, and ranks of its own.
HOSTILE = r"""
cd /home/mallory && runtime=.local/share/jupyter/runtime && mkdir -p $runtime
for kind in brackets fifo shadow zero sparse; do
  sleep 60 & file=$runtime/jpserver-$!.json
  case $kind in
    brackets) head -c 200000 /dev/zero | tr '\0' '[' > $file ;;
    fifo) mkfifo $file ;;
    shadow) ln -s /etc/shadow $file ;;
    zero) ln -s /dev/zero $file ;;
    sparse) truncate -s 10G $file ;;
  esac
done
head -c 200000 /dev/zero | tr '\0' '[' > $runtime/jpserver-1.json
touch "$runtime/$(printf 'jpserver-\377.json')"
printf '#!/bin/sh\nsleep 60\n' > gpubed-rank; chmod 755 gpubed-rank
for name in '\303\251' 'a"b' 'a\nb' '\377'; do
  env GPUBED_HEARTBEAT="/x/$(printf "$name")/.heartbeat" sh -c './gpubed-rank & exec sleep 60' &
done
"""


def test_an_account_that_tries_to_hide_others_is_named(host):
    host.check_output("useradd --create-home --uid 4321 mallory")
    metrics, made = "/var/lib/gpubed/metrics", host.file("/var/lib/gpubed/metrics").exists
    host.check_output(f"mkdir -p {metrics}")
    try:
        host.run(f"runuser -u mallory -- setsid sh > /dev/null 2>&1 <<'END' &\n{HOSTILE}\nEND")
        host.check_output("sleep 2")
        found = use(host)
        [said] = found["mute"]
        assert said.startswith("JupyterLab of mallory does not tell: ")
        assert found["last"]["who"] == "mallory"
        jobs = {row["job"] for row in found["use"] if row["user"] == "mallory"}
        assert jobs <= {"", "run", "é"}
        assert host.run("systemctl start gpubed-use.service").rc == 0
    finally:
        host.run("pkill --signal KILL --uid mallory; userdel --remove mallory")
        if not made:
            host.check_output(f"rm -r {metrics}")


def test_a_rank_is_a_use_and_is_called_as_its_run(host):
    """The looker beside a rank is a STAND-IN, with its name and its heartbeat."""
    host.check_output(
        "printf '#!/bin/sh\nsleep 20\n' > /tmp/gpubed-rank; chmod 755 /tmp/gpubed-rank"
    )
    beat = "GPUBED_HEARTBEAT=/shared/runs/20300101-digits/.heartbeat"
    login = "setpriv --reuid 1234 --clear-groups"
    host.check_output(
        f"{login} env {beat} sh -c '/tmp/gpubed-rank & exec sleep 20' > /dev/null 2>&1 &"
    )
    host.check_output("sleep 1")
    assert use(host)["last"] == {"who": "1234", "what": "20300101-digits"}
    host.check_output("rm /tmp/gpubed-rank")
