/* A library with NVML's interface, for machines without an NVIDIA GPU.
 *
 * Types and identifiers after the public header nvml.h: the compiler lays the structures out, so
 * that the layout in handheld/sensors/nvidia.py is checked by someone else. Values are of an H200
 * as seen once (GPU 149 W, memory 35.7 W). FAKE_NVML says what it plays:
 *   h200   everything but module power      a10   no memory power, power as an average only
 *   orin   starts and supports nothing      none  starts without a GPU      broken  does not start
 *   lost   an h200 that fell off the bus: after some readings nothing answers
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *nvmlDevice_t;
typedef int nvmlReturn_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
typedef enum { T_DOUBLE, T_UINT, T_ULONG, T_ULL, T_SLL, T_INT, T_USHORT } nvmlValueType_t;
typedef union {
    double dVal; int siVal; unsigned int uiVal; unsigned long ulVal;
    unsigned long long ullVal; signed long long sllVal; unsigned short usVal;
} nvmlValue_t;
typedef struct {
    unsigned int fieldId;
    unsigned int scopeId;
    long long timestamp;
    long long latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;

static unsigned long long energy_mj = 1000000;
static int calls = 0;

static int plays(const char *what) {
    const char *role = getenv("FAKE_NVML");
    return strcmp(role ? role : "h200", what) == 0;
}

static nvmlReturn_t state(void) {
    if (plays("orin")) return NOT_SUPPORTED;
    return plays("lost") && calls > 12 ? GPU_IS_LOST : SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return plays("broken") ? DRIVER_NOT_LOADED : SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t status) {
    switch (status) {
        case NOT_SUPPORTED: return "Not Supported";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case GPU_IS_LOST: return "GPU is lost";
        default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = plays("none") ? 0 : 1;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(0x123456789000ULL + index);  /* more than 32 bits, as handles are */
    return SUCCESS;
}

static nvmlReturn_t field(nvmlFieldValue_t *f) {
    int power = f->fieldId == 185 || f->fieldId == 186;
    if (plays("orin")) return NOT_SUPPORTED;
    if (f->fieldId == 83) {
        if (plays("slow")) usleep(2000);
        f->valueType = T_ULL;
        f->value.ullVal = (energy_mj += 1490);
        return SUCCESS;
    }
    if (!power || (plays("a10") && (f->scopeId || f->fieldId == 186))) return NOT_SUPPORTED;
    if (f->scopeId == 1) {  /* answered, and nothing in it */
        f->valueType = T_UINT;
        f->value.uiVal = 0;
        return SUCCESS;
    }
    f->valueType = T_UINT;
    f->value.uiVal = f->scopeId == 2 ? 35700 : 149000;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    calls++;
    if (device != (nvmlDevice_t)0x123456789000ULL) return GPU_IS_LOST;
    if (plays("lost") && state()) return state();
    for (int i = 0; i < count; i++) values[i].nvmlReturn = field(&values[i]);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    calls++;
    out->gpu = 97;
    out->memory = 41;
    return state();
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    out->total = 150754820096ULL;
    out->used = 5368709120ULL;
    out->free = out->total - out->used;
    return state();
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    *mhz = type == 2 ? 3201 : 1980;
    return state();
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius) {
    *celsius = 44;
    return plays("a10") ? NOT_SUPPORTED : state();
}
