/* submit.c: gives launches to the device, and keeps their times during a recording. */
#include "session.h"

#define CLOCK_TRIES 16
#define MOST_REPEATED ((uint64_t)1 << 24) /* launches of one RUN_REPEATED: it must end */
#define SAMPLE_SECONDS 1e-3 /* Long enough to make a clock reading and a wait negligible. */

/* ── launches ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Notes a command whose event the caller keeps too, if `kept`. After a failure the caller has no event. */
static bool note_too(struct session *session, enum command_kind kind, int64_t node, uint64_t bytes, int64_t begin,
                     cl_event event, bool kept) {
    if (kept) (void)cl.RetainEvent(event);
    if (note(session, kind, node, bytes, begin, event)) return true;
    if (kept) (void)cl.ReleaseEvent(event);
    return false;
}

bool submit_launches(struct session *session, uint32_t first, uint32_t count, cl_event *last) {
    cl_command_queue queue = session->queue;
    if (last != NULL) *last = NULL;
    session->idle = false;
    for (uint32_t i = 0; i < count; ++i) {
        const struct bound *one = &session->bound[first + i];
        cl_event event = NULL;
        /* Only the last event is needed, and events cost time. */
        cl_event *wanted = session->recording || (last != NULL && i + 1 == count) ? &event : NULL;
        if (i > 0 && i % FLUSH_EVERY == 0) (void)cl.Flush(queue);
        int64_t begin = session->recording ? clock_ns() : 0;
        cl_int code = cl.EnqueueNDRangeKernel(queue, one->kernel, one->dims, NULL, one->global, one->local, 0, NULL, wanted);
        if (code != 0) {
            const struct plan_launch *launch = &session->plan.launches[first + i];
            return failed("%s refused kernel %.*s of op %u: %s. Try: make the plan again on this device",
                          session->device->name, TEXT(&session->plan, launch->kernel), one->node, cl_error(code));
        }
        bool is_last = last != NULL && i + 1 == count;
        if (session->recording && !note_too(session, COMMAND_LAUNCH, one->node, 0, begin, event, is_last)) return false;
        if (is_last) *last = event;
    }
    return true;
}

bool submit_graph(struct session *session, uint32_t graph, cl_event *last) {
    const struct plan_graph *found = &session->plan.graphs[graph];
    return submit_launches(session, found->first_launch, found->launches, last);
}

/* Adds the end of a step. If the host is more than IN_FLIGHT steps ahead, waits for the oldest step. */
static bool end_step(struct session *session, cl_event event) {
    (void)cl.Flush(session->queue);
    if (event == NULL) return true;
    session->steps[session->step_count++] = event;
    if (session->step_count <= IN_FLIGHT) return true;
    cl_int code = cl.WaitForEvents(1, &session->steps[0]);
    (void)cl.ReleaseEvent(session->steps[0]);
    --session->step_count;
    memmove(session->steps, session->steps + 1, session->step_count * sizeof *session->steps);
    return code == 0 || device_failed(session, "it ran a step", code);
}

bool run_graph(struct session *session, uint32_t graph) {
    const struct plan_graph *found = &session->plan.graphs[graph];
    cl_event last = NULL;
    if (!submit_step(session, graph, found->copies == 0 ? &last : NULL)) return false;
    for (uint32_t i = 0; i < found->copies; ++i) {
        const struct plan_copy *copy = &session->plan.copies[found->first_copy + i];
        bool is_last = i + 1 == found->copies;
        cl_event event = NULL;
        int64_t begin = session->recording ? clock_ns() : 0;
        cl_int code = cl.EnqueueCopyBuffer(session->queue, session->segments[copy->from_segment],
                                           session->segments[copy->to_segment], (size_t)copy->from_offset,
                                           (size_t)copy->to_offset, (size_t)copy->bytes, 0, NULL,
                                           session->recording || is_last ? &event : NULL);
        if (code != 0) return device_failed(session, "it copied a slot", code);
        if (session->recording && !note_too(session, COMMAND_COPY, -1, copy->bytes, begin, event, is_last)) return false;
        if (is_last) last = event;
    }
    return end_step(session, last);
}

/* The first launch of a graph at or after `from` that is not of a node before `node`. */
static uint32_t launch_of(const struct session *session, const struct plan_graph *graph, uint32_t from, uint32_t node) {
    uint32_t low = from, high = graph->first_launch + graph->launches;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (session->plan.launches[middle].node < node) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool run_node(struct session *session, uint32_t graph, uint32_t node) {
    const struct plan_graph *found = &session->plan.graphs[graph];
    if (node >= found->nodes) return failed("graph %u has no node %u", graph, node);
    uint32_t first = launch_of(session, found, found->first_launch, node);
    return submit_launches(session, first, launch_of(session, found, first, node + 1) - first, NULL);
}

bool run_repeated(struct session *session, uint32_t graph, const unsigned char *repeats, uint32_t count) {
    const struct plan_graph *found = &session->plan.graphs[graph];
    uint32_t *times = need((size_t)found->nodes + 1, sizeof *times);
    bool ok = true;
    cl_event last = NULL;
    for (uint32_t i = 0; i < found->nodes; ++i) times[i] = 1;
    for (uint32_t i = 0; i < count && ok; ++i) {
        uint32_t node = u32_at(repeats + 8 * (size_t)i);
        if (node < found->nodes) times[node] = u32_at(repeats + 8 * (size_t)i + 4);
        else ok = failed("graph %u has no node %u", graph, node);
    }
    uint32_t end = found->first_launch + found->launches;
    uint64_t total = 0;
    for (uint32_t i = found->first_launch; i < end; ++i) total += times[session->plan.launches[i].node];
    if (ok && total > MOST_REPEATED)
        ok = failed("a step of %llu launches is too long. Try: fewer repeats", (unsigned long long)total);
    for (uint32_t first = found->first_launch; ok && first < end;) {
        uint32_t node = session->plan.launches[first].node;
        uint32_t next = launch_of(session, found, first, node + 1);
        for (uint32_t k = 0; ok && k < times[node]; ++k) {
            cl_event event = NULL;
            ok = submit_launches(session, first, next - first, &event);
            if (last != NULL) (void)cl.ReleaseEvent(last);
            last = event;
        }
        first = next;
    }
    free(times);
    if (ok) return end_step(session, last);
    if (last != NULL) (void)cl.ReleaseEvent(last);
    return false;
}

static bool run_times(struct session *session, uint32_t graph, uint64_t times, double *seconds) {
    int64_t begin = clock_ns();
    for (uint64_t i = 0; i < times; ++i)
        if (!submit_graph(session, graph, NULL)) return false;
    if (!finish(session)) return false;
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    return true;
}

bool time_graph(struct session *session, uint32_t graph, double seconds, struct bytes *to) {
    double once = 0, sample = 0;
    int64_t begin = clock_ns();
    if (!run_times(session, graph, 1, &once)) return false;
    if (once >= seconds) {
        put(to, &once, sizeof once);
        return true;
    }
    uint64_t times = once < SAMPLE_SECONDS ? (uint64_t)(SAMPLE_SECONDS / (once < 1e-7 ? 1e-7 : once)) + 1 : 1;
    do {
        if (!run_times(session, graph, times, &sample)) return false;
        sample /= (double)times;
        put(to, &sample, sizeof sample);
    } while ((double)(clock_ns() - begin) * 1e-9 < seconds);
    return true;
}

/* ── recordings ───────────────────────────────────────────────────────────────────────────────────────────────── */

static bool open_timed(struct session *session) {
    cl_int code = 0;
    if (session->timed == NULL) {
        session->timed = cl.CreateCommandQueue(session->context, session->device->id, CL_QUEUE_PROFILING_ENABLE, &code);
        if (code != 0) {
            session->timed = NULL;
            return failed("%s has no command queue that keeps times: %s. Only whole steps can be timed",
                          session->device->name, cl_error(code));
        }
    }
    if (session->mark == NULL) {
        session->mark = cl.CreateBuffer(session->context, CL_MEM_READ_WRITE, 64, NULL, &code);
        if (code != 0) {
            session->mark = NULL;
            return device_failed(session, "it made a clock mark", code);
        }
    }
    return true;
}

static void forget_commands(struct session *session) {
    for (size_t i = 0; i < session->command_count; ++i) (void)cl.ReleaseEvent(session->command_events[i]);
    session->command_count = 0;
}

bool set_recording(struct session *session, bool on) {
    if (on && !open_timed(session)) return false;
    if (!finish(session)) return false;
    if (on) forget_commands(session); /* Of an earlier recording that nobody read. */
    session->recording = on;
    session->queue = on ? session->timed : session->plain;
    return true;
}

bool note(struct session *session, enum command_kind kind, int64_t node, uint64_t bytes, int64_t begin, cl_event event) {
    if (session->command_count >= MOST_COMMANDS) {
        (void)cl.ReleaseEvent(event);
        return failed("a recording has more than %zu commands. Try: read it more often", MOST_COMMANDS);
    }
    size_t count = session->command_count;
    session->commands = grow(session->commands, &session->command_space, count, 1, sizeof *session->commands);
    session->command_events = grow(session->command_events, &session->event_space, count, 1, sizeof event);
    session->commands[count] = (struct command){kind, node, (int64_t)bytes, begin, clock_ns(), 0, 0, 0, 0};
    session->command_events[count] = event;
    session->command_count = count + 1;
    return true;
}

bool take_commands(struct session *session, struct bytes *to) {
    cl_int code = 0;
    for (size_t i = 0; i < session->command_count && code == 0; ++i) {
        cl_event event = session->command_events[i];
        cl_ulong times[4] = {0};
        code = cl.WaitForEvents(1, &event);
        for (cl_uint k = 0; k < 4 && code == 0; ++k)
            code = cl.GetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED + k, sizeof times[k], &times[k], NULL);
        struct command *one = &session->commands[i];
        one->queued = (int64_t)times[0];
        one->submitted = (int64_t)times[1];
        one->started = (int64_t)times[2];
        one->ended = (int64_t)times[3];
    }
    if (code == 0) put(to, session->commands, session->command_count * sizeof *session->commands);
    forget_commands(session);
    return code == 0 || device_failed(session, "it told the times of commands", code);
}

bool clock_mark(struct session *session, int64_t mark[3]) {
    static const uint32_t zero = 0;
    if (!open_timed(session)) return false;
    mark[2] = INT64_MAX;
    for (int i = 0; i < CLOCK_TRIES; ++i) {
        cl_event event = NULL;
        cl_ulong device_ns = 0;
        int64_t begin = clock_ns();
        cl_int code = cl.EnqueueFillBuffer(session->timed, session->mark, &zero, sizeof zero, 0, 64, 0, NULL, &event);
        if (code != 0) return device_failed(session, "it made a clock mark", code);
        code = cl.WaitForEvents(1, &event);
        int64_t error = (clock_ns() - begin) / 2;
        if (code == 0)
            code = cl.GetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED + 3, sizeof device_ns, &device_ns, NULL);
        (void)cl.ReleaseEvent(event);
        if (code != 0) return device_failed(session, "it made a clock mark", code);
        if (error >= mark[2]) continue;
        mark[0] = (int64_t)device_ns;
        mark[1] = begin + error;
        mark[2] = error;
    }
    return true;
}
