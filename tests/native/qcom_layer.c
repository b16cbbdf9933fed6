/* qcom_layer.c: an OpenCL layer that adds Qualcomm's extensions to any driver, so that their code runs without an Adreno.
 *
 *     OPENCL_LAYERS=/path/libqcom_layer.so program
 *
 * It stores the kernels that are enqueued into a recordable queue, and enqueues them again for each replay. It checks
 * the rules that others found on devices, and refuses what breaks them:
 *
 *     CL_QUEUE_RECORDABLE_QCOM is the only property of its queue
 *     a recordable queue takes kernels, and only while it records
 *     a replay goes to a normal queue; the recording has ended
 *     every kernel of a replayed recording is alive
 *
 * QCOM_LAYER_REFUSE: "hints" refuses contexts with hints, "recordings" refuses clNewRecordingQCOM. At exit the layer
 * writes what it saw to the file QCOM_LAYER_LOG.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;

#define MOST 64
#define RECORDABLE ((cl_ulong)1 << 30)
enum { INVALID_OPERATION = -59, INVALID_PROPERTY = -64, INVALID_KERNEL = -48, INVALID_VALUE = -30, OUT_OF_RESOURCES = -5 };

/* Places in the dispatch table of cl_icd.h, whose order is fixed. */
enum {
    GET_DEVICE_INFO = 3, CREATE_CONTEXT = 4, CREATE_QUEUE = 9, RELEASE_QUEUE = 11, RELEASE_KERNEL = 37, GET_KERNEL_INFO = 39,
    READ_BUFFER = 48, WRITE_BUFFER = 49, COPY_BUFFER = 50, ND_RANGE = 59, FILL_BUFFER = 102, ADDRESS_FOR_PLATFORM = 107,
};

struct step {
    void *kernel;
    cl_uint dims;
    size_t global[3], local[3];
    bool dead;
};
struct recording {
    void *queue; /* NULL: not used */
    bool ended;
    struct step *steps;
    size_t count;
};

static void **next, *mine[512];
static void *queues[MOST];
static struct recording recordings[MOST];
static unsigned long recorded, replays, replayed, broken, hints;

#define NEXT(place, type) ((type)(uintptr_t)next[place])
#define FUNCTION(name) ((void *)(uintptr_t)(name))

typedef cl_int (*nd_range_fn)(void *, void *, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const void *,
                              void *);

static bool refuses(const char *what) {
    const char *given = getenv("QCOM_LAYER_REFUSE");
    return given != NULL && strstr(given, what) != NULL;
}

static cl_int wrong(const char *what, cl_int code) {
    ++broken;
    fprintf(stderr, "qcom_layer: %s\n", what);
    return code;
}

static bool recordable(const void *queue) {
    for (int i = 0; i < MOST; ++i)
        if (queue != NULL && queues[i] == queue) return true;
    return false;
}

/* ── recordings ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void *new_recording(void *queue, cl_int *code) {
    *code = OUT_OF_RESOURCES;
    if (refuses("recordings")) return NULL;
    if (!recordable(queue)) {
        *code = wrong("clNewRecordingQCOM needs a recordable queue", INVALID_VALUE);
        return NULL;
    }
    for (int i = 0; i < MOST; ++i) {
        if (recordings[i].queue != NULL) continue;
        recordings[i] = (struct recording){queue, false, NULL, 0};
        *code = 0;
        ++recorded;
        return &recordings[i];
    }
    return NULL;
}

static cl_int end_recording(struct recording *one) {
    if (one->ended) return wrong("clEndRecordingQCOM: it has ended already", INVALID_OPERATION);
    one->ended = true;
    return 0;
}

static cl_int release_recording(struct recording *one) {
    free(one->steps);
    *one = (struct recording){0};
    return 0;
}

static cl_int enqueue_recording(void *queue, struct recording *one, size_t args, const void *a, size_t offsets, const void *b,
                                size_t globals, const void *c, size_t locals, const void *d, cl_uint waits,
                                const void *events, void *event) {
    (void)a, (void)b, (void)c, (void)d;
    if (args + offsets + globals + locals > 0) return wrong("a replay that changes arguments", INVALID_VALUE);
    if (recordable(queue)) return wrong("a replay needs a normal queue", INVALID_OPERATION);
    if (!one->ended) return wrong("a replay of a recording that has not ended", INVALID_OPERATION);
    ++replays;
    for (size_t i = 0; i < one->count; ++i) {
        const struct step *step = &one->steps[i];
        if (step->dead) return wrong("a replay of a kernel that was released", INVALID_KERNEL);
        cl_int code = NEXT(ND_RANGE, nd_range_fn)(queue, step->kernel, step->dims, NULL, step->global, step->local,
                                                  i == 0 ? waits : 0, i == 0 ? events : NULL,
                                                  i + 1 == one->count ? event : NULL);
        if (code != 0) return code;
        ++replayed;
    }
    return 0;
}

/* ── what the layer changes ───────────────────────────────────────────────────────────────────────────────────── */

static cl_int device_info(void *device, cl_uint what, size_t space, char *to, size_t *length) {
    static const char more[] = " cl_qcom_recordable_queues cl_qcom_perf_hint cl_qcom_priority_hint";
    typedef cl_int (*fn)(void *, cl_uint, size_t, void *, size_t *);
    size_t own = 0;
    if (what != 0x1030) return NEXT(GET_DEVICE_INFO, fn)(device, what, space, to, length);
    cl_int code = NEXT(GET_DEVICE_INFO, fn)(device, what, 0, NULL, &own);
    if (code != 0) return code;
    if (length != NULL) *length = own + sizeof more - 1;
    if (to == NULL) return 0;
    if (space < own + sizeof more - 1) return INVALID_VALUE;
    code = NEXT(GET_DEVICE_INFO, fn)(device, what, own, to, NULL);
    memcpy(to + own - 1, more, sizeof more);
    return code;
}

static void *create_context(const intptr_t *properties, cl_uint count, const void *devices, void *tell, void *user,
                            cl_int *code) {
    typedef void *(*fn)(const intptr_t *, cl_uint, const void *, void *, void *, cl_int *);
    intptr_t rest[32] = {0};
    int kept = 0;
    for (const intptr_t *at = properties; at != NULL && at[0] != 0 && kept < 28; at += 2) {
        if (at[0] == 0x40C2 || at[0] == 0x40C9) {
            bool known = at[0] == 0x40C2 ? at[1] >= 0x40C3 && at[1] <= 0x40C5 : at[1] >= 0x40CA && at[1] <= 0x40CC;
            if (refuses("hints") || !known) {
                if (code != NULL) *code = INVALID_PROPERTY;
                return NULL;
            }
            ++hints;
            continue;
        }
        rest[kept++] = at[0];
        rest[kept++] = at[1];
    }
    return NEXT(CREATE_CONTEXT, fn)(kept > 0 ? rest : NULL, count, devices, tell, user, code);
}

static void *create_queue(void *context, void *device, cl_ulong properties, cl_int *code) {
    typedef void *(*fn)(void *, void *, cl_ulong, cl_int *);
    if ((properties & RECORDABLE) == 0) return NEXT(CREATE_QUEUE, fn)(context, device, properties, code);
    if (properties != RECORDABLE) {
        *code = wrong("a recordable queue with other properties", INVALID_VALUE);
        return NULL;
    }
    void *queue = NEXT(CREATE_QUEUE, fn)(context, device, 0, code);
    for (int i = 0; i < MOST && queue != NULL; ++i) {
        if (queues[i] != NULL) continue;
        queues[i] = queue;
        return queue;
    }
    return queue;
}

static cl_int release_queue(void *queue) {
    for (int i = 0; i < MOST; ++i)
        if (queues[i] == queue) queues[i] = NULL;
    return NEXT(RELEASE_QUEUE, cl_int(*)(void *))(queue);
}

static cl_int release_kernel(void *kernel) {
    cl_uint references = 0;
    (void)NEXT(GET_KERNEL_INFO, cl_int(*)(void *, cl_uint, size_t, void *, size_t *))(kernel, 0x1192, sizeof references,
                                                                                     &references, NULL);
    for (int i = 0; i < MOST && references == 1; ++i)
        for (size_t k = 0; k < recordings[i].count; ++k)
            if (recordings[i].steps[k].kernel == kernel) recordings[i].steps[k].dead = true;
    return NEXT(RELEASE_KERNEL, cl_int(*)(void *))(kernel);
}

static cl_int nd_range(void *queue, void *kernel, cl_uint dims, const size_t *offset, const size_t *global, const size_t *local,
                       cl_uint waits, const void *events, void *event) {
    if (!recordable(queue))
        return NEXT(ND_RANGE, nd_range_fn)(queue, kernel, dims, offset, global, local, waits, events, event);
    if (waits > 0 || event != NULL) return wrong("a recorded kernel with events", INVALID_OPERATION);
    for (int i = 0; i < MOST; ++i) {
        struct recording *one = &recordings[i];
        if (one->queue != queue || one->ended) continue;
        one->steps = realloc(one->steps, (one->count + 1) * sizeof *one->steps);
        struct step *step = &one->steps[one->count++];
        *step = (struct step){kernel, dims, {1, 1, 1}, {1, 1, 1}, false};
        for (cl_uint d = 0; d < dims; ++d) step->global[d] = global[d], step->local[d] = local[d];
        return 0;
    }
    return wrong("a kernel in a recordable queue that does not record", INVALID_OPERATION);
}

/* Transfers begin with the queue. They have at most 9 arguments, all integers or pointers. */
#define TRANSFER(name, place)                                                                                             \
    static cl_int name(void *queue, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f,         \
                       uintptr_t g, uintptr_t h) {                                                                        \
        if (recordable(queue)) return wrong(#name " in a recordable queue", INVALID_OPERATION);                           \
        return NEXT(place, cl_int(*)(void *, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, \
                                     uintptr_t))(queue, a, b, c, d, e, f, g, h);                                          \
    }
TRANSFER(read_buffer, READ_BUFFER)
TRANSFER(write_buffer, WRITE_BUFFER)
TRANSFER(copy_buffer, COPY_BUFFER)
TRANSFER(fill_buffer, FILL_BUFFER)

static void *address(void *platform, const char *name) {
    if (strcmp(name, "clNewRecordingQCOM") == 0) return FUNCTION(new_recording);
    if (strcmp(name, "clEndRecordingQCOM") == 0) return FUNCTION(end_recording);
    if (strcmp(name, "clReleaseRecordingQCOM") == 0) return FUNCTION(release_recording);
    if (strcmp(name, "clEnqueueRecordingQCOM") == 0) return FUNCTION(enqueue_recording);
    return NEXT(ADDRESS_FOR_PLATFORM, void *(*)(void *, const char *))(platform, name);
}

/* ── the layer ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void report(void) {
    const char *path = getenv("QCOM_LAYER_LOG");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    if (file == NULL) return;
    fprintf(file, "{\"recorded\": %lu, \"replays\": %lu, \"replayed\": %lu, \"broken\": %lu, \"hints\": %lu}\n", recorded,
            replays, replayed, broken, hints);
    fclose(file);
}

cl_int clGetLayerInfo(cl_uint what, size_t space, void *to, size_t *length);
cl_int clInitLayer(cl_uint count, void **target, cl_uint *own, void ***table);

cl_int clGetLayerInfo(cl_uint what, size_t space, void *to, size_t *length) {
    static const cl_uint version = 100;
    if (what != 0x4240) return INVALID_VALUE;
    if (length != NULL) *length = sizeof version;
    if (to != NULL && space >= sizeof version) memcpy(to, &version, sizeof version);
    return 0;
}

cl_int clInitLayer(cl_uint count, void **target, cl_uint *own, void ***table) {
    if (count <= ADDRESS_FOR_PLATFORM || count > 512) return INVALID_VALUE;
    next = target;
    memcpy(mine, target, count * sizeof *mine);
    mine[GET_DEVICE_INFO] = FUNCTION(device_info);
    mine[CREATE_CONTEXT] = FUNCTION(create_context);
    mine[CREATE_QUEUE] = FUNCTION(create_queue);
    mine[RELEASE_QUEUE] = FUNCTION(release_queue);
    mine[RELEASE_KERNEL] = FUNCTION(release_kernel);
    mine[READ_BUFFER] = FUNCTION(read_buffer);
    mine[WRITE_BUFFER] = FUNCTION(write_buffer);
    mine[COPY_BUFFER] = FUNCTION(copy_buffer);
    mine[FILL_BUFFER] = FUNCTION(fill_buffer);
    mine[ND_RANGE] = FUNCTION(nd_range);
    mine[ADDRESS_FOR_PLATFORM] = FUNCTION(address);
    *own = count;
    *table = mine;
    (void)atexit(report);
    return 0;
}
