/* How GPUs reach each other: PCI Express, NVLink, the fabric of NVSwitches. */
#include <stdio.h>
#include <string.h>

#include "api.h"

enum { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1, P2P_NOT_SUPPORTED = 5 };
enum { P2P_NVLINK = 2, P2P_ATOMICS = 3, P2P_PROP = 4 };
enum { CAPABILITY_SLI_BRIDGE = 4, CAPABILITY_VALID = 5 };

/* -- PCI Express ------------------------------------------------------------------------ */

API nvmlDeviceGetTopologyCommonAncestor(handle one, handle other, uint *out) {
    LOOK(one);
    struct gpu second;
    result found = look(other, &second);
    if (found != SUCCESS)
        return found;
    return give(gpu.index == second.index ? TOPOLOGY_INTERNAL : gpu.peers[second.index].level, out);
}

API nvmlDeviceGetTopologyNearestGpus(handle device, uint level, uint *count, handle *out) {
    LOOK(device);
    if (!count)
        return INVALID_ARGUMENT;
    uint room = *count, there = 0;
    for (uint other = 0; other < gpu_count(); other++)
        if (other != gpu.index && gpu.peers[other].level == level) {
            if (out && there < room)
                out[there] = gpu_handle(other);
            there++;
        }
    *count = there;
    return out && there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* GPUs that are local to a CPU. */
API nvmlSystemGetTopologyGpuSet(uint cpu, uint *count, handle *out) {
    struct gpu gpu;
    if (!started())
        return UNINITIALIZED;
    if (!count)
        return INVALID_ARGUMENT;
    uint room = *count, there = 0;
    for (uint index = 0; peek(index, &gpu); index++) {
        unsigned long set[64] = {0};
        if (nvmlDeviceGetCpuAffinity(gpu_handle(index), 64, set) != SUCCESS || cpu >= 64 * 64 ||
            !(set[cpu / 64] >> cpu % 64 & 1))
            continue;
        if (out && there < room)
            out[there] = gpu_handle(index);
        there++;
    }
    *count = there;
    return out && there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* GPUs of one board or one PCIe root reach each other's memory; GeForce cards do not. */
API nvmlDeviceGetP2PStatus(handle one, handle other, uint capability, uint *out) {
    LOOK(one);
    struct gpu second;
    result found = look(other, &second);
    if (found != SUCCESS)
        return found;
    struct peer peer = gpu.peers[second.index];
    bool pci = gpu.brand != BRAND_GEFORCE && peer.level < TOPOLOGY_SYSTEM;
    uint status = capability == P2P_NVLINK ? (peer.linked ? P2P_OK : P2P_NOT_SUPPORTED)
                  : capability == P2P_ATOMICS ? (peer.linked ? P2P_OK : P2P_NOT_SUPPORTED)
                  : capability == P2P_PROP ? (pci ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED)
                  : (peer.linked || pci ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED);
    return give(status, out);
}

/* -- NVLink ----------------------------------------------------------------------------- */

/* Finds a link. Callers try all numbers that any GPU could have. */
static result find_link(handle device, uint number, struct gpu *gpu, struct link *link) {
    result found = look(device, gpu);
    if (found != SUCCESS)
        return found;
    if (number >= MAX_LINKS)
        return INVALID_ARGUMENT;
    if (!gpu->links[number].present)
        return NOT_SUPPORTED;
    *link = gpu->links[number];
    return SUCCESS;
}

#define FIND_LINK(device, number)                                     \
    struct gpu gpu;                                                   \
    struct link link;                                                 \
    do {                                                              \
        result found = find_link(device, number, &gpu, &link);        \
        if (found != SUCCESS) return found;                           \
    } while (0)

API nvmlDeviceGetNvLinkState(handle device, uint number, uint *out) {
    FIND_LINK(device, number);
    return give(link.up, out);
}

API nvmlDeviceGetNvLinkVersion(handle device, uint number, uint *out) {
    FIND_LINK(device, number);
    return give(gpu.nvlink_version, out);
}

API nvmlDeviceGetNvLinkCapability(handle device, uint number, uint capability, uint *out) {
    FIND_LINK(device, number);
    if (capability > CAPABILITY_VALID)
        return INVALID_ARGUMENT;
    return give(capability != CAPABILITY_SLI_BRIDGE, out);
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, uint number, struct pci_info *out) {
    FIND_LINK(device, number);
    if (!out)
        return INVALID_ARGUMENT;
    if (!link.up)
        return NOT_SUPPORTED;
    fill_pci(link.pci, link.device, 0, out);
    return SUCCESS;
}
ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);

API nvmlDeviceGetNvLinkRemoteDeviceType(handle device, uint number, uint *out) {
    FIND_LINK(device, number);
    return link.up ? give(link.to_switch ? REMOTE_SWITCH : REMOTE_GPU, out) : NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkErrorCounter(handle device, uint number, uint counter, ull *out) {
    FIND_LINK(device, number);
    (void)counter;
    if (!out)
        return INVALID_ARGUMENT;
    *out = 0;
    return SUCCESS;
}

API nvmlDeviceResetNvLinkErrorCounters(handle device, uint number) {
    FIND_LINK(device, number);
    return SUCCESS;
}

API nvmlDeviceGetC2cModeInfoV(handle device, struct c2c_mode *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    if (gpu.architecture < ARCHITECTURE_HOPPER)
        return NOT_SUPPORTED;
    out->enabled = 0;
    return SUCCESS;
}

/* -- fabric ----------------------------------------------------------------------------- */

/* 1 from the text: joined. Fabric Manager has not started yet: 0. */
static unsigned char fabric_state(const struct gpu *gpu) {
    return gpu->fabric == ABSENT ? FABRIC_NOT_SUPPORTED
           : gpu->fabric         ? FABRIC_COMPLETED
                                 : FABRIC_IN_PROGRESS;
}

API nvmlDeviceGetGpuFabricInfo(handle device, struct fabric *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct fabric){.state = fabric_state(&gpu)};
    return SUCCESS;
}

/* Versions 2 and 3 differ in their last member only. */
API nvmlDeviceGetGpuFabricInfoV(handle device, struct fabric_v3 *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    uint version = out->version >> 24;
    memset(out->cluster, 0, sizeof out->cluster);
    out->status = SUCCESS;
    out->clique = 0;
    out->state = fabric_state(&gpu);
    out->health = 0;
    if (version >= 3)
        out->summary = gpu.fabric == 1;
    return SUCCESS;
}
