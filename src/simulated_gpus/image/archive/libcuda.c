/* STAND-IN for the library of NVIDIA's driver: says that no device can compute.
 *
 * A simulated GPU runs no program, so that what asks CUDA itself falls back to the CPU or
 * fails, as it is written to. Numbers are those of CUresult (cuda.h).
 */

enum { NOT_INITIALIZED = 3, NO_DEVICE = 100, NOT_FOUND = 500 };

int cuInit(unsigned int flags) { (void)flags; return NO_DEVICE; }

int cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return 0;
}

int cuDeviceGetCount(int *count) { *count = 0; return NOT_INITIALIZED; }

int cuGetProcAddress(const char *symbol, void **address, int version, unsigned long long flags)
{
    (void)symbol; (void)version; (void)flags;
    *address = 0;
    return NOT_FOUND;
}

int cuGetProcAddress_v2(const char *symbol, void **address, int version,
                        unsigned long long flags, int *status)
{
    if (status)
        *status = 1; /* symbol not found */
    return cuGetProcAddress(symbol, address, version, flags);
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == NO_DEVICE ? "no CUDA-capable device is detected" : "simulated GPU";
    return 0;
}
