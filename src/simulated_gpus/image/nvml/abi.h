/* The part of NVML's binary interface that this library serves.
 *
 * NVML's own header is not free to copy, and no package of Debian has it. What follows is
 * written from NVML's API reference (https://docs.nvidia.com/deploy/nvml-api/): numbers, and
 * the order and width of what callers hand over. tests/unit/simulation compares the layouts
 * with those that NVIDIA's own Python package declares. */
#ifndef GPUBED_NVML_ABI_H
#define GPUBED_NVML_ABI_H

#include <stdint.h>

typedef int result; /* nvmlReturn_t */
typedef void *handle; /* nvmlDevice_t, nvmlGpuInstance_t, nvmlComputeInstance_t, nvmlEventSet_t */
typedef unsigned int uint;
typedef unsigned long long ull;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    OPERATING_SYSTEM = 17,
    LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    UNKNOWN = 999,
};

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };
enum { CLOCK_NOW, CLOCK_APPLICATION, CLOCK_APPLICATION_DEFAULT, CLOCK_BOOST_MAX };
enum { CORRECTED, UNCORRECTED };
enum { LOCATION_L1, LOCATION_L2, LOCATION_DRAM, LOCATION_SRAM = 7 };
enum { THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN, THRESHOLD_MEMORY_MAX, THRESHOLD_GPU_MAX };
enum { INFOROM_OEM, INFOROM_ECC };
enum { VALUE_DOUBLE, VALUE_UINT, VALUE_ULONG, VALUE_ULL, VALUE_LL, VALUE_INT };
enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_SYSTEM = 50 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { FABRIC_NOT_SUPPORTED, FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED };

enum { BRAND_GEFORCE = 5, ARCHITECTURE_TURING = 6, ARCHITECTURE_HOPPER = 9 };
enum { VGPU_NONE = 0, HIGHEST_PERFORMANCE = 0 };
enum { EVENT_XID = 8 };
enum { MAX_LINKS = 18, MAX_GPUS = 16, MAX_PROFILES = 8, MAX_INSTANCES = 7 };

struct pci_info {
    char bus_id_legacy[16];
    uint domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct pci_info_ext {
    uint version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

struct memory {
    ull total, free, used;
};

struct memory_v2 {
    uint version;
    ull total, reserved, free, used;
};

struct utilization {
    uint gpu, memory;
};

struct ecc_counts {
    ull l1, l2, memory, registers;
};

struct sram_errors {
    uint version;
    ull aggregate_parity, aggregate_secded, aggregate_corrected;
    ull volatile_parity, volatile_secded, volatile_corrected;
    ull l2, sm, pcie, mcu, other;
    uint threshold_exceeded;
};

struct histogram {
    uint max, high, partial, low, none;
};

struct violation {
    ull reference, time;
};

struct fbc_stats {
    uint sessions, fps, latency;
};

struct temperature {
    uint version;
    uint sensor;
    int celsius;
};

struct margin {
    uint version;
    int celsius;
};

struct c2c_mode {
    uint enabled;
};

union value {
    double d;
    int i;
    uint u;
    unsigned long l;
    ull ull;
    long long ll;
};

struct field_value {
    uint field, scope;
    long long timestamp, latency;
    uint type;
    result result;
    union value value;
};

struct attributes {
    uint multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    uint gpu_slices, compute_slices;
    ull memory_mib;
};

struct placement {
    uint start, size;
};

struct gpu_profile {
    uint id, p2p, slices, instances, multiprocessors;
    uint copy_engines, decoders, encoders, jpeg, ofa;
    ull memory_mib;
};

struct gpu_profile_v2 {
    uint version, id, p2p, slices, instances, multiprocessors;
    uint copy_engines, decoders, encoders, jpeg, ofa;
    ull memory_mib;
    char name[96];
};

struct gpu_profile_v3 {
    uint version, id, slices, instances, multiprocessors;
    uint copy_engines, decoders, encoders, jpeg, ofa;
    ull memory_mib;
    char name[96];
    uint capabilities;
};

struct gpu_instance_info {
    handle device;
    uint id, profile;
    struct placement placement;
};

struct compute_profile {
    uint id, slices, instances, multiprocessors;
    uint copy_engines, decoders, encoders, jpeg, ofa;
};

struct compute_profile_v2 {
    uint version, id, slices, instances, multiprocessors;
    uint copy_engines, decoders, encoders, jpeg, ofa;
    char name[96];
};

struct compute_instance_info {
    handle device, gpu_instance;
    uint id, profile;
    struct placement placement;
};

struct fabric {
    unsigned char cluster[16];
    result status;
    uint clique;
    unsigned char state;
};

struct fabric_v3 {
    uint version;
    unsigned char cluster[16];
    result status;
    uint clique;
    unsigned char state;
    uint health;
    unsigned char summary;
};

struct event {
    handle device;
    ull type, data;
    uint gpu_instance, compute_instance;
};

struct driver_branch {
    uint version;
    char branch[80];
};

#endif
