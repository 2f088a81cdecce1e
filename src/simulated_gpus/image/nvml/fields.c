/* Values by number: nvmlDeviceGetFieldValues. The numbers are NVML's NVML_FI_* constants. */
#include <stddef.h>
#include <sys/time.h>

#include "api.h"

enum { NOTHING_WRONG = 0, RESET_GPU = 1 };

/* Which number of a link is asked for by one field for each link: links 0 to 5, 6 to 11. */
static int link_of(uint field, uint first, uint second) {
    if (field >= first && field < first + 6)
        return (int)(field - first);
    if (field >= second && field < second + 6)
        return (int)(field - second) + 6;
    return -1;
}

static uint64_t speed(const struct gpu *gpu, uint link) {
    return link >= MAX_LINKS || !gpu->links[link].present ? ABSENT
           : gpu->links[link].up                          ? gpu->nvlink_speed
                                                          : 0;
}

static uint links(const struct gpu *gpu, bool only_to_switches) {
    uint count = 0;
    for (uint link = 0; link < MAX_LINKS; link++)
        count += gpu->links[link].present && (!only_to_switches || gpu->links[link].to_switch);
    return count;
}

static uint64_t nvlink_field(const struct gpu *gpu, uint field, uint scope) {
    if (gpu->nvlink_version == ABSENT)
        return ABSENT;
    int link = link_of(field, 84, 132);
    if (link >= 0)
        return speed(gpu, (uint)link);
    bool there = scope < MAX_LINKS && gpu->links[scope].present;
    switch (field) {
    case 90: /* speed that all links have */
        return gpu->nvlink_speed;
    case 91:
        return links(gpu, false);
    case 146:
        return there ? gpu->links[scope].remote : ABSENT;
    case 147:
        return links(gpu, true);
    case 164:
        return speed(gpu, scope);
    case 165:
        return there ? gpu->links[scope].up : ABSENT;
    case 166:
        return there ? gpu->nvlink_version : ABSENT;
    }
    /* Counters of errors: flits, data, replays, recoveries, ECC, and totals. */
    if ((field >= 32 && field <= 59) || (field >= 96 && field <= 119) ||
        (field >= 148 && field <= 163) || (field >= 138 && field <= 141))
        return 0;
    return ABSENT;
}

static uint64_t ecc_field(const struct gpu *gpu, uint field) {
    if (field <= 2)
        return gpu->ecc;
    if (gpu->ecc != 1)
        return ABSENT;
    switch (field) {
    case 3:
    case 5:
    case 11:
    case 22:
        return gpu->ecc_corrected;
    case 4:
    case 6:
    case 12:
    case 23:
        return gpu->ecc_uncorrected;
    default: /* caches and registers: no errors */
        return 0;
    }
}

/* Distances to the limits, from Hopper on, as nvmlDeviceGetMarginTemperature counts them. */
static uint64_t margin_field(const struct gpu *gpu, uint field) {
    if (gpu->architecture < ARCHITECTURE_HOPPER || gpu->brand == BRAND_GEFORCE)
        return ABSENT;
    switch (field) {
    case 193:
        return gpu->temperature_max - gpu->temperature_shutdown;
    case 194:
        return gpu->temperature_max - gpu->temperature_slowdown;
    default:
        return 0;
    }
}

static uint64_t power_field(const struct gpu *gpu, uint field) {
    switch (field) {
    case 185:
    case 186:
        return gpu->power;
    case 187:
        return gpu->power_min;
    case 188:
        return gpu->power_max;
    case 189:
        return gpu->power_limit;
    default: /* the limits in force and asked for */
        return gpu->power_limit_set == ABSENT ? gpu->power_limit : gpu->power_limit_set;
    }
}

static uint64_t field_of(const struct gpu *gpu, uint field, uint scope) {
    if (field >= 1 && field <= 28)
        return ecc_field(gpu, field);
    if ((field >= 185 && field <= 190) || field == 192)
        return scope ? ABSENT : power_field(gpu, field); /* scopes: GPU, module, memory */
    if (field >= 193 && field <= 196)
        return margin_field(gpu, field);
    switch (field) {
    case 29:
        return gpu->pages_corrected;
    case 30:
        return gpu->pages_uncorrected;
    case 31:
    case 93:
        return gpu->pages_pending;
    case 92:
        return gpu->pages_pending == ABSENT ? ABSENT : 0;
    case 82:
        return gpu->temperature_memory;
    case 94:
    case 95:
        return 0; /* PCIe replays */
    case 142:
        return gpu->remapped_corrected;
    case 143:
        return gpu->remapped_uncorrected;
    case 144:
        return gpu->remap_pending;
    case 145:
        return gpu->remap_pending == ABSENT ? ABSENT : 0;
    case 184:
        return gpu->mig == ABSENT ? 0 : gpu->architecture >= ARCHITECTURE_HOPPER;
    case 199:
        return gpu->mig != ABSENT;
    case 226:
        return 0;
    case 227:
    case 230: /* what heals the GPU: rows and pages are taken out of use by a reset */
        return gpu->remap_pending == 1 || gpu->pages_pending == 1 ? RESET_GPU : NOTHING_WRONG;
    case 308:
        return gpu->temperature;
    default:
        return nvlink_field(gpu, field, scope);
    }
}

static bool is_signed(uint field) { return field >= 193 && field <= 196; }

API nvmlDeviceGetFieldValues(handle device, int count, struct field_value *values) {
    LOOK(device);
    struct timeval now;
    if (count < 1 || !values)
        return INVALID_ARGUMENT;
    gettimeofday(&now, NULL);
    for (int i = 0; i < count; i++) {
        uint64_t value = field_of(&gpu, values[i].field, values[i].scope);
        values[i].timestamp = now.tv_sec * 1000000LL + now.tv_usec;
        values[i].latency = 0;
        values[i].result = value == ABSENT ? NOT_SUPPORTED : SUCCESS;
        values[i].type = is_signed(values[i].field) ? VALUE_INT : VALUE_ULL;
        values[i].value.ull = value == ABSENT ? 0 : value;
    }
    return SUCCESS;
}
