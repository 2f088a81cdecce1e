/* Which GPUs there are, and what each of them is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api.h"

/* -- handles ---------------------------------------------------------------------------- */

API nvmlDeviceGetCount_v2(uint *out) {
    if (!started())
        return UNINITIALIZED;
    return give(gpu_count(), out);
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

API nvmlDeviceGetHandleByIndex_v2(uint index, handle *out) {
    if (!started())
        return UNINITIALIZED;
    if (!out || index >= gpu_count())
        return INVALID_ARGUMENT;
    *out = gpu_handle(index);
    IDENTIFY(*out);
    return SUCCESS;
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

/* Finds the GPU of which `matches` says that it is meant. */
static result find_handle(bool (*matches)(const struct gpu *, const char *), const char *wanted,
                          handle *out) {
    struct gpu gpu;
    if (!started())
        return UNINITIALIZED;
    if (!wanted || !out)
        return INVALID_ARGUMENT;
    for (uint index = 0; peek(index, &gpu); index++) {
        if (!matches(&gpu, wanted))
            continue;
        *out = gpu_handle(index);
        return identify(*out, &gpu);
    }
    return NOT_FOUND;
}

/* "0000:07:00.0" and "00000000:07:00.0" are one address. */
static bool has_address(const struct gpu *gpu, const char *wanted) {
    struct pci_info one, other;
    fill_pci(gpu->pci, 0, 0, &one);
    fill_pci(wanted, 0, 0, &other);
    return !strcmp(one.bus_id, other.bus_id);
}

static bool has_uuid(const struct gpu *gpu, const char *wanted) {
    return !strcasecmp(gpu->uuid, wanted);
}

static bool has_serial(const struct gpu *gpu, const char *wanted) {
    return *gpu->serial && !strcmp(gpu->serial, wanted);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *address, handle *out) {
    return find_handle(has_address, address, out);
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

API nvmlDeviceGetHandleBySerial(const char *serial, handle *out) {
    return find_handle(has_serial, serial, out);
}

static void instance_uuid(const struct gpu *gpu, char *out, size_t size);

API nvmlDeviceGetHandleByUUID(const char *uuid, handle *out) {
    struct gpu gpu;
    if (uuid && out && started() && !strncmp(uuid, "MIG-", 4)) {
        for (uint index = 0; peek(index, &gpu); index++)
            for (uint slot = 0; slot < MAX_INSTANCES; slot++) {
                char name[64];
                gpu.slot = (int)slot;
                instance_uuid(&gpu, name, sizeof name);
                if (gpu.instances[slot].present && !strcasecmp(uuid, name)) {
                    *out = mig_handle(index, slot);
                    return SUCCESS;
                }
            }
        return NOT_FOUND;
    }
    return find_handle(has_uuid, uuid, out);
}

/* -- identity --------------------------------------------------------------------------- */

/* A MIG instance's UUID: its GPU's, with the instance's number in the last place. */
static void instance_uuid(const struct gpu *gpu, char *out, size_t size) {
    snprintf(out, size, "MIG-%.*s%02x", (int)strlen(gpu->uuid) - 6, gpu->uuid + 4,
             (uint)gpu->slot + 1);
}

API nvmlDeviceGetUUID(handle device, char *out, uint size) {
    IDENTIFY(device);
    char uuid[64];
    if (gpu.slot < 0)
        return give_words(gpu.uuid, out, size);
    instance_uuid(&gpu, uuid, sizeof uuid);
    return give_words(uuid, out, size);
}

API nvmlDeviceGetName(handle device, char *out, uint size) {
    IDENTIFY(device);
    char name[320];
    if (gpu.slot < 0)
        return give_words(gpu.name, out, size);
    snprintf(name, sizeof name, "%s MIG %s", gpu.name, gpu.instances[gpu.slot].profile->name);
    return give_words(name, out, size);
}

TEXT(nvmlDeviceGetSerial, gpu.serial)
TEXT(nvmlDeviceGetBoardPartNumber, gpu.part_number)
TEXT(nvmlDeviceGetVbiosVersion, gpu.vbios)
TEXT(nvmlDeviceGetInforomImageVersion, gpu.inforom_image)

API nvmlDeviceGetInforomVersion(handle device, uint object, char *out, uint size) {
    IDENTIFY(device);
    return give_words(object == INFOROM_OEM ? gpu.inforom_oem
                      : object == INFOROM_ECC ? gpu.inforom_ecc
                                              : "",
                      out, size);
}

API nvmlDeviceValidateInforom(handle device) {
    LOOK(device);
    return *gpu.inforom_image ? SUCCESS : NOT_SUPPORTED;
}

IDENTITY_NUMBER(nvmlDeviceGetIndex, gpu.index)
IDENTITY_NUMBER(nvmlDeviceGetMinorNumber, gpu.minor)
IDENTITY_NUMBER(nvmlDeviceGetBrand, gpu.brand)
IDENTITY_NUMBER(nvmlDeviceGetArchitecture, gpu.architecture)
IDENTITY_NUMBER(nvmlDeviceGetModuleId, gpu.module_id)
IDENTITY_NUMBER(nvmlDeviceGetNumGpuCores, gpu.cores)
IDENTITY_NUMBER(nvmlDeviceGetMemoryBusWidth, gpu.memory_bus)
IDENTITY_NUMBER(nvmlDeviceGetMultiGpuBoard, 0)

API nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
    IDENTIFY(device);
    if (!major || !minor)
        return INVALID_ARGUMENT;
    *major = (int)gpu.compute_major;
    *minor = (int)gpu.compute_minor;
    return SUCCESS;
}

/* The board's number is the PCI bus in the upper byte, as real drivers have it. */
API nvmlDeviceGetBoardId(handle device, uint *out) {
    IDENTIFY(device);
    struct pci_info pci;
    fill_pci(gpu.pci, 0, 0, &pci);
    return give(pci.bus << 8 | pci.device, out);
}

API nvmlDeviceOnSameBoard(handle one, handle other, int *out) {
    if (!out)
        return INVALID_ARGUMENT;
    *out = one == other;
    return SUCCESS;
}

API nvmlDeviceGetGspFirmwareVersion(handle device, char *out) {
    LOOK(device);
    return gpu.gsp == ABSENT ? NOT_SUPPORTED : give_words(DRIVER_VERSION, out, 64);
}

API nvmlDeviceGetGspFirmwareMode(handle device, uint *on, uint *by_default) {
    LOOK(device);
    uint64_t has = gpu.gsp == ABSENT ? 0 : 1;
    give(has, on);
    return give(has, by_default);
}

/* -- PCI and CPUs ----------------------------------------------------------------------- */

void fill_pci(const char *address, uint64_t device_id, uint64_t subsystem_id,
              struct pci_info *out) {
    uint function = 0;
    memset(out, 0, sizeof *out);
    sscanf(address, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function);
    out->device_id = (uint)device_id;
    out->subsystem_id = (uint)subsystem_id;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%X", out->domain, out->bus & 0xff,
             out->device & 0xff, function & 0xf);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.%X",
             out->domain & 0xffff, out->bus & 0xff, out->device & 0xff, function & 0xf);
}

API nvmlDeviceGetPciInfo_v3(handle device, struct pci_info *out) {
    IDENTIFY(device);
    if (!out)
        return INVALID_ARGUMENT;
    fill_pci(gpu.pci, gpu.pci_device, gpu.pci_subsystem, out);
    return SUCCESS;
}
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3);
ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);

API nvmlDeviceGetPciInfoExt(handle device, struct pci_info_ext *out) {
    IDENTIFY(device);
    struct pci_info pci;
    if (!out)
        return INVALID_ARGUMENT;
    fill_pci(gpu.pci, gpu.pci_device, gpu.pci_subsystem, &pci);
    out->domain = pci.domain;
    out->bus = pci.bus;
    out->device = pci.device;
    out->device_id = pci.device_id;
    out->subsystem_id = pci.subsystem_id;
    out->base_class = gpu.pci_class >> 16 & 0xff;
    out->sub_class = gpu.pci_class >> 8 & 0xff;
    memcpy(out->bus_id, pci.bus_id, sizeof out->bus_id);
    return SUCCESS;
}

/* Sets the bit of each CPU that is local to the GPU. */
API nvmlDeviceGetCpuAffinity(handle device, uint size, unsigned long *set_out) {
    LOOK(device);
    if (!set_out || !size)
        return INVALID_ARGUMENT;
    uint bits = 8 * sizeof *set_out;
    memset(set_out, 0, size * sizeof *set_out);
    for (const char *next = gpu.cpus; *next;) {
        char *end;
        unsigned long cpu = strtoul(next, &end, 10);
        if (cpu / bits < size)
            set_out[cpu / bits] |= 1ul << cpu % bits;
        next = *end ? end + 1 : end;
    }
    return SUCCESS;
}

API nvmlDeviceGetCpuAffinityWithinScope(handle device, uint size, unsigned long *out, uint scope) {
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, size, out);
}

API nvmlDeviceGetMemoryAffinity(handle device, uint size, unsigned long *out, uint scope) {
    LOOK(device);
    (void)scope;
    if (!out || !size)
        return INVALID_ARGUMENT;
    memset(out, 0, size * sizeof *out);
    *out = 1ul << gpu.numa_node;
    return SUCCESS;
}

/* Only GPUs with memory that the operating system manages are NUMA nodes of their own. */
API nvmlDeviceGetNumaNodeId(handle device, uint *out) {
    LOOK(device);
    return give(ABSENT, out);
}

/* -- what users set --------------------------------------------------------------------- */

NUMBER(nvmlDeviceGetPersistenceMode, gpu.persistence)
NUMBER(nvmlDeviceGetComputeMode, gpu.compute_mode)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetVirtualizationMode, VGPU_NONE)

static result set_number(handle device, const char *key, uint value, uint highest,
                         uint64_t (*current)(const struct gpu *)) {
    LOOK(device);
    if (value > highest)
        return INVALID_ARGUMENT;
    return current(&gpu) == value ? SUCCESS : set(&gpu, "%s %u", key, value);
}

static uint64_t persistence(const struct gpu *gpu) { return gpu->persistence; }
static uint64_t compute_mode(const struct gpu *gpu) { return gpu->compute_mode; }

API nvmlDeviceSetPersistenceMode(handle device, uint mode) {
    return set_number(device, "persistence", mode, 1, persistence);
}

API nvmlDeviceSetComputeMode(handle device, uint mode) {
    return set_number(device, "compute_mode", mode, 3, compute_mode);
}

/* -- processes: CUDA does not run here -------------------------------------------------- */

static result no_processes(handle device, uint *count) {
    LOOK(device);
    if (!count)
        return INVALID_ARGUMENT;
    *count = 0;
    return SUCCESS;
}

#define NO_PROCESSES(function)                              \
    API function(handle device, uint *count, void *list) { \
        (void)list;                                        \
        return no_processes(device, count);                \
    }

NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetEncoderSessions)
NO_PROCESSES(nvmlDeviceGetFBCSessions)
NO_PROCESSES(nvmlDeviceGetAccountingPids)
ALIAS(nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v3);
ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v3);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3);

NUMBER(nvmlDeviceGetAccountingMode, 0)
NUMBER(nvmlDeviceGetAccountingBufferSize, 4000)
