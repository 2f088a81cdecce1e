/* Multi-Instance GPU. Each GPU instance has at most one compute instance, as big as itself. */
#include <string.h>

#include "api.h"

enum { WHOLE_MEMORY = 8, ANY_START = -1 };

/* -- mode ------------------------------------------------------------------------------- */

API nvmlDeviceGetMigMode(handle device, uint *now, uint *pending) {
    LOOK(device);
    result found = give(gpu.mig, now);
    return found == SUCCESS ? give(gpu.mig, pending) : found;
}

API nvmlDeviceSetMigMode(handle device, uint mode, result *activation) {
    LOOK(device);
    if (gpu.mig == ABSENT)
        return NOT_SUPPORTED;
    if (mode > 1 || !activation)
        return INVALID_ARGUMENT;
    *activation = SUCCESS;
    result done = gpu.mig == mode ? SUCCESS : set(&gpu, "mig %u", mode);
    for (uint slot = 0; done == SUCCESS && !mode && slot < MAX_INSTANCES; slot++)
        if (gpu.instances[slot].present)
            done = set(&gpu, "instance %u none", slot);
    return done;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, gpu.mig == ABSENT ? 0 : MAX_INSTANCES)

/* -- profiles --------------------------------------------------------------------------- */

static const struct profile *by_enumerant(const struct gpu *gpu, uint enumerant) {
    for (uint i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].enumerant == enumerant)
            return &gpu->profiles[i];
    return NULL;
}

static const struct profile *by_id(const struct gpu *gpu, uint id) {
    for (uint i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

/* Engines that go with a profile: a copy engine for each slice, decoders for larger ones. */
static struct gpu_profile profile_info(const struct profile *profile) {
    uint media = profile->slices / 2 + (profile->name[strlen(profile->name) - 1] == 'e');
    return (struct gpu_profile){
        .id = profile->id,
        .slices = profile->slices,
        .instances = profile->count,
        .multiprocessors = profile->multiprocessors,
        .copy_engines = profile->slices,
        .decoders = media,
        .jpeg = profile->slices == 7,
        .ofa = profile->slices == 7,
        .memory_mib = profile->memory_mib,
    };
}

API nvmlDeviceGetGpuInstanceProfileInfo(handle device, uint enumerant, struct gpu_profile *out) {
    LOOK(device);
    const struct profile *profile = by_enumerant(&gpu, enumerant);
    if (!out)
        return INVALID_ARGUMENT;
    if (!profile)
        return NOT_SUPPORTED;
    *out = profile_info(profile);
    return SUCCESS;
}

static result fill_profile(const struct profile *profile, struct gpu_profile_v2 *out) {
    if (!out)
        return INVALID_ARGUMENT;
    if (!profile)
        return NOT_SUPPORTED;
    struct gpu_profile info = profile_info(profile);
    if (out->version >> 24 == 2) {
        *out = (struct gpu_profile_v2){
            out->version, info.id, info.p2p, info.slices, info.instances, info.multiprocessors,
            info.copy_engines, info.decoders, info.encoders, info.jpeg, info.ofa, info.memory_mib,
            ""};
        memcpy(out->name, "MIG ", 4);
        strcpy(out->name + 4, profile->name);
        return SUCCESS;
    }
    struct gpu_profile_v3 *newer = (struct gpu_profile_v3 *)out;
    *newer = (struct gpu_profile_v3){
        out->version, info.id, info.slices, info.instances, info.multiprocessors,
        info.copy_engines, info.decoders, info.encoders, info.jpeg, info.ofa, info.memory_mib,
        "", 0};
    memcpy(newer->name, "MIG ", 4);
    strcpy(newer->name + 4, profile->name);
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceProfileInfoV(handle device, uint enumerant,
                                         struct gpu_profile_v2 *out) {
    LOOK(device);
    return fill_profile(by_enumerant(&gpu, enumerant), out);
}

API nvmlDeviceGetGpuInstanceProfileInfoByIdV(handle device, uint id, struct gpu_profile_v2 *out) {
    LOOK(device);
    return fill_profile(by_id(&gpu, id), out);
}

/* -- placement: eight slices of memory, and instances begin where their size allows ------ */

static uint places(const struct profile *profile, struct placement *out) {
    uint size = profile->memory_slices, step = size == 1 ? 1 : size, there = 0;
    uint most = profile->count > 1 || size > 1 ? profile->count : MAX_INSTANCES;
    for (uint start = 0; start + size <= WHOLE_MEMORY && there < most; start += step)
        out[there++] = (struct placement){start, size};
    return there;
}

static bool is_free(const struct gpu *gpu, struct placement wanted) {
    for (uint slot = 0; slot < MAX_INSTANCES; slot++) {
        const struct instance *there = &gpu->instances[slot];
        if (there->present && wanted.start < there->start + there->profile->memory_slices &&
            there->start < wanted.start + wanted.size)
            return false;
    }
    return true;
}

API nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle device, uint id, struct placement *out,
                                                  uint *count) {
    LOOK(device);
    struct placement found[WHOLE_MEMORY];
    const struct profile *profile = by_id(&gpu, id);
    if (!count)
        return INVALID_ARGUMENT;
    if (!profile)
        return NOT_SUPPORTED;
    uint there = places(profile, found);
    if (out && *count >= there)
        memcpy(out, found, there * sizeof *found);
    *count = there;
    return SUCCESS;
}
ALIAS(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2);

API nvmlDeviceGetGpuInstanceRemainingCapacity(handle device, uint id, uint *out) {
    LOOK(device);
    struct placement found[WHOLE_MEMORY];
    const struct profile *profile = by_id(&gpu, id);
    uint room = 0;
    if (!profile)
        return NOT_SUPPORTED;
    for (uint i = places(profile, found); i--;)
        room += is_free(&gpu, found[i]);
    return give(room < profile->count ? room : profile->count, out);
}

/* -- GPU instances ---------------------------------------------------------------------- */

static result create(handle device, uint id, int start, handle *out) {
    LOOK(device);
    struct placement found[WHOLE_MEMORY];
    const struct profile *profile = by_id(&gpu, id);
    uint slot = 0;
    if (!out)
        return INVALID_ARGUMENT;
    if (!profile || gpu.mig != 1)
        return NOT_SUPPORTED;
    while (slot < MAX_INSTANCES && gpu.instances[slot].present)
        slot++;
    if (slot == MAX_INSTANCES)
        return INSUFFICIENT_RESOURCES;
    uint count = places(profile, found);
    for (uint i = 0; i < count; i++)
        if ((start == ANY_START || found[i].start == (uint)start) && is_free(&gpu, found[i])) {
            *out = mig_handle(gpu.index, slot);
            return set(&gpu, "instance %u %u %u 0", slot, (uint)(profile - gpu.profiles),
                       found[i].start);
        }
    return INSUFFICIENT_RESOURCES;
}

API nvmlDeviceCreateGpuInstance(handle device, uint id, handle *out) {
    return create(device, id, ANY_START, out);
}

API nvmlDeviceCreateGpuInstanceWithPlacement(handle device, uint id, const struct placement *place,
                                             handle *out) {
    return place ? create(device, id, (int)place->start, out) : INVALID_ARGUMENT;
}

#define LOOK_INSTANCE(name)                                \
    FETCH(look_instance, name);                            \
    const struct instance *instance = &gpu.instances[gpu.slot]

API nvmlGpuInstanceDestroy(handle gpu_instance) {
    LOOK_INSTANCE(gpu_instance);
    return instance->compute ? IN_USE : set(&gpu, "instance %u none", (uint)gpu.slot);
}

API nvmlDeviceGetGpuInstances(handle device, uint id, handle *out, uint *count) {
    LOOK(device);
    if (!out || !count)
        return INVALID_ARGUMENT;
    *count = 0;
    for (uint slot = 0; slot < MAX_INSTANCES; slot++)
        if (gpu.instances[slot].present && gpu.instances[slot].profile->id == id)
            out[(*count)++] = mig_handle(gpu.index, slot);
    return SUCCESS;
}

/* Instances are numbered from 1; 0 stands for the whole GPU. */
API nvmlDeviceGetGpuInstanceById(handle device, uint id, handle *out) {
    LOOK(device);
    if (!out || id < 1 || id > MAX_INSTANCES)
        return INVALID_ARGUMENT;
    *out = mig_handle(gpu.index, id - 1);
    return gpu.instances[id - 1].present ? SUCCESS : NOT_FOUND;
}

API nvmlGpuInstanceGetInfo(handle gpu_instance, struct gpu_instance_info *out) {
    LOOK_INSTANCE(gpu_instance);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct gpu_instance_info){
        gpu_handle(gpu.index), (uint)gpu.slot + 1, instance->profile->id,
        {instance->start, instance->profile->memory_slices}};
    return SUCCESS;
}

/* -- compute instances ------------------------------------------------------------------ */

/* NVML's number for a compute profile of as many slices as the instance has: 1, 2, 3, 4, 7. */
static uint compute_enumerant(const struct profile *profile) {
    return profile->slices == 7 ? 4 : profile->slices - 1;
}

static struct compute_profile compute_info(const struct profile *profile) {
    struct gpu_profile whole = profile_info(profile);
    return (struct compute_profile){
        compute_enumerant(profile), whole.slices, 1, whole.multiprocessors,
        whole.copy_engines, whole.decoders, whole.encoders, whole.jpeg, whole.ofa};
}

API nvmlGpuInstanceGetComputeInstanceProfileInfo(handle gpu_instance, uint enumerant, uint engine,
                                                 struct compute_profile *out) {
    LOOK_INSTANCE(gpu_instance);
    if (!out)
        return INVALID_ARGUMENT;
    if (engine || enumerant != compute_enumerant(instance->profile))
        return NOT_SUPPORTED;
    *out = compute_info(instance->profile);
    return SUCCESS;
}

/* Version 3 has one member more, behind the others. */
API nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle gpu_instance, uint enumerant, uint engine,
                                                  struct compute_profile_v2 *out) {
    struct compute_profile info;
    result found =
        nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, enumerant, engine, &info);
    if (found != SUCCESS)
        return found;
    LOOK_INSTANCE(gpu_instance);
    uint version = out->version;
    *out = (struct compute_profile_v2){
        version, info.id, info.slices, info.instances, info.multiprocessors,
        info.copy_engines, info.decoders, info.encoders, info.jpeg, info.ofa, ""};
    memcpy(out->name, "MIG ", 4);
    strcpy(out->name + 4, instance->profile->name);
    if (version >> 24 == 3)
        *(uint *)(out + 1) = 0;
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle gpu_instance, uint id, uint *out) {
    LOOK_INSTANCE(gpu_instance);
    return give(id == compute_enumerant(instance->profile) && !instance->compute, out);
}

API nvmlGpuInstanceGetComputeInstancePossiblePlacements(handle gpu_instance, uint id,
                                                        struct placement *out, uint *count) {
    LOOK_INSTANCE(gpu_instance);
    if (!count)
        return INVALID_ARGUMENT;
    if (out && *count)
        *out = (struct placement){0, instance->profile->slices};
    *count = id == compute_enumerant(instance->profile);
    return SUCCESS;
}

API nvmlGpuInstanceCreateComputeInstance(handle gpu_instance, uint id, handle *out) {
    LOOK_INSTANCE(gpu_instance);
    if (!out || id != compute_enumerant(instance->profile))
        return INVALID_ARGUMENT;
    if (instance->compute)
        return INSUFFICIENT_RESOURCES;
    *out = compute_handle(gpu.index, (uint)gpu.slot);
    return set(&gpu, "instance %u %u %u 1", (uint)gpu.slot, instance->profile_index,
               instance->start);
}

API nvmlGpuInstanceCreateComputeInstanceWithPlacement(handle gpu_instance, uint id,
                                                      const struct placement *place,
                                                      handle *out) {
    return place && !place->start ? nvmlGpuInstanceCreateComputeInstance(gpu_instance, id, out)
                                  : INVALID_ARGUMENT;
}

API nvmlComputeInstanceDestroy(handle compute_instance) {
    LOOK_INSTANCE(compute_instance);
    return set(&gpu, "instance %u %u %u 0", (uint)gpu.slot, instance->profile_index,
               instance->start);
}

API nvmlGpuInstanceGetComputeInstances(handle gpu_instance, uint id, handle *out, uint *count) {
    LOOK_INSTANCE(gpu_instance);
    if (!out || !count)
        return INVALID_ARGUMENT;
    *count = instance->compute && id == compute_enumerant(instance->profile);
    if (*count)
        *out = compute_handle(gpu.index, (uint)gpu.slot);
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceById(handle gpu_instance, uint id, handle *out) {
    LOOK_INSTANCE(gpu_instance);
    if (!out || id)
        return INVALID_ARGUMENT;
    *out = compute_handle(gpu.index, (uint)gpu.slot);
    return instance->compute ? SUCCESS : NOT_FOUND;
}

API nvmlComputeInstanceGetInfo_v2(handle compute_instance, struct compute_instance_info *out) {
    LOOK_INSTANCE(compute_instance);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (struct compute_instance_info){
        gpu_handle(gpu.index), mig_handle(gpu.index, (uint)gpu.slot), 0,
        compute_enumerant(instance->profile), {0, instance->profile->slices}};
    return SUCCESS;
}
ALIAS(nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2);

/* -- MIG devices: a compute instance in its GPU instance, as programs use it ------------- */

API nvmlDeviceIsMigDeviceHandle(handle device, uint *out) {
    IDENTIFY(device);
    return give(gpu.slot >= 0, out);
}

API nvmlDeviceGetMigDeviceHandleByIndex(handle device, uint index, handle *out) {
    LOOK(device);
    if (!out || index >= MAX_INSTANCES)
        return INVALID_ARGUMENT;
    for (uint slot = 0; slot < MAX_INSTANCES; slot++)
        if (gpu.instances[slot].present && gpu.instances[slot].compute && !index--) {
            *out = mig_handle(gpu.index, slot);
            return SUCCESS;
        }
    return NOT_FOUND;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle mig_device, handle *out) {
    FETCH(look_instance, mig_device);
    if (!out)
        return INVALID_ARGUMENT;
    *out = gpu_handle(gpu.index);
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceId(handle device, uint *out) {
    FETCH(look_instance, device);
    return give((uint)gpu.slot + 1, out);
}

API nvmlDeviceGetComputeInstanceId(handle device, uint *out) {
    FETCH(look_instance, device);
    return give(0, out);
}

API nvmlDeviceGetAttributes_v2(handle device, struct attributes *out) {
    LOOK_INSTANCE(device);
    if (!out)
        return INVALID_ARGUMENT;
    struct gpu_profile info = profile_info(instance->profile);
    *out = (struct attributes){
        info.multiprocessors, info.copy_engines, info.decoders, info.encoders, info.jpeg, info.ofa,
        info.slices, info.slices, info.memory_mib};
    return SUCCESS;
}
ALIAS(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2);
