"""Every node after role monitoring."""

import json

import pytest

FOLDER = "/etc/gpubed/monitoring"
METRICS = "/var/lib/gpubed/metrics"
# MOCK: no GPU is here. What nvidia-smi prints for two of them, one throttled by heat
# and with memory errors; this driver knows the older name of the reasons only.
NVIDIA_SMI = """#!/bin/sh
case "$1" in *clocks_event_reasons*) echo 'Field "x" is not a valid field to query.'; exit 2;; esac
echo '0, 00000000:3B:00.0, NVIDIA A100-SXM4-80GB, 97, 40960, 81920, 61, 312.50, 0, \
Not Active, Not Active, Not Active, Not Active'
echo '1, 00000000:AF:00.0, NVIDIA A100-SXM4-80GB, 0, 4, 81920, 91, [N/A], 2, \
Active, Active, Not Active, Not Active'
"""
# MOCK: no program may write into the kernel's log of a container.
JOURNALCTL = """#!/bin/sh
echo '1763704000.123456 n kernel: NVRM: Xid (PCI:0000:af:00): 31, pid=7, name=python, MMU Fault'
echo '1763704800.654321 n kernel: NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.'
"""


@pytest.fixture
def address(host):
    """The node's address on the control network."""
    name = host.check_output("hostname")
    return host.check_output(f"grep ' {name}.control$' /etc/hosts").split()[0]


@pytest.fixture
def identity(host):
    """The node's certificate and key."""
    certificate = host.check_output(f"sed -n 's/  cert_file: //p' {FOLDER}/web.yml")
    return certificate, certificate.replace(".crt", ".key")


def test_the_exporter_listens_on_the_control_network_only(host, address):
    assert host.socket(f"tcp://{address}:9100").is_listening
    assert not host.socket("tcp://0.0.0.0:9100").is_listening
    assert not host.socket("tcp://127.0.0.1:9100").is_listening


def test_the_exporter_answers_nobody_without_a_certificate(host, address):
    answer = host.run(f"curl -sS --insecure https://{address}:9100/metrics")
    assert answer.rc != 0
    assert answer.stdout == ""


def test_the_exporter_answers_the_head_and_no_other_node(host, address, identity):
    certificate, key = identity
    answer = host.run(
        f"curl -sS --insecure --cert {certificate} --key {key} https://{address}:9100/metrics"
    )
    on_head = host.check_output("hostname") == "node-0"
    assert ("node_uname_info" in answer.stdout, answer.rc == 0) == (on_head, on_head)


def test_the_key_is_for_the_services_only(host, identity):
    key = host.file(identity[1])
    assert (key.user, key.group, key.mode) == ("root", "prometheus", 0o640)


def test_the_collector_tells_what_the_container_has_and_nothing_of_gpus(host):
    assert host.service("gpubed-metrics.timer").is_enabled
    told = host.file(f"{METRICS}/gpubed-metrics.prom").content_string
    assert "gpubed_container_start_timestamp_seconds" in told
    assert "gpubed_gpu" not in told


def test_units_that_are_read_again_many_times_do_not_let_the_collector_fail(host):
    """Each daemon-reload starts it once more; with systemd's limit of five it failed."""
    host.check_output("for i in 1 2 3 4 5 6 7 8; do systemctl daemon-reload; sleep 0.5; done")
    assert host.run("systemctl is-failed gpubed-metrics.service").stdout.strip() != "failed"
    assert host.run("systemctl is-active gpubed-metrics.timer").stdout.strip() == "active"


def test_the_collector_reads_gpus_and_xids(host):
    tools = host.check_output("mktemp -d")
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("journalctl", JOURNALCTL)):
        host.check_output(f"cat > {tools}/{name} <<'END'\n{text}END\nchmod +x {tools}/{name}")
    host.check_output(f"PATH={tools}:$PATH gpubed-metrics {tools}/out.prom --gpus")
    lines = set(host.file(f"{tools}/out.prom").content_string.splitlines())
    assert {
        "gpubed_gpus_present 2.0",
        'gpubed_gpu_utilization_ratio{gpu="0"} 0.97',
        'gpubed_gpu_memory_total_bytes{gpu="1"} 8.589934592e+10',
        'gpubed_gpu_ecc_uncorrected_errors{gpu="1"} 2.0',
        'gpubed_gpu_throttled{gpu="0",reason="hw_slowdown"} 0.0',
        'gpubed_gpu_throttled{gpu="1",reason="hw_thermal_slowdown"} 1.0',
        'gpubed_gpu_xid_timestamp_seconds{action="switch the machine off and on",'
        'pci="0000:af:00",xid="79"} 1.763704800654321e+09',
        'gpubed_gpu_xid_timestamp_seconds{action="",pci="0000:af:00",xid="31"} '
        "1.763704000123456e+09",
    } <= lines
    assert not any(line.startswith('gpubed_gpu_power_watts{gpu="1"}') for line in lines)


def test_a_driver_that_does_not_answer_counts_as_no_gpu(host):
    host.check_output("gpubed-metrics /tmp/none.prom --gpus")
    assert "\ngpubed_gpus_present 0.0\n" in host.file("/tmp/none.prom").content_string


def test_the_declared_link_is_named(host):
    declared = host.file(f"{METRICS}/declared.prom").content_string
    assert 'gpubed_link_declared_bits_per_second{device="eth1"} 200000000' in declared


def test_no_unit_has_failed(host):
    failed = json.loads(host.check_output("systemctl list-units --failed --output=json"))
    assert failed == []
