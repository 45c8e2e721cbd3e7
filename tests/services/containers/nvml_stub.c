/* A library in the place of NVIDIA's libnvidia-ml.so.1, as far as dlapp asks it; see nvml_stub.py.

   What cards there are is read from the file that $NVML_STUB names, else from "cards" in the first directory of
   $LD_LIBRARY_PATH, which all processes of dlapp keep, and read anew whenever the file was replaced: so a
   card can fail, and the driver go away, while a process has NVML open. The first line is the answer of nvmlInit (and,
   when not 0, of every other question), each further line a card:

       error|uuid|minor|name|memory in bytes|PCI bus id|key=value key=value ...

   error is the answer to every question about the card (0: it works, 15: it is lost), and a minor of -1 means that this
   question alone is answered with "not supported". The keys are those of nvml_stub.Card; a key that is missing, or -1,
   is "not supported". A list is a,b,c without blanks. "MIG" lines belong to the card above them:

       MIG|uuid|name|memory in bytes|used|pids

   The key errors=function:code,function:code gives one function another answer (all its versions). If a file beside the
   description has its name and ".calls", each question is appended to it: "pid function place", place -1 for the driver.
   A search by uuid opens each card up to the one that it finds.

   Compiled with -DOLD it is the library of a driver from before memory v2, MIG and affinity. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HANGS = 7777, OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, UNKNOWN = 999, CARDS = 64, PARTS = 8
};

typedef unsigned long long u64;
typedef struct thing {
    int error, minor, place, part; /* part: -1 for a card */
    char uuid[96], name[96], bus_id[32], keys[2048];
    u64 memory;
    struct thing *card;
} thing;
typedef struct { u64 total, free, used; } memory_info;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_info_v2;
typedef struct { unsigned counts[8]; u64 memory_mib; } attributes;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { thing *device; u64 type, data; unsigned gpu_instance, compute_instance; } event_data;
typedef struct { unsigned used, memory; } utilization;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type; int answer; union { unsigned ui; u64 ull; } value;
} field_value;

static thing cards[CARDS], parts[CARDS][PARTS];
static unsigned count, part_count[CARDS];
static int ready, driver = UNKNOWN, registered[CARDS], told[CARDS];
static struct stat known;

static const char *description(void) {
    static char beside[1024];
    const char *path = getenv("NVML_STUB"), *directory = getenv("LD_LIBRARY_PATH");
    if (path == NULL && directory != NULL) {
        snprintf(beside, sizeof beside, "%.*s/cards", (int)strcspn(directory, ":"), directory);
        path = beside;
    }
    return path;
}
static void record(const char *function, int place) {
    char name[1100], line[200];
    const char *path = description();
    int file, size;
    if (path == NULL) return;
    snprintf(name, sizeof name, "%s.calls", path);
    if ((file = open(name, O_WRONLY | O_APPEND | O_CLOEXEC)) < 0) return;
    size = snprintf(line, sizeof line, "%d %s %d\n", (int)getpid(), function, place);
    if (write(file, line, (size_t)size) != size) abort();
    close(file);
}

static void load(void) {
    const char *path = description();
    struct stat now;
    char line[4096];
    FILE *file;
    if (path == NULL || stat(path, &now) != 0 || (file = fopen(path, "r")) == NULL) {
        driver = UNKNOWN;
        return;
    }
    if (now.st_ino == known.st_ino && now.st_mtim.tv_nsec == known.st_mtim.tv_nsec && count) {
        fclose(file);
        return;
    }
    known = now;
    count = 0;
    driver = fgets(line, sizeof line, file) ? atoi(line) : UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "MIG|", 4) == 0 && count) {
            thing *card = &cards[count - 1], *p = &parts[count - 1][part_count[count - 1]];
            char used[32] = "", pids[256] = "";
            memset(p, 0, sizeof *p);
            if (sscanf(line, "MIG|%95[^|]|%95[^|]|%llu|%31[^|]|%255s", p->uuid, p->name, &p->memory, used, pids) < 4)
                continue;
            p->card = card, p->place = card->place, p->minor = card->minor, p->part = (int)part_count[count - 1]++;
            snprintf(p->keys, sizeof p->keys, " used=%s reserved=0 pids=%s ", used, pids);
        } else if (count < CARDS) {
            thing *c = &cards[count];
            char keys[2001] = "";
            memset(c, 0, sizeof *c);
            if (sscanf(line, "%d|%95[^|]|%d|%95[^|]|%llu|%31[^|]|%2000[^\n]", &c->error, c->uuid, &c->minor, c->name,
                       &c->memory, c->bus_id, keys) < 6)
                continue;
            c->card = c, c->place = (int)count, c->part = -1;
            part_count[count++] = 0;
            snprintf(c->keys, sizeof c->keys, " %s ", keys);
        }
    }
    fclose(file);
}

/* The text of a key, without its end; NULL: there is none. */
static const char *key(const thing *c, const char *name) {
    char wanted[40];
    const char *at;
    snprintf(wanted, sizeof wanted, " %s=", name);
    at = strstr(c->keys, wanted);
    return at ? at + strlen(wanted) : NULL;
}
static long long number(const thing *c, const char *name) {
    const char *at = key(c, name);
    return at ? atoll(at) : -1;
}
/* Entry n of a list; -1: there is none. */
static long long entry(const thing *c, const char *name, unsigned n) {
    const char *at = key(c, name);
    while (at && n--) {
        at += strcspn(at, ", ");
        at = *at == ',' ? at + 1 : NULL;
    }
    return at && *at != ' ' && *at ? atoll(at) : -1;
}
static unsigned length(const thing *c, const char *name) {
    unsigned n = 0;
    while (entry(c, name, n) != -1) n++;
    return n;
}
/* The answer to one function in the key errors; OK: there is none. */
static int error_of(const thing *c, const char *function) {
    const char *at = c->card ? key(c->card, "errors") : NULL;
    while (at && *at && *at != ' ') {
        size_t size = strcspn(at, ": ");
        if (at[size] != ':') break;
        if (strncmp(at, function, size) == 0 && (function[size] == 0 || strncmp(function + size, "_v", 2) == 0))
            return atoi(at + size + 1);
        at += strcspn(at, ", ");
        at = *at == ',' ? at + 1 : NULL;
    }
    return OK;
}
/* Hang as long as the card's key hang has the begin of this question's name. */
static void hang(const thing *c, const char *question) {
    const struct timespec pause = {0, 5000000};
    for (;; nanosleep(&pause, NULL), load()) {
        const char *at = c->card ? key(c->card, "hang") : NULL;
        if (at == NULL || strncmp(at, question, strcspn(at, " ")) != 0) return;
    }
}
static int ask_as(const thing *c, const char *function) {
    if (!ready) return UNINITIALIZED;
    load();
    hang(c, function);
    if (driver) return driver;
    record(function, c->card ? c->place : -1);
    if (error_of(c, function)) return error_of(c, function);
    return c->card ? c->card->error : NOT_FOUND;
}
#define ask(c) ask_as(c, __func__)
static int say_as(const thing *c, const char *name, unsigned *out, const char *function) {
    int error = ask_as(c, function);
    long long value = number(c, name);
    if (error) return error;
    if (value < 0) return NOT_SUPPORTED;
    *out = (unsigned)value;
    return OK;
}
#define say(c, name, out) say_as(c, name, out, __func__)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    memset(&known, 0, sizeof known);
    count = 0;
    load();
    record(__func__, -1);
    while (driver == HANGS) pause();
    ready += driver == OK; /* counted, like NVML's */
    return driver;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    record(__func__, -1);
    ready -= ready > 0;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    if (!ready) return UNINITIALIZED;
    load();
    if (driver) return driver;
    *out = count;
    return OK;
}
static int handle(thing *c, void **out, const char *function) {
    int error = ask_as(c, function);
    *out = c;
    return error == 15 ? OK : error;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (!ready) return UNINITIALIZED;
    load();
    if (driver) return driver;
    if (index >= count) return INVALID_ARGUMENT;
    hang(&cards[index], __func__);
    return handle(&cards[index], out, __func__);
}
int nvmlDeviceGetUUID(thing *c, char *out, unsigned size) {
    int error = ask(c);
    if (!error) snprintf(out, size, "%s", c->uuid);
    return error;
}
int nvmlDeviceGetName(thing *c, char *out, unsigned size) {
    int error = ask(c);
    if (!error) snprintf(out, size, "%s", c->name);
    return error;
}
int nvmlDeviceGetMinorNumber(thing *c, unsigned *out) {
    int error = ask(c);
    if (error) return error;
    if (c->minor < 0) return NOT_SUPPORTED;
    *out = (unsigned)c->minor;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(thing *c, pci_info *out) {
    int error = ask(c);
    if (error) return error;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", c->card->bus_id);
    return OK;
}
int nvmlDeviceGetComputeMode(thing *c, unsigned *out) { return say(c, "mode", out); }
int nvmlDeviceGetRetiredPagesPendingStatus(thing *c, unsigned *out) { return say(c, "pages_pending", out); }
int nvmlDeviceGetTemperature(thing *c, unsigned sensor, unsigned *out) {
    (void)sensor;
    return say(c, "temperature", out);
}
int nvmlDeviceGetTemperatureThreshold(thing *c, unsigned which, unsigned *out) {
    return which == 1 ? say(c, "slowdown", out) : NOT_SUPPORTED;
}
int nvmlDeviceGetUtilizationRates(thing *c, utilization *out) { return say(c, "utilization", &out->used); }
int nvmlDeviceGetPowerUsage(thing *c, unsigned *out) { return say(c, "milliwatts", out); }
int nvmlDeviceGetTotalEnergyConsumption(thing *c, u64 *out) {
    unsigned value = 0;
    int error = say(c, "millijoules", &value);
    *out = value;
    return error;
}
int nvmlDeviceGetTotalEccErrors(thing *c, unsigned kind, unsigned counter, u64 *out) {
    unsigned value = 0;
    int error = say(c, kind == 1 && counter == 0 ? "ecc" : "-", &value);
    *out = value;
    return error;
}

/* The version before v2 counts reserved memory as used. */
int nvmlDeviceGetMemoryInfo(thing *c, memory_info *out) {
    int error = ask(c);
    long long used = number(c, "used"), reserved = number(c, "reserved");
    if (error) return error;
    out->total = c->memory;
    out->used = (u64)(used > 0 ? used : 0) + (u64)(reserved > 0 ? reserved : 0);
    out->free = out->total - out->used;
    return OK;
}

/* The key process_mib; 0 stands for NVML_VALUE_NOT_AVAILABLE. */
static u64 process_memory(const thing *c, unsigned n) {
    long long mib = entry(c, "process_mib", n);
    return mib == 0 ? ~0ull : (u64)(mib < 0 ? 64 : mib) << 20;
}
static int processes_as(thing *c, const char *name, unsigned *size, process_info *out, const char *function) {
    int error = ask_as(c, function);
    unsigned there = length(c, name), n;
    if (error) return error;
    if (*size < there) {
        *size = there;
        return INSUFFICIENT_SIZE;
    }
    for (n = 0; n < there; n++) {
        memset(&out[n], 0, sizeof out[n]);
        out[n].pid = (unsigned)entry(c, name, n);
        out[n].used = process_memory(c, n);
    }
    *size = there;
    return OK;
}
#define processes(c, name, size, out) processes_as(c, name, size, out, __func__)
int nvmlDeviceGetComputeRunningProcesses_v2(thing *c, unsigned *size, process_info *out) {
    return processes(c, "pids", size, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(thing *c, unsigned *size, process_info *out) {
    return processes(c, "graphics", size, out);
}

int nvmlDeviceGetTopologyCommonAncestor(thing *one, thing *other, unsigned *out) {
    int error = ask(one) ? ask(one) : ask(other);
    long long level = entry(one, "pcie", (unsigned)other->place);
    if (error) return error;
    if (level < 0) return NOT_SUPPORTED;
    *out = (unsigned)level;
    return OK;
}
/* nvlinks lists, link by link, the index of the card at the other end; 99: an NVSwitch, 98: a link that is down. */
int nvmlDeviceGetNvLinkState(thing *c, unsigned link, unsigned *out) {
    int error = ask(c);
    if (error) return error;
    if (entry(c, "nvlinks", link) < 0) return key(c, "nvlinks") ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *out = entry(c, "nvlinks", link) != 98;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(thing *c, unsigned link, pci_info *out) {
    int error = ask(c);
    long long other = entry(c, "nvlinks", link);
    if (error) return error;
    if (other < 0) return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", other < (long long)count ? cards[other].bus_id : "00000000:C4:00.0");
    return OK;
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(thing *c, memory_info_v2 *out) {
    int error = ask(c);
    long long used = number(c, "used"), reserved = number(c, "reserved");
    if (error) return error;
    if (reserved < 0) return NOT_SUPPORTED;
    out->total = c->memory;
    out->used = (u64)(used > 0 ? used : 0);
    out->reserved = (u64)reserved;
    out->free = out->total - out->used - out->reserved;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(thing *c, unsigned *size, process_info *out) {
    return processes(c, "pids", size, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(thing *c, unsigned *size, process_info *out) {
    return processes(c, "graphics", size, out);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(thing *c, unsigned link, unsigned *out) {
    int error = ask(c);
    if (error) return error;
    *out = entry(c, "nvlinks", link) == 99 ? 2 : 0;
    return OK;
}
int nvmlDeviceGetMemoryAffinity(thing *c, unsigned size, unsigned long *out, unsigned scope) {
    unsigned node = 0;
    int error = say(c, "numa", &node);
    (void)scope;
    if (error) return error;
    memset(out, 0, size * sizeof *out);
    out[node / 64] = 1ul << node % 64;
    return OK;
}
int nvmlDeviceGetRemappedRows(thing *c, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    if (say(c, "remap_failed", failed) != OK) *failed = 0;
    return say(c, "remap_pending", pending);
}
int nvmlDeviceGetFieldValues(thing *c, int size, field_value *out) {
    int error = ask(c), n;
    for (n = 0; n < size && !error; n++) {
        const char *name = out[n].field == 230 ? "recovery" : out[n].field == 194 ? "slowdown_margin" : "-";
        out[n].answer = key(c, name) ? OK : NOT_SUPPORTED;
        if (key(c, name)) out[n].value.ui = (unsigned)number(c, name);
    }
    return error;
}
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    snprintf(out, size, "%s", "/usr/bin/named-by-nvml");
    return pid == 4194398 ? OK : NOT_FOUND; /* above what the kernel gives */
}

int nvmlDeviceGetMigMode(thing *c, unsigned *now, unsigned *next) {
    int error = say(c, "mig", now);
    *next = *now;
    return error;
}
int nvmlDeviceGetMaxMigDeviceCount(thing *c, unsigned *out) {
    int error = ask(c);
    *out = number(c, "mig") == 1 ? PARTS : 0;
    return error;
}
int nvmlDeviceGetMigDeviceHandleByIndex(thing *c, unsigned part, void **out) {
    int error = ask(c);
    if (error) return error;
    if (part >= part_count[c->place]) return NOT_FOUND;
    *out = &parts[c->place][part];
    return OK;
}
/* Of MIG devices only: eight counts, then the memory in MiB. */
int nvmlDeviceGetAttributes_v2(thing *c, attributes *out) {
    int error = ask(c);
    if (error) return error;
    if (c->part < 0) return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->memory_mib = c->memory >> 20;
    return OK;
}
int nvmlDeviceGetGpuInstanceId(thing *c, unsigned *out) {
    int error = ask(c);
    *out = (unsigned)c->part + 1;
    return error;
}
#endif

/* Events: the key xid of a card is told once to whoever has registered, and once more when it changes. */
int nvmlEventSetCreate(void **out) {
    static int set;
    memset(registered, 0, sizeof registered);
    *out = &set;
    return ready ? OK : UNINITIALIZED;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(thing *c, u64 types, void *set) {
    int error = ask(c);
    (void)set;
    if (error) return error;
    if (!(types & 8)) return INVALID_ARGUMENT;
    registered[c->place] = 1;
    told[c->place] = (int)number(c, "xid");
    return OK;
}
int nvmlEventSetWait_v2(void *set, event_data *out, unsigned timeout_ms) {
    const struct timespec pause = {0, 5000000};
    unsigned waited_ms, n;
    (void)set;
    for (waited_ms = 0;; waited_ms += 5) {
        if (!ready) return UNINITIALIZED;
        load();
        if (driver) return driver;
        for (n = 0; n < count; n++) {
            long long xid = number(&cards[n], "xid"), part = number(&cards[n], "xid_instance");
            if (!registered[n] || xid < 0 || xid == told[n]) continue;
            told[n] = (int)xid;
            out->device = &cards[n];
            out->type = 8;
            out->data = (u64)xid;
            out->gpu_instance = out->compute_instance = part < 0 ? 0xFFFFFFFFu : (unsigned)part;
            return OK;
        }
        if (waited_ms >= timeout_ms) return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    if (!ready) return UNINITIALIZED;
    snprintf(out, size, "%s", "550.54.15");
    return OK;
}
const char *nvmlErrorString(int error) {
    switch (error) {
    case 0: return "Success";
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

/* By the two identities of a card; "0000:3b:00.0" is accepted in place of "00000000:3B:00.0". */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) {
    unsigned n;
    if (!ready) return UNINITIALIZED;
    load();
    if (driver) return driver;
    for (n = 0; n < count; n++) {
        size_t theirs = strlen(cards[n].bus_id), size = strlen(bus_id);
        if (size + 4 >= theirs && theirs >= size && strcasecmp(cards[n].bus_id + theirs - size, bus_id) == 0)
            return handle(&cards[n], out, __func__);
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    unsigned n, part;
    if (!ready) return UNINITIALIZED;
    load();
    if (driver) return driver;
    for (n = 0; n < count; n++) {
        int error = handle(&cards[n], out, __func__);
        if (strcmp(cards[n].uuid, uuid) == 0) return error;
        for (part = 0; part < part_count[n]; part++)
            if (strcmp(parts[n][part].uuid, uuid) == 0) {
                *out = &parts[n][part];
                return error;
            }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetPersistenceMode(thing *c, unsigned *out) { return say(c, "persistence", out); }
int nvmlDeviceGetCurrPcieLinkWidth(thing *c, unsigned *out) { return say(c, "pcie_width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(thing *c, unsigned *out) { return say(c, "pcie_max_width", out); }
int nvmlDeviceGetCurrPcieLinkGeneration(thing *c, unsigned *out) { return say(c, "pcie_generation", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(thing *c, unsigned *out) { return say(c, "pcie_max_generation", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(thing *c, u64 *out) {
    unsigned value = 0;
    int error = say(c, "clock_reasons", &value);
    *out = value;
    return error;
}
/* The errors are those of the device memory (2); there are none in SRAM (7), and no other places. */
int nvmlDeviceGetMemoryErrorCounter(thing *c, unsigned kind, unsigned counter, unsigned location, u64 *out) {
    unsigned value = 0;
    int error = say(c, kind == 1 && counter == 0 && (location == 2 || location == 7) ? "ecc" : "-", &value);
    *out = location == 2 ? value : 0;
    return error;
}

#ifndef OLD
typedef struct { unsigned version, sensor; int value; } temperature_info;
typedef struct { unsigned version; int value; } margin_info;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
} fabric_info;

int nvmlDeviceGetTemperatureV(thing *c, temperature_info *out) {
    return say(c, "temperature", (unsigned *)&out->value);
}
int nvmlDeviceGetMarginTemperature(thing *c, margin_info *out) {
    int error = ask(c);
    out->value = (int)number(c, "margin");
    return error || key(c, "margin") ? error : NOT_SUPPORTED;
}
int nvmlDeviceGetNumaNodeId(thing *c, unsigned *out) { return say(c, "memory_node", out); }
int nvmlDeviceGetCurrentClocksEventReasons(thing *c, u64 *out) {
    unsigned value = 0;
    int error = say(c, "clock_reasons", &value);
    *out = value;
    return error;
}
int nvmlDeviceGetGpuFabricInfoV(thing *c, fabric_info *out) {
    unsigned state = 0;
    int error = say(c, "fabric", &state);
    if (error) return error;
    out->state = (unsigned char)state;
    out->status = key(c, "fabric_status") ? (int)number(c, "fabric_status") : 0;
    out->health = key(c, "fabric_health") ? (unsigned)number(c, "fabric_health") : 0;
    return OK;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(thing *c, unsigned *size, process_info *out) {
    return processes(c, "mps", size, out);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(thing *c, void **out) {
    int error = ask(c);
    *out = c->card;
    return error;
}
#endif
int nvmlDeviceGetMPSComputeRunningProcesses_v2(thing *c, unsigned *size, process_info *out) {
    return processes(c, "mps", size, out);
}
#ifndef OLD
/* GPM, as from Hopper on. A sample is the share of busy multiprocessors at its time; that of two samples is their mean. */
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { int taken, percent; } gpm_sample;
typedef struct { unsigned id; int answer; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; gpm_sample *one, *two; gpm_metric metrics[]; } gpm_metrics;

int nvmlGpmQueryDeviceSupport(thing *c, gpm_support *out) {
    int error = ask(c);
    if (!error) out->supported = number(c, "gpm") >= 0 || entry(c, "gpm_parts", 0) >= 0;
    return error;
}
int nvmlGpmSampleAlloc(gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    return *out ? OK : UNKNOWN;
}
int nvmlGpmSampleFree(gpm_sample *sample) { free(sample); return OK; }
static int gpm_take(const thing *c, long long percent, gpm_sample *out) {
    int error = ask(c);
    if (error) return error;
    if (percent < 0) return NOT_SUPPORTED;
    out->taken = 1, out->percent = (int)percent;
    return OK;
}
int nvmlGpmSampleGet(thing *c, gpm_sample *out) {
    return gpm_take(c, number(c, "mig") == 1 ? -1 : number(c, "gpm"), out);
}
/* The GPU instance of part n is n + 1. */
int nvmlGpmMigSampleGet(thing *c, unsigned instance, gpm_sample *out) {
    return gpm_take(c, instance ? entry(c, "gpm_parts", instance - 1) : -1, out);
}
int nvmlGpmMetricsGet(gpm_metrics *asked) {
    unsigned n;
    if (asked->version != 1 || !asked->one->taken || !asked->two->taken) return INVALID_ARGUMENT;
    for (n = 0; n < asked->count; n++) {
        asked->metrics[n].answer = asked->metrics[n].id == 2 ? OK : NOT_SUPPORTED;
        asked->metrics[n].value = (asked->one->percent + asked->two->percent) / 2.0;
    }
    return OK;
}
#endif
#ifndef OLD
int nvmlDeviceGetComputeInstanceId(thing *c, unsigned *out) {
    int error = ask(c);
    *out = 0;
    return error;
}
#endif
