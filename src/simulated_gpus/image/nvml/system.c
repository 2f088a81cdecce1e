/* The library itself: starting, versions, errors in words, and what is not of one GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"

API nvmlInitWithFlags(uint flags) {
    (void)flags;
    return start();
}

API nvmlInit_v2(void) { return start(); }
ALIAS(nvmlInit, nvmlInit_v2);

API nvmlShutdown(void) { return stop(); }

__attribute__((visibility("default"))) const char *nvmlErrorString(result code) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
        "No data", "vGPU ECC Not Supported", "Insufficient Resources", "Frequency Not Supported",
        "Argument Version Mismatch", "Requested functionality has been deprecated", "Not Ready",
        "GPU Not Found", "Invalid State",
    };
    if (code >= 0 && code < (int)(sizeof words / sizeof *words))
        return words[code];
    return "Unknown Error";
}

API nvmlSystemGetDriverVersion(char *out, uint size) {
    return started() ? give_words(DRIVER_VERSION, out, size) : UNINITIALIZED;
}

/* NVML's own version: the CUDA major version, then the driver's. It needs no nvmlInit. */
API nvmlSystemGetNVMLVersion(char *out, uint size) {
    char version[96];
    snprintf(version, sizeof version, "%u." DRIVER_VERSION, (uint)(cuda_version() / 1000));
    return give_words(version, out, size);
}

API nvmlSystemGetCudaDriverVersion_v2(int *out) {
    if (!out)
        return INVALID_ARGUMENT;
    *out = (int)cuda_version();
    return SUCCESS;
}
ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

API nvmlSystemGetDriverBranch(struct driver_branch *out, uint size) {
    (void)size;
    if (!started())
        return UNINITIALIZED;
    if (!out)
        return INVALID_ARGUMENT;
    snprintf(out->branch, sizeof out->branch, "r%u_00", (uint)strtoul(DRIVER_VERSION, NULL, 10));
    return SUCCESS;
}

API nvmlSystemGetProcessName(uint pid, char *out, uint size) {
    char path[64], name[512] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NOT_FOUND;
    if (!fgets(name, sizeof name, file))
        *name = 0;
    fclose(file);
    name[strcspn(name, "\n")] = 0;
    return give_words(name, out, size);
}

static result none(uint *count) {
    if (!count)
        return INVALID_ARGUMENT;
    *count = 0;
    return SUCCESS;
}

API nvmlSystemGetHicVersion(uint *count, void *entries) { (void)entries; return none(count); }
API nvmlUnitGetCount(uint *count) { return none(count); }
API nvmlGetExcludedDeviceCount(uint *count) { return none(count); }

/* Events: Xids reach the node's kernel log; nobody is woken by this library. */
static char event_set;

API nvmlEventSetCreate(handle *set) {
    if (!set)
        return INVALID_ARGUMENT;
    *set = &event_set;
    return SUCCESS;
}

API nvmlEventSetFree(handle set) { return set == &event_set ? SUCCESS : INVALID_ARGUMENT; }

API nvmlDeviceGetSupportedEventTypes(handle device, ull *out) {
    LOOK(device);
    if (!out)
        return INVALID_ARGUMENT;
    *out = EVENT_XID;
    return SUCCESS;
}

API nvmlDeviceRegisterEvents(handle device, ull types, handle set) {
    LOOK(device);
    return set != &event_set ? INVALID_ARGUMENT : types & ~(ull)EVENT_XID ? NOT_SUPPORTED : SUCCESS;
}

API nvmlEventSetWait_v2(handle set, struct event *data, uint milliseconds) {
    if (set != &event_set || !data)
        return INVALID_ARGUMENT;
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    return TIMEOUT;
}
ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2);
