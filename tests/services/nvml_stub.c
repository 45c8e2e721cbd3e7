/* A library in the place of NVIDIA's libnvidia-ml.so.1, as far as dlapp asks it; see nvml_stub.py.

   What cards there are is read at each nvmlInit from the file that $NVML_STUB names: the first line is the answer of
   nvmlInit, each further line a card,
       error|uuid|minor|name|memory in bytes|PCI bus id
   where error is the answer to every question about the card (0: it works, 15: it is lost), and a minor of -1 means
   that this question alone is answered with "not supported". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, UNKNOWN = 999 };

typedef struct { int error; char uuid[96]; int minor; char name[96]; unsigned long long memory; char bus_id[32]; } card;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;

static card cards[64];
static unsigned count, ready;

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    int answer = UNKNOWN;
    char line[512];
    (void)flags;
    count = 0;
    if (file == NULL) return UNKNOWN;
    if (fgets(line, sizeof line, file)) answer = atoi(line);
    while (count < 64 && fgets(line, sizeof line, file)) {
        card *c = &cards[count];
        memset(c, 0, sizeof *c);
        if (sscanf(line, "%d|%95[^|]|%d|%95[^|]|%llu|%31[^|\n]", &c->error, c->uuid, &c->minor, c->name, &c->memory,
                   c->bus_id) == 6)
            count++;
    }
    fclose(file);
    ready = answer == OK;
    return answer;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { ready = 0; return OK; }

int nvmlDeviceGetCount_v2(unsigned *out) {
    if (!ready) return UNINITIALIZED;
    *out = count;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (!ready) return UNINITIALIZED;
    if (index >= count) return INVALID_ARGUMENT;
    *out = &cards[index];
    return cards[index].error == 15 ? OK : cards[index].error;
}
int nvmlDeviceGetUUID(card *c, char *out, unsigned size) {
    if (c->error) return c->error;
    snprintf(out, size, "%s", c->uuid);
    return OK;
}
int nvmlDeviceGetName(card *c, char *out, unsigned size) {
    if (c->error) return c->error;
    snprintf(out, size, "%s", c->name);
    return OK;
}
int nvmlDeviceGetMinorNumber(card *c, unsigned *out) {
    if (c->error) return c->error;
    if (c->minor < 0) return NOT_SUPPORTED;
    *out = (unsigned)c->minor;
    return OK;
}
int nvmlDeviceGetMemoryInfo(card *c, memory_info *out) {
    if (c->error) return c->error;
    out->total = out->free = c->memory;
    out->used = 0;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(card *c, pci_info *out) {
    if (c->error) return c->error;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", c->bus_id);
    return OK;
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
