/* How each part of the library writes down a function that callers may ask for. */
#ifndef GPUBED_NVML_API_H
#define GPUBED_NVML_API_H

#include "state.h"

#define API __attribute__((visibility("default"))) result
/* A second name: NVML's header and callers use names with and without a version. */
#define ALIAS(alias_name, name) \
    extern __typeof__(name) alias_name __attribute__((alias(#name), visibility("default")))

/* Declares `gpu` and fills it, or answers with what keeps the GPU from answering. */
#define IDENTIFY(device) FETCH(identify, device)
#define LOOK(device) FETCH(look, device)
#define FETCH(how, device)                  \
    struct gpu gpu;                         \
    do {                                    \
        result found = how(device, &gpu);   \
        if (found != SUCCESS) return found; \
    } while (0)

/* A function that gives one number, or one text, of a GPU. */
#define NUMBER(function, value) \
    API function(handle device, uint *out) { LOOK(device); return give(value, out); }
#define IDENTITY_NUMBER(function, value) \
    API function(handle device, uint *out) { IDENTIFY(device); return give(value, out); }
#define TEXT(function, value)                              \
    API function(handle device, char *out, uint size) {    \
        IDENTIFY(device); return give_words(value, out, size); \
    }

/* Declared here for parts that ask other parts. */
API nvmlDeviceGetCpuAffinity(handle device, uint size, unsigned long *out);

void fill_pci(const char *address, uint64_t device_id, uint64_t subsystem_id,
              struct pci_info *out);

#endif
