"""The NVML library, asked by NVIDIA's own Python package."""

import json
import subprocess
import sys
import textwrap

import pytest

from support import simulated

pytestmark = pytest.mark.process


def ask(driver, code):
    """Run code on the driver, with pynvml as `nvml`, and return its `answer`."""
    program = f"import json, pynvml as nvml\n{textwrap.dedent(code)}\nprint(json.dumps(answer))"
    return json.loads(driver.run(sys.executable, "-c", program).stdout)


def attempt(driver, call):
    """Return the error of a call on GPU 0's handle, or what it gives."""
    return ask(
        driver,
        f"""
        nvml.nvmlInit()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            answer = {call}
        except nvml.NVMLError as error:
            answer = str(error)
        """,
    )


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "T4"])
def test_a_gpu_is_what_its_model_says(driver, name):
    model = simulated.model(name)
    pretended = driver.has(name)
    answer = ask(
        driver,
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        pci = nvml.nvmlDeviceGetPciInfo(gpu)
        answer = {
            "name": nvml.nvmlDeviceGetName(gpu),
            "uuid": nvml.nvmlDeviceGetUUID(gpu),
            "capability": nvml.nvmlDeviceGetCudaComputeCapability(gpu),
            "memory": nvml.nvmlDeviceGetMemoryInfo(gpu).total,
            "pci": pci.busId.lower(),
            "device": f"{pci.pciDeviceId:08x}",
            "power": nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
            "clock": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "minor": nvml.nvmlDeviceGetMinorNumber(gpu),
            "cpus": nvml.nvmlDeviceGetCpuAffinity(gpu, 1)[0],
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "cuda": nvml.nvmlSystemGetCudaDriverVersion(),
        }
        """,
    )
    gpu = pretended["gpus"][1]
    assert answer == {
        "name": model["name"],
        "uuid": gpu["uuid"],
        "capability": [int(part) for part in model["compute_capability"].split(".")],
        "memory": model["memory"]["bytes"],
        "pci": f"0000{gpu['pci']}",
        "device": f"{model['pci']['device']}10de",
        "power": model["power_watts"]["default"] * 1000,
        "clock": model["clocks_mhz"]["graphics"]["max"],
        "minor": 1,
        "cpus": sum(1 << cpu for cpu in gpu["cpus"]),
        "driver": driver.version,
        "cuda": 13000,
    }


def test_without_a_module_there_is_no_driver(driver):
    driver.has("T4", module=None)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        ask(driver, "nvml.nvmlInit()")
    assert "Driver Not Loaded" in failed.value.stderr


def test_a_gpu_that_fell_off_the_bus_is_lost(driver):
    driver.has("A100-SXM4-80GB", faults=[("fallen-off-bus", 0)])
    assert attempt(driver, "nvml.nvmlDeviceGetTemperature(gpu, 0)") == "GPU is lost"
