/* What the library knows: the text that machine.py writes, and what users have set. */
#ifndef GPUBED_NVML_STATE_H
#define GPUBED_NVML_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define ABSENT UINT64_MAX /* a number that such a GPU does not have */

/* Keys of the text with a number. */
#define NUMBERS(X)                                                                            \
    X(brand) X(architecture) X(compute_major) X(compute_minor) X(cores) X(gsp) X(minor)       \
    X(module_id) X(pci_device) X(pci_subsystem) X(pci_class) X(pcie_generation) X(pcie_width) \
    X(numa_node) X(memory) X(memory_reserved) X(memory_bus) X(bar1) X(graphics_clock)         \
    X(graphics_clock_application) X(graphics_clock_max) X(memory_clock) X(memory_clock_max)   \
    X(video_clock) X(video_clock_max) X(clock_reasons) X(power) X(power_limit) X(power_min)   \
    X(power_max) X(temperature) X(temperature_memory) X(temperature_max)                      \
    X(temperature_slowdown) X(temperature_shutdown) X(fan) X(ecc) X(ecc_corrected)            \
    X(ecc_uncorrected) X(remap_banks) X(remapped_corrected) X(remapped_uncorrected)           \
    X(remap_pending) X(pages_corrected) X(pages_uncorrected) X(pages_pending)                 \
    X(nvlink_version) X(nvlink_speed) X(fabric) X(mig)                                        \
    X(persistence) X(compute_mode) X(power_limit_set)

/* Keys of the text with words. */
#define WORDS(X)                                                                              \
    X(state) X(name) X(uuid) X(serial) X(part_number) X(vbios) X(inforom_image)               \
    X(inforom_oem) X(inforom_ecc) X(pci) X(cpus)

struct link {
    bool present, up, to_switch;
    char pci[24];
    uint device, remote;
};

struct peer {
    uint level;
    bool linked;
};

struct profile {
    uint enumerant, id, slices, memory_slices, count, memory_mib, multiprocessors;
    char name[32];
};

/* A MIG instance. Its compute instance, when there is one, is as big as itself. */
struct instance {
    bool present, compute;
    const struct profile *profile;
    uint profile_index, start;
};

struct gpu {
    uint index;
    int slot; /* the MIG instance that a handle stands for, or -1 */
#define X(name) uint64_t name;
    NUMBERS(X)
#undef X
#define X(name) char name[256];
    WORDS(X)
#undef X
    struct peer peers[MAX_GPUS];
    struct link links[MAX_LINKS];
    uint profile_count;
    struct profile profiles[MAX_PROFILES];
    struct instance instances[MAX_INSTANCES];
};

/* Starts the library for this process, or says why it cannot. */
result start(void);
result stop(void);
bool started(void);

uint gpu_count(void);
uint64_t cuda_version(void);

handle gpu_handle(uint index);
handle mig_handle(uint index, uint slot);
handle compute_handle(uint index, uint slot);

/* Copies what is known of a GPU. `identify` answers for one that needs a reset, too. */
result identify(handle device, struct gpu *gpu);
result look(handle device, struct gpu *gpu);
/* The same for a MIG instance or its compute instance; the slot is in gpu->slot. */
result look_instance(handle instance, struct gpu *gpu);
/* A GPU by its number, whatever its state. */
bool peek(uint index, struct gpu *gpu);

/* Remembers what a user sets, for all processes: one line of the text's form. */
result set(const struct gpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Hand a value to the caller. */
result give(uint64_t value, uint *out);
result give_words(const char *words, char *out, uint size);

#endif
