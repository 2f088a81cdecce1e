/* How a GPU is: memory, clocks, power, heat, errors. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"

/* -- memory ----------------------------------------------------------------------------- */

static uint64_t total_memory(const struct gpu *gpu) {
    return gpu->slot < 0 ? gpu->memory
                         : (uint64_t)gpu->instances[gpu->slot].profile->memory_mib << 20;
}

API nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    out->total = total_memory(&gpu);
    out->reserved = gpu.slot < 0 ? gpu.memory_reserved : 0;
    out->used = 0;
    out->free = out->total - out->reserved;
    return SUCCESS;
}

/* The older form counts what is reserved as used. */
API nvmlDeviceGetMemoryInfo(handle device, struct memory *out) {
    struct memory_v2 memory;
    result found = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    if (found != SUCCESS)
        return found;
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct memory){memory.total, memory.free, memory.reserved + memory.used};
    return SUCCESS;
}

API nvmlDeviceGetBAR1MemoryInfo(handle device, struct memory *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct memory){.total = gpu.bar1, .free = gpu.bar1 - (1 << 20), .used = 1 << 20};
    return SUCCESS;
}

/* -- use: nothing runs ------------------------------------------------------------------ */

API nvmlDeviceGetUtilizationRates(handle device, struct utilization *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    if (gpu.slot >= 0 || gpu.mig == 1)
        return NOT_SUPPORTED; /* NVML has no such figure where MIG is on */
    *out = (struct utilization){0, 0};
    return SUCCESS;
}

#define UTILIZATION(function)                                         \
    API function(handle device, uint *percent, uint *microseconds) {  \
        LOOK(device);                                                 \
        give(167000, microseconds);                                   \
        return give(0, percent);                                      \
    }

UTILIZATION(nvmlDeviceGetEncoderUtilization)
UTILIZATION(nvmlDeviceGetDecoderUtilization)
UTILIZATION(nvmlDeviceGetJpgUtilization)
UTILIZATION(nvmlDeviceGetOfaUtilization)

API nvmlDeviceGetEncoderStats(handle device, uint *sessions, uint *fps, uint *latency) {
    LOOK(device);
    give(0, fps);
    give(0, latency);
    return give(0, sessions);
}

API nvmlDeviceGetFBCStats(handle device, struct fbc_stats *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct fbc_stats){0};
    return SUCCESS;
}

/* -- PCI Express ------------------------------------------------------------------------ */

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu.pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu.pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu.pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, gpu.pcie_width)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, gpu.pcie_width)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)

/* Megabytes per second on one lane of each generation: 250, 500, 985, 1969, 3938. */
NUMBER(nvmlDeviceGetPcieSpeed, gpu.pcie_generation < 3 ? 250u << (gpu.pcie_generation - 1)
                                                       : 985u << (gpu.pcie_generation - 3))

API nvmlDeviceGetPcieThroughput(handle device, uint counter, uint *out) {
    LOOK(device);
    (void)counter;
    return give(0, out);
}

/* -- clocks ----------------------------------------------------------------------------- */

static uint64_t clock_of(const struct gpu *gpu, uint type, uint which) {
    bool now = which == CLOCK_NOW, most = which == CLOCK_BOOST_MAX;
    switch (type) {
    case CLOCK_GRAPHICS:
    case CLOCK_SM:
        return now ? gpu->graphics_clock : most ? gpu->graphics_clock_max
                                                : gpu->graphics_clock_application;
    case CLOCK_MEMORY:
        if (!now && !most && gpu->graphics_clock_application == ABSENT)
            return ABSENT; /* GPUs without application clocks have none for memory either */
        return now ? gpu->memory_clock : gpu->memory_clock_max;
    case CLOCK_VIDEO:
        return now ? gpu->video_clock : most ? gpu->video_clock_max : ABSENT;
    default:
        return ABSENT;
    }
}

API nvmlDeviceGetClock(handle device, uint type, uint which, uint *out) {
    LOOK(device);
    if (type > CLOCK_VIDEO || which > CLOCK_BOOST_MAX)
        return INVALID_ARGUMENT;
    return give(clock_of(&gpu, type, which), out);
}

#define CLOCK(function, which)                                \
    API function(handle device, uint type, uint *out) {       \
        return nvmlDeviceGetClock(device, type, which, out);  \
    }

CLOCK(nvmlDeviceGetClockInfo, CLOCK_NOW)
CLOCK(nvmlDeviceGetMaxClockInfo, CLOCK_BOOST_MAX)
CLOCK(nvmlDeviceGetApplicationsClock, CLOCK_APPLICATION)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, CLOCK_APPLICATION_DEFAULT)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, CLOCK_BOOST_MAX)

/* Hands over a list of clocks from the highest to the lowest. */
static result give_clocks(const uint *clocks, uint there, uint *count, uint *out) {
    if (!count)
        return INVALID_ARGUMENT;
    if (*count < there || !out) {
        *count = there;
        return INSUFFICIENT_SIZE;
    }
    *count = there;
    memcpy(out, clocks, there * sizeof *clocks);
    return SUCCESS;
}

API nvmlDeviceGetSupportedMemoryClocks(handle device, uint *count, uint *out) {
    LOOK(device);
    if (gpu.graphics_clock_application == ABSENT)
        return NOT_SUPPORTED;
    uint clock = (uint)gpu.memory_clock_max;
    return give_clocks(&clock, 1, count, out);
}

API nvmlDeviceGetSupportedGraphicsClocks(handle device, uint memory, uint *count, uint *out) {
    LOOK(device);
    enum { STEP = 15, MOST = 256 };
    uint clocks[MOST], there = 0;
    if (gpu.graphics_clock_application == ABSENT)
        return NOT_SUPPORTED;
    if (memory != gpu.memory_clock_max)
        return NOT_FOUND;
    for (uint clock = (uint)gpu.graphics_clock_max;
         clock >= gpu.graphics_clock && there < MOST; clock -= STEP)
        clocks[there++] = clock;
    return give_clocks(clocks, there, count, out);
}

static result give_wide(uint64_t value, ull *out) {
    if (!out)
        return INVALID_ARGUMENT;
    *out = value;
    return SUCCESS;
}

API nvmlDeviceGetCurrentClocksEventReasons(handle device, ull *out) {
    LOOK(device);
    return give_wide(gpu.clock_reasons, out);
}
ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);

API nvmlDeviceGetSupportedClocksEventReasons(handle device, ull *out) {
    LOOK(device);
    return give_wide(0x1ff, out);
}
ALIAS(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

NUMBER(nvmlDeviceGetPerformanceState, HIGHEST_PERFORMANCE)
NUMBER(nvmlDeviceGetPowerState, HIGHEST_PERFORMANCE)

API nvmlDeviceGetViolationStatus(handle device, uint policy, struct violation *out) {
    LOOK(device);
    (void)policy;
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct violation){(ull)time(NULL) * 1000000, 0};
    return SUCCESS;
}

/* -- power ------------------------------------------------------------------------------ */

static uint64_t limit(const struct gpu *gpu) {
    return gpu->power_limit_set == ABSENT ? gpu->power_limit : gpu->power_limit_set;
}

NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPowerUsage, gpu.power)
NUMBER(nvmlDeviceGetPowerManagementLimit, limit(&gpu))
NUMBER(nvmlDeviceGetEnforcedPowerLimit, limit(&gpu))
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu.power_limit)

API nvmlDeviceGetPowerManagementLimitConstraints(handle device, uint *lowest, uint *highest) {
    LOOK(device);
    result low = give(gpu.power_min, lowest), high = give(gpu.power_max, highest);
    return low != SUCCESS ? low : high;
}

API nvmlDeviceSetPowerManagementLimit(handle device, uint milliwatts) {
    LOOK(device);
    if (milliwatts < gpu.power_min || milliwatts > gpu.power_max)
        return INVALID_ARGUMENT;
    return set(&gpu, "power_limit_set %u", milliwatts);
}

struct power_value {
    uint version, scope, milliwatts;
};

API nvmlDeviceSetPowerManagementLimit_v2(handle device, const struct power_value *value) {
    return value ? nvmlDeviceSetPowerManagementLimit(device, value->milliwatts) : INVALID_ARGUMENT;
}

/* Idle power since the computer started, in millijoules: it only ever grows. */
API nvmlDeviceGetTotalEnergyConsumption(handle device, ull *out) {
    LOOK(device);
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    return give_wide(gpu.power * (uint64_t)up.tv_sec, out);
}

/* -- heat ------------------------------------------------------------------------------- */

API nvmlDeviceGetTemperature(handle device, uint sensor, uint *out) {
    LOOK(device);
    return sensor ? INVALID_ARGUMENT : give(gpu.temperature, out);
}

API nvmlDeviceGetTemperatureV(handle device, struct temperature *out) {
    LOOK(device);
    if (!out || out->sensor)
        return INVALID_ARGUMENT;
    out->celsius = (int)gpu.temperature;
    return SUCCESS;
}

/* From Hopper on, temperatures are told as distances to a limit. */
API nvmlDeviceGetMarginTemperature(handle device, struct margin *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    if (gpu.architecture < ARCHITECTURE_HOPPER)
        return NOT_SUPPORTED;
    out->celsius = (int)gpu.temperature_max - (int)gpu.temperature;
    return SUCCESS;
}

API nvmlDeviceGetTemperatureThreshold(handle device, uint threshold, uint *out) {
    LOOK(device);
    switch (threshold) {
    case THRESHOLD_SHUTDOWN:
        return give(gpu.temperature_shutdown, out);
    case THRESHOLD_SLOWDOWN:
        return give(gpu.temperature_slowdown, out);
    case THRESHOLD_GPU_MAX:
        return give(gpu.temperature_max, out);
    case THRESHOLD_MEMORY_MAX: /* what an A100 says; not recorded for each model */
        return give(gpu.temperature_memory == ABSENT ? ABSENT : 95, out);
    default:
        return NOT_SUPPORTED;
    }
}

NUMBER(nvmlDeviceGetFanSpeed, gpu.fan)
NUMBER(nvmlDeviceGetNumFans, gpu.fan == ABSENT ? 0 : 2)

API nvmlDeviceGetFanSpeed_v2(handle device, uint fan, uint *out) {
    LOOK(device);
    return fan > 1 ? INVALID_ARGUMENT : give(gpu.fan, out);
}

/* -- errors of memory ------------------------------------------------------------------- */

API nvmlDeviceGetEccMode(handle device, uint *now, uint *pending) {
    LOOK(device);
    result found = give(gpu.ecc, now);
    return found == SUCCESS ? give(gpu.ecc, pending) : found;
}

NUMBER(nvmlDeviceGetDefaultEccMode, gpu.ecc)

static uint64_t errors(const struct gpu *gpu, uint type) {
    return gpu->ecc != 1 ? ABSENT : type == CORRECTED ? gpu->ecc_corrected : gpu->ecc_uncorrected;
}

/* Errors since the driver started and since ever are the same: the GPU is new. */
API nvmlDeviceGetTotalEccErrors(handle device, uint type, uint counter, ull *out) {
    LOOK(device);
    (void)counter;
    uint64_t count = errors(&gpu, type);
    return count == ABSENT ? NOT_SUPPORTED : give_wide(count, out);
}

API nvmlDeviceGetDetailedEccErrors(handle device, uint type, uint counter, struct ecc_counts *out) {
    LOOK(device);
    (void)counter;
    if (!out)
        return INVALID_ARGUMENT;
    if (errors(&gpu, type) == ABSENT)
        return NOT_SUPPORTED;
    *out = (struct ecc_counts){.memory = errors(&gpu, type)};
    return SUCCESS;
}

/* From Turing on errors are told of SRAM and DRAM, before of each kind of memory. */
API nvmlDeviceGetMemoryErrorCounter(handle device, uint type, uint counter, uint location,
                                    ull *out) {
    LOOK(device);
    (void)counter;
    bool new = gpu.architecture >= ARCHITECTURE_TURING;
    if (errors(&gpu, type) == ABSENT ||
        (new ? location != LOCATION_DRAM && location != LOCATION_SRAM : location > 3))
        return NOT_SUPPORTED;
    return give_wide(location == LOCATION_DRAM ? errors(&gpu, type) : 0, out);
}

API nvmlDeviceGetSramEccErrorStatus(handle device, struct sram_errors *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    if (gpu.ecc != 1 || gpu.remap_pending == ABSENT)
        return NOT_SUPPORTED;
    *out = (struct sram_errors){.version = out->version};
    return SUCCESS;
}

API nvmlDeviceGetRemappedRows(handle device, uint *corrected, uint *uncorrected, uint *pending,
                              uint *failed) {
    LOOK(device);
    if (gpu.remap_pending == ABSENT)
        return NOT_SUPPORTED;
    give(gpu.remapped_corrected, corrected);
    give(gpu.remapped_uncorrected, uncorrected);
    give(gpu.remap_pending, pending);
    return give(0, failed);
}

API nvmlDeviceGetRowRemapperHistogram(handle device, struct histogram *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    if (gpu.remap_banks == ABSENT)
        return NOT_SUPPORTED;
    uint used = (uint)gpu.remapped_uncorrected;
    *out = (struct histogram){.max = (uint)gpu.remap_banks - used, .high = used};
    return SUCCESS;
}

API nvmlDeviceGetRetiredPages_v2(handle device, uint cause, uint *count, ull *addresses,
                                 ull *times) {
    LOOK(device);
    uint64_t pages = cause ? gpu.pages_uncorrected : gpu.pages_corrected;
    if (!count)
        return INVALID_ARGUMENT;
    if (pages == ABSENT)
        return NOT_SUPPORTED;
    uint room = *count;
    *count = (uint)pages;
    if (room < pages)
        return INSUFFICIENT_SIZE;
    for (uint page = 0; page < pages; page++) {
        if (addresses)
            addresses[page] = 0x1000ull * (page + 1);
        if (times)
            times[page] = (ull)time(NULL);
    }
    return SUCCESS;
}

API nvmlDeviceGetRetiredPages(handle device, uint cause, uint *count, ull *addresses) {
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, gpu.pages_pending)
