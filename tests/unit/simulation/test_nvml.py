"""The NVML library, asked by NVIDIA's own Python package."""

import ctypes
import json
import subprocess
import sys
import textwrap

import pynvml
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


def test_mig_instances_are_devices_of_their_own(driver):
    driver.has("A100-SXM4-80GB")
    assert attempt(driver, "nvml.nvmlDeviceSetMigMode(gpu, 1)") == 0
    made = ask(
        driver,
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        wanted = nvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE
        profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, wanted)
        for _ in range(2):
            instance = nvml.nvmlDeviceCreateGpuInstance(gpu, profile.id)
            whole = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 0)
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        try:
            nvml.nvmlDeviceCreateGpuInstance(gpu, profile.id)
        except nvml.NVMLError as error:
            answer = [str(error)]
        for index in range(2):
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            answer.append([
                nvml.nvmlDeviceGetName(mig),
                nvml.nvmlDeviceGetUUID(mig)[:4],
                nvml.nvmlDeviceGetMemoryInfo(mig).total // 2**30,
                nvml.nvmlDeviceGetGpuInstanceId(mig),
                nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(mig)) is not None,
            ])
        """,
    )
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert made == [
        "Insufficient Resources",
        [name, "MIG-", 39, 1, True],
        [name, "MIG-", 39, 2, True],
    ]


def test_every_function_of_nvidias_package_is_there(driver):
    missing = ask(
        driver,
        """
        import ctypes, inspect, re
        library = ctypes.CDLL("libnvidia-ml.so.1")
        names = set(re.findall(r'_nvmlGetFunctionPointer\\("(nvml\\w+)"', inspect.getsource(nvml)))
        answer = [name for name in sorted(names) if not hasattr(library, name)], len(names)
        """,
    )
    assert missing[0] == []
    assert missing[1] > 200


LAYOUTS = {
    "pci_info": "nvmlPciInfo_t",
    "memory": "c_nvmlMemory_t",
    "memory_v2": "c_nvmlMemory_v2_t",
    "utilization": "c_nvmlUtilization_t",
    "field_value": "c_nvmlFieldValue_t",
    "attributes": "c_nvmlDeviceAttributes",
    "gpu_profile": "c_nvmlGpuInstanceProfileInfo_t",
    "gpu_profile_v2": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "gpu_instance_info": "c_nvmlGpuInstanceInfo_t",
    "compute_profile": "c_nvmlComputeInstanceProfileInfo_t",
    "compute_instance_info": "c_nvmlComputeInstanceInfo_t",
    "sram_errors": "c_nvmlEccSramErrorStatus_v1_t",
    "histogram": "c_nvmlRowRemapperHistogramValues",
    "violation": "c_nvmlViolationTime_t",
    "fabric_v3": "c_nvmlGpuFabricInfo_v3_t",
    "event": "c_nvmlEventData_t",
}


def test_layouts_are_those_of_nvidias_package(driver, tmp_path):
    """Their sizes: members stand in order, and width and padding add up."""
    sizes = "".join(f'printf("%zu\\n", sizeof(struct {name}));' for name in LAYOUTS)
    source = tmp_path / "sizes.c"
    header = simulated.IMAGE / "nvml/abi.h"
    source.write_text(f'#include <stdio.h>\n#include "{header}"\nint main(void) {{ {sizes} }}')
    subprocess.run(["cc", "-o", tmp_path / "sizes", source], check=True)
    ours = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout
    theirs = {name: ctypes.sizeof(getattr(pynvml, LAYOUTS[name])) for name in LAYOUTS}
    assert dict(zip(LAYOUTS, map(int, ours.split()), strict=True)) == theirs
