/* record.c: records a graph and lets the driver replay it, which costs one call per step instead of one per launch.
 *
 *     qcom   cl_qcom_recordable_queues (Adreno): kernels in a recordable queue, replayed in a normal one
 *     khr    cl_khr_command_buffer, 0.9.0 and later: what is used here is the same in all versions
 *     plain  launches one by one (submit.c)
 *
 * HANDHELD_RECORDING or the host chooses. By default a graph is recorded only where that is known to pay: on Adreno. It
 * is recorded at its second run, because many graphs run only once. A recording holds kernels only; the copies of slots
 * follow as commands. During a recording of times launches are plain. If the driver refuses, so are they, and the
 * answer to the plan says so.
 *
 * Also here: the hints of Qualcomm's contexts.
 */
#include "session.h"

#define IN_TURN 2 /* A command buffer that may not be replayed while an earlier replay runs is recorded this often. */
#define QUEUE_RECORDABLE ((cl_ulong)1 << 30) /* Adreno's driver refuses it together with other properties. */
#define COMMAND_BUFFER_CAPABILITIES 0x12A9u
#define SIMULTANEOUS_USE 4u
#define COMMAND_BUFFER_FLAGS 0x1293u
#define FLAG_SIMULTANEOUS_USE 1u
#define CONTEXT_PERF_HINT 0x40C2
#define PERF_HINT_HIGH 0x40C3
#define CONTEXT_PRIORITY_HINT 0x40C9
#define PRIORITY_HINT_LOW 0x40CC

/* The first column is the member of `calls`. */
#define QCOM_CALLS(X)                                                                                                \
    X(new_recording, "clNewRecordingQCOM", void *, (cl_command_queue, cl_int *))                                     \
    X(end_recording, "clEndRecordingQCOM", cl_int, (void *))                                                         \
    X(enqueue_recording, "clEnqueueRecordingQCOM", cl_int,                                                           \
      (cl_command_queue, void *, size_t, const void *, size_t, const void *, size_t, const void *, size_t,           \
       const void *, cl_uint, const cl_event *, cl_event *))
#define KHR_CALLS(X)                                                                                                 \
    X(create_buffer, "clCreateCommandBufferKHR", void *, (cl_uint, const cl_command_queue *, const cl_ulong *, cl_int *)) \
    X(add_kernel, "clCommandNDRangeKernelKHR", cl_int,                                                               \
      (void *, cl_command_queue, const void *, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *,   \
       cl_uint, const void *, void *, void *))                                                                       \
    X(finalize_buffer, "clFinalizeCommandBufferKHR", cl_int, (void *))                                               \
    X(release_buffer, "clReleaseCommandBufferKHR", cl_int, (void *))                                                 \
    X(enqueue_buffer, "clEnqueueCommandBufferKHR", cl_int,                                                           \
      (cl_uint, const cl_command_queue *, void *, cl_uint, const cl_event *, cl_event *))

enum way { WAY_PLAIN, WAY_QCOM, WAY_KHR };
static const char *const way_names[] = {"plain", "qcom", "khr"};
static const char *const extensions[] = {"", "cl_qcom_recordable_queues", "cl_khr_command_buffer"};

struct recording {
    uint64_t runs;
    bool refused;
    void *handles[IN_TURN];
    cl_event last[IN_TURN]; /* of the last replay of each handle, where it must end before the next */
    uint32_t turn;
};
struct recorder {
    enum way way;
    bool at_once;              /* A recording may be replayed while an earlier replay runs. */
    struct recording *graphs;  /* one per graph of the plan */
    uint64_t replays;
    char refusal[128];
    struct {
#define X(member, name, type, args) type(*member) args;
        QCOM_CALLS(X)
        KHR_CALLS(X)
#undef X
    } calls;
};

/* ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────── */

bool has_extension(cl_device_id device, const char *name) {
    size_t bytes = 0, length = strlen(name);
    if (cl.GetDeviceInfo(device, 0x1030, 0, NULL, &bytes) != 0) return false;
    char *list = need(bytes + 1, 1);
    bool found = false;
    if (cl.GetDeviceInfo(device, 0x1030, bytes, list, NULL) != 0) list[0] = 0;
    for (const char *at = list; !found && (at = strstr(at, name)) != NULL; at += length)
        found = (at == list || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ');
    free(list);
    return found;
}

/* The way that `wanted` means on a device: auto, off, qcom or khr. */
static bool find_way(const struct device *device, const char *wanted, enum way *way) {
    if (wanted == NULL || wanted[0] == 0 || strcmp(wanted, "auto") == 0) {
        *way = has_extension(device->id, extensions[WAY_QCOM]) ? WAY_QCOM : WAY_PLAIN;
        return true;
    }
    *way = WAY_PLAIN;
    if (strcmp(wanted, "off") == 0) return true;
    for (int i = WAY_QCOM; i <= WAY_KHR; ++i)
        if (strcmp(wanted, way_names[i]) == 0) *way = (enum way)i;
    if (*way == WAY_PLAIN)
        return failed("HANDHELD_RECORDING=%.40s is no way to run a step. Try: auto, off, qcom or khr", wanted);
    return has_extension(device->id, extensions[*way]) ||
           failed("%s has no %s. Try: HANDHELD_RECORDING=off", device->name, extensions[*way]);
}

const char *recording_of(const struct device *device) {
    enum way way = WAY_PLAIN;
    return find_way(device, getenv("HANDHELD_RECORDING"), &way) ? way_names[way] : way_names[WAY_PLAIN];
}

static bool find_calls(struct recorder *recorder, const struct device *device) {
    const char *missing = NULL;
    void *found;
#define X(member, name, type, args)                                                                                  \
    found = cl.GetExtensionFunctionAddressForPlatform(device->platform, name);                                       \
    memcpy(&recorder->calls.member, &found, sizeof found);                                                           \
    if (found == NULL) missing = name;
    if (cl.GetExtensionFunctionAddressForPlatform == NULL) missing = "clGetExtensionFunctionAddressForPlatform";
    else if (recorder->way == WAY_QCOM) {
        QCOM_CALLS(X)
    } else {
        KHR_CALLS(X)
    }
#undef X
    return missing == NULL || failed("%s lists %s but has no %s. Try: HANDHELD_RECORDING=off", device->name,
                                     extensions[recorder->way], missing);
}

bool open_recorder(struct session *session, const char *wanted) {
    enum way way = WAY_PLAIN;
    close_recorder(session);
    if (!find_way(session->device, wanted == NULL ? getenv("HANDHELD_RECORDING") : wanted, &way)) return false;
    if (way == WAY_PLAIN) return true;
    session->recorder = need(1, sizeof *session->recorder);
    session->recorder->way = way;
    session->recorder->graphs = need((size_t)session->plan.graph_count + 1, sizeof *session->recorder->graphs);
    session->recorder->at_once =
        way == WAY_QCOM || (device_number(session->device->id, COMMAND_BUFFER_CAPABILITIES) & SIMULTANEOUS_USE) != 0;
    return find_calls(session->recorder, session->device);
}

void describe_recording(const struct session *session, struct bytes *to) {
    const struct recorder *recorder = session->recorder;
    say(to, ", \"recording\": \"%s\"", way_names[recorder == NULL ? WAY_PLAIN : recorder->way]);
    if (session->device->hints[0] == 0) return;
    say(to, ", \"hints\": ");
    say_json(to, session->device->hints, strlen(session->device->hints));
}

/* ── recording ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void *record_qcom(struct session *session, const struct plan_graph *graph, cl_int *code) {
    struct recorder *recorder = session->recorder;
    cl_command_queue queue = cl.CreateCommandQueue(session->context, session->device->id, QUEUE_RECORDABLE, code);
    void *handle = *code == 0 ? recorder->calls.new_recording(queue, code) : NULL;
    for (uint32_t i = 0; *code == 0 && i < graph->launches; ++i) {
        const struct bound *one = &session->bound[graph->first_launch + i];
        *code = cl.EnqueueNDRangeKernel(queue, one->kernel, one->dims, NULL, one->global, one->local, 0, NULL, NULL);
    }
    if (*code == 0) *code = recorder->calls.end_recording(handle);
    return handle;
}

static void *record_khr(struct session *session, const struct plan_graph *graph, cl_int *code) {
    struct recorder *recorder = session->recorder;
    const cl_ulong flags[] = {COMMAND_BUFFER_FLAGS, FLAG_SIMULTANEOUS_USE, 0};
    void *handle = recorder->calls.create_buffer(1, &session->plain, recorder->at_once ? flags : NULL, code);
    if (*code != 0) return NULL;
    for (uint32_t i = 0; *code == 0 && i < graph->launches; ++i) {
        const struct bound *one = &session->bound[graph->first_launch + i];
        *code = recorder->calls.add_kernel(handle, NULL, NULL, one->kernel, one->dims, NULL, one->global, one->local, 0, NULL,
                                           NULL, NULL);
    }
    if (*code == 0) *code = recorder->calls.finalize_buffer(handle);
    if (*code != 0) (void)recorder->calls.release_buffer(handle);
    return handle;
}

/* Whether the graph is recorded. A refusal is not an error: the graph is launched instead. */
static bool is_recorded(struct session *session, uint32_t graph) {
    struct recorder *recorder = session->recorder;
    struct recording *one = &recorder->graphs[graph];
    cl_int code = 0;
    for (int i = 0; i < (recorder->at_once ? 1 : IN_TURN) && !one->refused; ++i) {
        if (one->handles[i] != NULL) continue;
        const struct plan_graph *found = &session->plan.graphs[graph];
        void *made = recorder->way == WAY_QCOM ? record_qcom(session, found, &code) : record_khr(session, found, &code);
        if (code == 0) one->handles[i] = made;
        else one->refused = true;
    }
    if (code != 0) {
        (void)snprintf(recorder->refusal, sizeof recorder->refusal, "%.100s", cl_error(code));
        tell("%s cannot record a step (%s); its launches go on", session->device->name, recorder->refusal);
    }
    return !one->refused;
}

static bool replay(struct session *session, struct recording *one, cl_event *last) {
    struct recorder *recorder = session->recorder;
    uint32_t turn = recorder->at_once ? 0 : one->turn++ % IN_TURN;
    cl_event event = NULL, *wanted = last != NULL || !recorder->at_once ? &event : NULL;
    cl_int code = 0;
    if (one->last[turn] != NULL) {
        code = cl.WaitForEvents(1, &one->last[turn]);
        (void)cl.ReleaseEvent(one->last[turn]);
        one->last[turn] = NULL;
    }
    session->idle = false;
    if (code == 0 && recorder->way == WAY_QCOM)
        code = recorder->calls.enqueue_recording(session->queue, one->handles[turn], 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0,
                                                 NULL, wanted);
    else if (code == 0) code = recorder->calls.enqueue_buffer(0, NULL, one->handles[turn], 0, NULL, wanted);
    if (code != 0)
        return failed("%s did not replay a recorded step: %s. Try: HANDHELD_RECORDING=off", session->device->name,
                      cl_error(code));
    ++recorder->replays;
    if (last != NULL) *last = event;
    if (!recorder->at_once) {
        one->last[turn] = event;
        if (last != NULL) (void)cl.RetainEvent(event);
    }
    return true;
}

bool submit_step(struct session *session, uint32_t graph, cl_event *last) {
    struct recorder *recorder = session->recorder;
    if (recorder == NULL || session->recording || session->plan.graphs[graph].launches == 0)
        return submit_graph(session, graph, last);
    struct recording *one = &recorder->graphs[graph];
    if (one->runs++ == 0 || !is_recorded(session, graph)) return submit_graph(session, graph, last);
    return replay(session, one, last);
}

/* Recordings of an Adreno stay until the process ends, because drivers have crashed when they were released. */
void close_recorder(struct session *session) {
    struct recorder *recorder = session->recorder;
    if (recorder == NULL) return;
    for (uint32_t i = 0; i < session->plan.graph_count; ++i)
        for (int k = 0; k < IN_TURN; ++k) {
            struct recording *one = &recorder->graphs[i];
            if (one->last[k] != NULL) (void)cl.ReleaseEvent(one->last[k]);
            if (one->handles[k] != NULL && recorder->way == WAY_KHR) (void)recorder->calls.release_buffer(one->handles[k]);
        }
    free(recorder->graphs);
    free(recorder);
    session->recorder = NULL;
}

/* ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* High clocks, and the screen before the training. A driver that refuses gets a context without hints. */
cl_context create_context(struct device *device, cl_int *code) {
    intptr_t properties[5] = {0};
    int count = 0;
    if (has_extension(device->id, "cl_qcom_perf_hint")) {
        properties[count++] = CONTEXT_PERF_HINT;
        properties[count++] = PERF_HINT_HIGH;
    }
    if (has_extension(device->id, "cl_qcom_priority_hint")) {
        properties[count++] = CONTEXT_PRIORITY_HINT;
        properties[count++] = PRIORITY_HINT_LOW;
    }
    if (count > 0) {
        cl_context made = cl.CreateContext(properties, 1, &device->id, NULL, NULL, code);
        (void)snprintf(device->hints, sizeof device->hints, "%s", "high performance, low priority");
        if (*code == 0) return made;
        (void)snprintf(device->hints, sizeof device->hints, "refused: %.60s", cl_error(*code));
    }
    return cl.CreateContext(NULL, 1, &device->id, NULL, NULL, code);
}
