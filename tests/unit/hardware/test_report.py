"""GPU reports: without names, whole, and good for a model that a node can pretend to be.

The node's answers are SYNTHETIC: nvidia-smi's XML and NVLinks are written after the figures of
the shipped model A100-SXM4-80GB, since no A100 was at hand to record them from. h200.report.json
is of a real H200, in a virtual machine.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import simulated_gpus
from gpubed.core.errors import GpubedError
from gpubed.hardware import recording, report

ROOT = Path(__file__).parents[3]
SIMULATION = simulated_gpus.IMAGE
PCI = "0000:07:00.0"
UUIDS = ["GPU-1b3e5c7a-90ab-4cde-8f01-23456789abcd", "GPU-2b3e5c7a-90ab-4cde-8f01-23456789abcd"]
SECRETS = [
    *UUIDS,
    "1650921004501",
    "1820124012345",
    "0x7f3a9b2c4d5e6f70",
    "gandalf",
    "gandalf.uni.example",
    "10.20.30.40",
    "fe80::1c2d:3eff:fe4f:5a6b",
    "b8:ce:f6:12:34:56",
    "/home/alice/secret-project/train.py",
    "secret-tool",
]
XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version>
  <gpu id="00000000:07:00.0">
    <product_name>NVIDIA A100-SXM4-80GB</product_name>
    <product_brand>NVIDIA</product_brand>
    <serial>1650921004501</serial>
    <uuid>{UUIDS[0]}</uuid>
    <vbios_version>92.00.45.00.03</vbios_version>
    <gpu_part_number>692-2G506-0210-002</gpu_part_number>
    <inforom_version>
      <img_version>G506.0210.00.03</img_version>
      <oem_object>2.0</oem_object>
      <ecc_object>6.16</ecc_object>
    </inforom_version>
    <gsp_firmware_version>580.95.05</gsp_firmware_version>
    <platformInfo>
      <chassis_serial_number>1820124012345</chassis_serial_number>
      <gpu_fabric_guid>0x7f3a9b2c4d5e6f70</gpu_fabric_guid>
    </platformInfo>
    <fan_speed>N/A</fan_speed>
    <fb_memory_usage><total>81920 MiB</total><reserved>763 MiB</reserved></fb_memory_usage>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr>
      <row_remapper_histogram>
        <row_remapper_histogram_max>640 bank(s)</row_remapper_histogram_max>
      </row_remapper_histogram>
    </remapped_rows>
    <temperature>
      <gpu_temp>25 C</gpu_temp>
      <gpu_temp_max_threshold>92 C</gpu_temp_max_threshold>
      <gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>
      <gpu_temp_max_gpu_threshold>85 C</gpu_temp_max_gpu_threshold>
      <memory_temp>43 C</memory_temp>
    </temperature>
    <gpu_power_readings>
      <instant_power_draw>59.77 W</instant_power_draw>
      <default_power_limit>400.00 W</default_power_limit>
      <min_power_limit>100.00 W</min_power_limit>
      <max_power_limit>400.00 W</max_power_limit>
    </gpu_power_readings>
    <clocks>
      <graphics_clock>210 MHz</graphics_clock>
      <mem_clock>1593 MHz</mem_clock>
      <video_clock>585 MHz</video_clock>
    </clocks>
    <applications_clocks><graphics_clock>1275 MHz</graphics_clock></applications_clocks>
    <max_clocks>
      <graphics_clock>1410 MHz</graphics_clock>
      <mem_clock>1593 MHz</mem_clock>
      <video_clock>1290 MHz</video_clock>
    </max_clocks>
    <processes>
      <process_info><pid>42</pid><process_name>/home/alice/secret-project/train.py</process_name></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""
RESOURCE = "\n".join(
    [
        "0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200",
        "0x0000018000000000 0x0000019fffffffff 0x000000000014220c",
        "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        "0x000001a000000000 0x000001a001ffffff 0x000000000014220c",
    ]
)


def answers(simulated=None):
    """Return what `collect` would have collected on a node."""
    return {
        "kernel": "6.1.0-40-amd64",
        "simulated": simulated,
        "facts": {
            "host": "gandalf",
            "gpus": [
                {
                    "pci": PCI,
                    "device_id": "20b2",
                    "generation": "Ampere",
                    "compute_capability": "8.0",
                    "uuid": UUIDS[0],
                },
                {"pci": "0000:0f:00.0", "uuid": UUIDS[1]},
            ],
            "interfaces": [{"name": "eno1", "addresses": ["10.20.30.40"]}],
        },
        "host": {"schema": "gpubed/gpu-host/1", "kernel": "6.1.0-40-amd64"},
        "commands": {
            "nvidia-smi -q -x": XML,
            "nvidia-smi topo -m": "GPU0 X",
            "nvidia-smi nvlink -s": "".join(
                f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: {uuid})\n"
                + "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
                for gpu, uuid in enumerate(UUIDS)
            ),
        },
        "proc": {"proc/driver/nvidia/gpus/0000:07:00.0/information": f"GPU UUID: {UUIDS[0]}"},
        "pci": {
            PCI: {
                "vendor": "0x10de",
                "device": "0x20b2",
                "subsystem_vendor": "0x10de",
                "subsystem_device": "0x1463",
                "class": "0x030200",
                "revision": "0xa1",
                "max_link_speed": "16.0 GT/s PCIe",
                "max_link_width": "16",
                "resource": RESOURCE,
                "bridges": ["0000:00:03.1"],
            }
        },
        "packages": {"libcuda1": "580.95.05-1", "libnccl2": "2.27.3-1+cuda13.0"},
        "log": [
            "NVRM: Xid (PCI:0000:07:00): 31, pid=42, name=secret-tool, Ch 00000008",
            "nvidia: host gandalf.uni.example at fe80::1c2d:3eff:fe4f:5a6b b8:ce:f6:12:34:56",
        ],
    }


@pytest.fixture
def made():
    return report.make({"gandalf": answers()})


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_that_names_is_in_a_report(made, secret):
    assert secret in json.dumps(answers()), "the test would prove nothing"
    assert secret not in made.model_dump_json()


@pytest.mark.parametrize(
    "kept",
    [PCI, "92.00.45.00.03", "692-2G506-0210-002", "G506.0210.00.03", "2.27.3-1+cuda13.0", "Xid"],
)
def test_what_a_simulation_needs_stays(made, kept):
    assert kept in made.model_dump_json()


def test_the_same_value_becomes_the_same_one_everywhere(made):
    node = made.nodes[0]
    first, second = (gpu["uuid"] for gpu in node.facts["gpus"])
    assert first != second
    assert first in node.commands["nvidia-smi -q -x"]
    assert first in node.commands["nvidia-smi nvlink -s"]
    assert first in node.proc["proc/driver/nvidia/gpus/0000:07:00.0/information"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"schema": "gpubed/facts/2"}'])
def test_another_file_is_refused_in_a_line(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(GpubedError, match="cannot be read"):
        report.read(path)


@pytest.mark.process
def test_a_model_is_recorded_that_a_node_can_pretend_to_be(made, tmp_path):
    """Against the shipped model, made from documents: all that a node tells is the same."""
    report.write(tmp_path / "report.json", made)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpubed.hardware.recording",
            tmp_path / "report.json",
            "A100-SXM4-80GB",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    recorded = json.loads(done.stdout)
    shipped = json.loads((SIMULATION / "models" / "A100-SXM4-80GB.json").read_text())
    assert recorded.keys() == shipped.keys()
    unknown = {"cuda_cores", "mig", "sources", "synthetic"}
    told = {key: value for key, value in recorded.items() if key not in unknown}
    shipped["memory"] |= {"bus_bits": None}
    assert told == {key: shipped[key] for key in told}
    machine = runpy.run_path(str(SIMULATION / "machine.py"))
    node = machine["machine"](recorded, 8, "node-0", cpus=list(range(16)))
    assert "memory 85899345920" in machine["nvml_text"](node, driver="580.95.05")


def test_no_model_comes_from_a_simulation():
    pretended = report.make({"node-0": answers(simulated="A100-SXM4-80GB")})
    assert "simulated (A100-SXM4-80GB)" in report.described(pretended, Path("report.json"))
    with pytest.raises(GpubedError, match="simulated A100-SXM4-80GB, not of a GPU"):
        recording.model(pretended, "A100-SXM4-80GB")


@pytest.mark.process
def test_the_program_reads_a_tree(tmp_path):
    """SYNTHETIC tree; there is no driver, so commands answer nothing."""
    card = tmp_path / "sys/devices/pci0000:00/0000:00:03.1" / PCI
    card.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "device": "0x20b2", "resource": RESOURCE}.items():
        (card / name).write_text(f"{text}\n")
    index = tmp_path / "sys/bus/pci/devices"
    index.mkdir(parents=True)
    (index / PCI).symlink_to(card)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: 580.95.05\n")
    done = subprocess.run(
        [sys.executable, ROOT / "roles/hardware/files/gpubed-gpu-report", "--root", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["pci"] == {
        PCI: {
            "vendor": "0x10de",
            "device": "0x20b2",
            "resource": RESOURCE,
            "bridges": ["0000:00:03.1"],
        }
    }
    assert found["proc"] == {"proc/driver/nvidia/version": "NVRM version: 580.95.05"}


def test_a_real_h200_is_what_nodes_pretend_to_have():
    """A virtual machine shows no NVLink; what is lent, or of another build of the card, differs."""
    real = report.read(Path(__file__).with_name("h200.report.json"))
    found = recording.model(real, "H200-SXM5-141GB")
    shipped = json.loads((SIMULATION / "models" / "H200-SXM5-141GB.json").read_text())
    for name in ("name", "brand", "architecture", "compute_capability", "ecc", "repair", "gsp"):
        assert found[name] == shipped[name], name
    of_build = {"subsystem_device"}
    assert {k: v for k, v in found["pci"].items() if k not in of_build} == {
        k: v for k, v in shipped["pci"].items() if k not in of_build
    }
    assert found["memory"]["bytes"] == shipped["memory"]["bytes"]
    for part in ("clocks_mhz", "power_watts", "temperature_celsius"):
        assert _without_idle(found[part]) == _without_idle(shipped[part])


def _without_idle(readings):
    return {
        name: _without_idle(value) if isinstance(value, dict) else value
        for name, value in readings.items()
        if name not in ("idle", "memory_idle")
    }
