#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_PATH "/run/gpubed-simulation/nvml"
#define SETTINGS ".settings" /* beside the text: what users have set */

struct machine {
    char module[64];
    uint64_t cuda;
    uint gpus;
    struct gpu gpu[MAX_GPUS];
};

struct stamp {
    bool there;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct machine machine;
static struct stamp text_stamp, settings_stamp;
static uint users; /* nvmlInit counts, and so must nvmlShutdown */

/* A handle is the address of one of these; they hold nothing. */
static char gpu_handles[MAX_GPUS];
static char mig_handles[MAX_GPUS][MAX_INSTANCES];
static char compute_handles[MAX_GPUS][MAX_INSTANCES];

static const struct {
    const char *key;
    size_t offset;
} numbers[] = {
#define X(name) {#name, offsetof(struct gpu, name)},
    NUMBERS(X)
#undef X
}, words[] = {
#define X(name) {#name, offsetof(struct gpu, name)},
    WORDS(X)
#undef X
};

static const struct {
    const char *word;
    uint level;
} levels[] = {{"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", TOPOLOGY_SYSTEM}};

/* -- reading the text ------------------------------------------------------------------- */

static void forget(struct gpu *gpu, uint index) {
    memset(gpu, 0, sizeof *gpu);
    gpu->index = index;
    gpu->slot = -1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *(uint64_t *)((char *)gpu + numbers[i].offset) = ABSENT;
    gpu->persistence = gpu->compute_mode = 0;
}

static void read_peer(struct gpu *gpu, const char *line) {
    uint other, linked;
    char word[8];
    if (sscanf(line, "%u %7s %u", &other, word, &linked) != 3 || other >= MAX_GPUS)
        return;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(word, levels[i].word))
            gpu->peers[other] = (struct peer){.level = levels[i].level, .linked = linked};
}

static void read_link(struct gpu *gpu, const char *line) {
    uint number;
    char up[8], kind[8];
    struct link link = {.present = true};
    int found = sscanf(line, "%u %7s %7s %23s %u %u", &number, up, kind, link.pci, &link.device,
                       &link.remote);
    if (found < 1 || number >= MAX_LINKS)
        return;
    link.up = found == 6 && !strcmp(up, "up"); /* shorter: it leads nowhere */
    link.to_switch = found == 6 && !strcmp(kind, "switch");
    gpu->links[number] = link;
}

static void read_profile(struct gpu *gpu, const char *line) {
    struct profile profile;
    if (gpu->profile_count < MAX_PROFILES &&
        sscanf(line, "%u %u %u %u %u %u %u %31s", &profile.enumerant, &profile.id, &profile.slices,
               &profile.memory_slices, &profile.count, &profile.memory_mib,
               &profile.multiprocessors, profile.name) == 8)
        gpu->profiles[gpu->profile_count++] = profile;
}

/* "instance SLOT PROFILE START COMPUTE" makes one, "instance SLOT none" ends it. */
static void read_instance(struct gpu *gpu, const char *line) {
    uint slot, compute;
    struct instance instance = {.present = true};
    int found = sscanf(line, "%u %u %u %u", &slot, &instance.profile_index, &instance.start,
                       &compute);
    if (found < 1 || slot >= MAX_INSTANCES)
        return;
    if (found < 4 || instance.profile_index >= gpu->profile_count) {
        gpu->instances[slot].present = false;
        return;
    }
    instance.compute = compute;
    gpu->instances[slot] = instance;
}

static void read_value(struct gpu *gpu, const char *key, const char *value) {
    if (!strcmp(key, "peer"))
        read_peer(gpu, value);
    else if (!strcmp(key, "link"))
        read_link(gpu, value);
    else if (!strcmp(key, "mig_profile"))
        read_profile(gpu, value);
    else if (!strcmp(key, "instance"))
        read_instance(gpu, value);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key))
            *(uint64_t *)((char *)gpu + numbers[i].offset) = strtoull(value, NULL, 10);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(key, words[i].key))
            snprintf((char *)gpu + words[i].offset, sizeof gpu->name, "%s", value);
}

/* Reads a file into the machine. A settings file says nothing of GPUs that are not there. */
static void read_file(const char *path, struct machine *into, bool settings) {
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    char line[512];
    struct gpu *gpu = NULL;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "gpu")) {
            uint index = (uint)strtoul(value, NULL, 10);
            gpu = index < (settings ? into->gpus : MAX_GPUS) ? &into->gpu[index] : NULL;
            if (gpu && !settings) {
                forget(gpu, index);
                into->gpus = index + 1;
            }
        } else if (gpu) {
            read_value(gpu, line, value);
        } else if (!strcmp(line, "module")) {
            snprintf(into->module, sizeof into->module, "%s", value);
        } else if (!strcmp(line, "cuda")) {
            into->cuda = strtoull(value, NULL, 10);
        }
    }
    fclose(file);
}

static const char *text_path(void) {
    const char *path = getenv("GPUBED_SIMULATION_NVML");
    return path && *path ? path : DEFAULT_PATH;
}

static void settings_path(char *path, size_t size) {
    snprintf(path, size, "%s" SETTINGS, text_path());
}

static struct stamp stamp(const char *path) {
    struct stat found;
    if (stat(path, &found))
        return (struct stamp){.there = false};
    return (struct stamp){true, found.st_dev, found.st_ino, found.st_size, found.st_mtim};
}

static bool same(struct stamp a, struct stamp b) {
    return a.there == b.there && a.device == b.device && a.inode == b.inode && a.size == b.size &&
           a.changed.tv_sec == b.changed.tv_sec && a.changed.tv_nsec == b.changed.tv_nsec;
}

/* Reads again what has changed, so that faults come and go in processes that run. */
static void refresh(void) {
    char settings[4096];
    settings_path(settings, sizeof settings);
    struct stamp text_now = stamp(text_path()), settings_now = stamp(settings);
    if (same(text_now, text_stamp) && same(settings_now, settings_stamp))
        return;
    text_stamp = text_now;
    settings_stamp = settings_now;
    memset(&machine, 0, sizeof machine);
    read_file(text_path(), &machine, false);
    read_file(settings, &machine, true);
}

/* -- starting and stopping -------------------------------------------------------------- */

result start(void) {
    pthread_mutex_lock(&mutex);
    refresh();
    result answer = SUCCESS;
    if (!text_stamp.there || !*machine.module || !strcmp(machine.module, "none"))
        answer = DRIVER_NOT_LOADED;
    else if (strcmp(machine.module, DRIVER_VERSION))
        answer = LIB_RM_VERSION_MISMATCH;
    else
        users++;
    pthread_mutex_unlock(&mutex);
    return answer;
}

result stop(void) {
    pthread_mutex_lock(&mutex);
    result answer = users ? SUCCESS : UNINITIALIZED;
    if (users)
        users--;
    pthread_mutex_unlock(&mutex);
    return answer;
}

bool started(void) {
    pthread_mutex_lock(&mutex);
    bool answer = users;
    pthread_mutex_unlock(&mutex);
    return answer;
}

/* -- answering -------------------------------------------------------------------------- */

uint gpu_count(void) {
    pthread_mutex_lock(&mutex);
    refresh();
    uint count = machine.gpus;
    pthread_mutex_unlock(&mutex);
    return count;
}

uint64_t cuda_version(void) {
    pthread_mutex_lock(&mutex);
    refresh();
    uint64_t version = machine.cuda;
    pthread_mutex_unlock(&mutex);
    return version;
}

handle gpu_handle(uint index) { return &gpu_handles[index]; }
handle mig_handle(uint index, uint slot) { return &mig_handles[index][slot]; }
handle compute_handle(uint index, uint slot) { return &compute_handles[index][slot]; }

static bool within(handle device, const char *handles, size_t size, size_t *place) {
    if ((uintptr_t)device < (uintptr_t)handles || (uintptr_t)device >= (uintptr_t)handles + size)
        return false;
    *place = (size_t)((char *)device - handles);
    return true;
}

/* Says which GPU, and which MIG instance of it, a handle stands for. */
static bool resolve(handle device, uint *index, int *slot) {
    size_t place;
    *slot = -1;
    if (within(device, gpu_handles, sizeof gpu_handles, &place)) {
        *index = (uint)place;
        return true;
    }
    if (within(device, *mig_handles, sizeof mig_handles, &place) ||
        within(device, *compute_handles, sizeof compute_handles, &place)) {
        *index = (uint)(place / MAX_INSTANCES);
        *slot = (int)(place % MAX_INSTANCES);
        return true;
    }
    return false;
}

static result find(handle device, struct gpu *gpu, bool reset_matters) {
    uint index;
    int slot;
    pthread_mutex_lock(&mutex);
    refresh();
    result answer = SUCCESS;
    if (!users)
        answer = UNINITIALIZED;
    else if (!resolve(device, &index, &slot) || index >= machine.gpus)
        answer = INVALID_ARGUMENT;
    else if (slot >= 0 && !machine.gpu[index].instances[slot].present)
        answer = INVALID_ARGUMENT;
    else if (!strcmp(machine.gpu[index].state, "lost"))
        answer = GPU_IS_LOST;
    else if (reset_matters && !strcmp(machine.gpu[index].state, "reset"))
        answer = RESET_REQUIRED;
    if (answer == SUCCESS) {
        *gpu = machine.gpu[index];
        gpu->slot = slot;
        for (uint i = 0; i < MAX_INSTANCES; i++)
            gpu->instances[i].profile = &gpu->profiles[gpu->instances[i].profile_index];
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

result identify(handle device, struct gpu *gpu) { return find(device, gpu, false); }
result look(handle device, struct gpu *gpu) { return find(device, gpu, true); }

result look_instance(handle instance, struct gpu *gpu) {
    result answer = find(instance, gpu, true);
    return answer == SUCCESS && gpu->slot < 0 ? INVALID_ARGUMENT : answer;
}

bool peek(uint index, struct gpu *gpu) {
    pthread_mutex_lock(&mutex);
    refresh();
    bool there = index < machine.gpus;
    if (there)
        *gpu = machine.gpu[index];
    pthread_mutex_unlock(&mutex);
    return there;
}

result set(const struct gpu *gpu, const char *format, ...) {
    char line[256], text[320], path[4096];
    va_list arguments;
    if (geteuid())
        return NO_PERMISSION;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int size = snprintf(text, sizeof text, "gpu %u\n%s\n", gpu->index, line);
    settings_path(path, sizeof path);
    /* One write at the end of the file: processes cannot tear each other's lines. */
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
        return OPERATING_SYSTEM;
    bool written = write(file, text, (size_t)size) == size;
    return close(file) == 0 && written ? SUCCESS : OPERATING_SYSTEM;
}

result give(uint64_t value, uint *out) {
    if (!out)
        return INVALID_ARGUMENT;
    if (value == ABSENT)
        return NOT_SUPPORTED;
    *out = (uint)value;
    return SUCCESS;
}

result give_words(const char *text, char *out, uint size) {
    if (!out)
        return INVALID_ARGUMENT;
    if (!*text)
        return NOT_SUPPORTED;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}
