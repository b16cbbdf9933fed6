/* serve.c: answers requests on stdin until END or the end of stdin.
 *
 *     request   u32 op      u32 seq   u64 length   payload
 *     answer    u32 status  u32 seq   u64 length   payload      status 0: answer, 1: error (a sentence), 2: progress
 *
 * Answers come in the order of the requests. A READ does not stop the device: its answer is sent when its data is
 * there, and requests go on meanwhile. A callback of the driver wakes the loop through a pipe, so that it can wait for
 * requests and results at once without a thread. Memory is bounded: what may be large is moved in parts.
 */
#include "serve.h"

#include "files.h"
#include "info.h"
#include "sample.h"
#include "session.h"

#define MOST_READS 8
#define MOST_PAYLOAD ((uint64_t)1 << 20) /* of a request whose payload is held in memory */
#define MOST_STEPS 65536u
#define KEPT_PLANS 16
#define RECORDING 6u /* The flags of OPEN and PLAN that choose how steps run; without them HANDHELD_RECORDING does. */
static const char *const recordings[] = {"auto", "off", "khr", "qcom"};
#define INPUT_WAYS 24u /* The flags of OPEN and PLAN that choose how inputs reach shared memory, for measurements. */
#define NO_BINARIES 32u /* A flag of OPEN and PLAN: the driver keeps what it has built itself. */
#ifndef MOST_SECONDS
#define MOST_SECONDS 600 /* that TIME may measure; the fuzzer has less patience */
#endif

enum op {
    HELLO = 1, OPEN, PLAN, CLOSE, END,
    WRITE = 10, READ, RUN, RUN_NODE, RUN_REPEATED, FINISH, FILL, WRITE_SHARED,
    RECORD = 20, RECORDED, MARK, CLOCK, STEPS_OP, TIME, INPUTS_OP,
    FILES = 30, SAMPLE, SAMPLES, SAMPLE_STOP, SYSTEM,
};

struct waiting {
    uint32_t seq;
    struct reading reading;
};

struct server {
    const char *folder, *library, *root;
    int in, out;
    bool lost;               /* The host is gone, or the stream cannot be understood any more. */
    struct sampler *sampler;
    const unsigned char *shared; /* memory that the host writes; NULL if it has none */
    uint64_t shared_bytes;
    cl_context *contexts;    /* one per device, made when it is first used */
    struct session session;
    bool open;
    char broken[sizeof problem]; /* why the plan was closed; empty if it was not */
    struct waiting reads[MOST_READS];
    uint32_t read_count;
    int64_t (*steps)[2];     /* a ring of begin and end */
    uint64_t step_count, steps_taken;
    int64_t step_begin;      /* the first WRITE of an input since the last RUN; 0 if there was none */
};

struct request {
    uint32_t op, seq;
    uint64_t length;
    int64_t received;
    unsigned char *data; /* NULL for OPEN and PLAN and WRITE, which read their payload themselves */
};

static struct server server;
static int wake[2] = {-1, -1};

/* ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool transmit(uint32_t status, uint32_t seq, const void *data, size_t length) {
    unsigned char small[4096];
    uint64_t long_length = length;
    memcpy(small, &status, 4);
    memcpy(small + 4, &seq, 4);
    memcpy(small + 8, &long_length, 8);
    bool joined = length <= sizeof small - 16;
    if (joined && length > 0) memcpy(small + 16, data, length);
    if (!write_all(server.out, small, joined ? 16 + length : 16) || (!joined && !write_all(server.out, data, length)))
        server.lost = true;
    return !server.lost;
}

/* Sends the answer of the oldest READ. */
static void send_oldest(void) {
    struct waiting *oldest = &server.reads[0];
    if (end_read(&oldest->reading)) (void)transmit(0, oldest->seq, oldest->reading.host, oldest->reading.bytes);
    else (void)transmit(1, oldest->seq, problem, strlen(problem));
    free(oldest->reading.host);
    --server.read_count;
    memmove(server.reads, server.reads + 1, server.read_count * sizeof *server.reads);
}

static void send_all_reads(void) {
    char kept[sizeof problem]; /* The error that is about to be sent. */
    if (server.read_count == 0) return;
    memcpy(kept, problem, sizeof kept);
    while (server.read_count > 0) send_oldest();
    memcpy(problem, kept, sizeof kept);
}

static bool answer(const struct request *request, const void *data, size_t length) {
    send_all_reads();
    return transmit(0, request->seq, data, length);
}

static bool answer_bytes(const struct request *request, struct bytes *bytes) {
    bool ok = answer(request, bytes->data, bytes->length);
    free(bytes->data);
    return ok;
}

static const struct request *current; /* the request that progress belongs to */

static void report(const char *stage, uint32_t done, uint32_t total) {
    char text[64];
    int length = snprintf(text, sizeof text, "%s %u %u", stage, done, total);
    if (length > 0) (void)transmit(2, current->seq, text, (size_t)length);
}

static void on_done(cl_event event, cl_int status, void *unused) {
    (void)event;
    (void)status;
    (void)unused;
    (void)!write(wake[1], "", 1);
}

/* Waits until a request has arrived, and sends answers of READs meanwhile as their data comes. */
static void wait_for_request(void) {
    while (server.read_count > 0 && !server.lost) {
        while (server.read_count > 0 && is_done(server.reads[0].reading.event)) send_oldest();
        if (server.read_count == 0) return;
        struct pollfd files[2] = {{server.in, POLLIN, 0}, {wake[0], POLLIN, 0}};
        char drained[64];
        if (poll(files, 2, 20) < 0 && !was_interrupted()) return;
        if (files[1].revents != 0) (void)!read(wake[0], drained, sizeof drained);
        if (files[0].revents != 0) return;
    }
}

/* ── plans ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void close_plan(void) {
    send_all_reads();
    if (server.open) close_session(&server.session);
    server.open = false;
    server.step_count = server.steps_taken = 0;
    server.step_begin = 0;
}

static bool skip(uint64_t length) {
    char piece[65536];
    while (length > 0 && !server.lost) {
        size_t count = (size_t)least(length, sizeof piece);
        if (!read_all(server.in, piece, count, NULL)) server.lost = true;
        length -= count;
    }
    return !server.lost;
}

static void plan_path(const unsigned char *sha, char *path, size_t space) {
    char hex[65];
    for (int i = 0; i < 32; ++i) (void)snprintf(hex + 2 * i, 3, "%02x", sha[i]);
    (void)snprintf(path, space, "%s/plans/%s.plan", server.folder, hex);
}

/* Opens a plan that was read and checked, and answers. */
static bool start_plan(const struct request *request, struct plan *plan, uint32_t index, uint32_t flags) {
    if (!open_opencl(server.library) ||
        (index >= device_count && !failed("there is no device %u; there are %u. Try: handheld doctor", index, device_count))) {
        free_plan(plan);
        return false;
    }
    if (server.contexts == NULL) server.contexts = need(device_count, sizeof *server.contexts);
    if (server.contexts[index] == NULL && !open_context(&devices[index], &server.contexts[index])) {
        free_plan(plan);
        return false;
    }
    struct session *session = &server.session;
    const char *binaries = (flags & NO_BINARIES) != 0 ? NULL : server.folder;
    current = request;
    if (!open_session(session, plan, &devices[index], server.contexts[index], (flags & 1) != 0, binaries, report))
        return false;
    server.open = true;
    server.broken[0] = 0;
    session->input_way = (enum input_way)((flags & INPUT_WAYS) >> 3);
    if ((flags & RECORDING) != 0 && !open_recorder(session, recordings[(flags & RECORDING) >> 1])) {
        close_plan();
        return false;
    }
    struct bytes text = {0};
    put(&text, "\1\0\0", 4);
    say(&text, "{\"allocated_bytes\": %llu, \"programs\": %u, \"from_cache\": %u, \"build_s\": %.6f, \"allocate_s\": %.6f, "
        "\"shared_segments\": %u",
        (unsigned long long)session->allocated_bytes, session->plan.program_count, session->from_cache,
        (double)session->build_ns * 1e-9, (double)session->allocate_ns * 1e-9, session->shared_segments);
    describe_recording(session, &text);
    say(&text, "}");
    return answer_bytes(request, &text);
}

static bool do_open(const struct request *request) {
    char path[1200];
    struct plan plan;
    int64_t changed;
    uint64_t bytes;
    plan_path(request->data + 8, path, sizeof path);
    close_plan();
    if (file_age(path, &changed, &bytes)) {
        touch(path);
        if (read_plan(&plan, path)) return start_plan(request, &plan, u32_at(request->data), u32_at(request->data + 4));
        (void)unlink(path); /* A damaged copy is sent again. */
    }
    return answer(request, "\0\0\0", 4);
}

/* Copies a plan file from stdin into the folder. */
static bool store_plan(const char *path, uint64_t length) {
    struct new_file made;
    char piece[65536];
    if (!begin_file(&made, path)) return skip(length) && false;
    for (bool full = false; length > 0; length -= least(length, sizeof piece)) {
        size_t count = (size_t)least(length, sizeof piece);
        if (!read_all(server.in, piece, count, NULL)) {
            server.lost = true;
            drop_file(&made);
            return failed("the connection ended inside a plan");
        }
        if (full || write_all(made.file, piece, count)) continue;
        full = true; /* The rest is read all the same: the stream must stay in step. */
        (void)failed("the plan cannot be stored in %s: %s. Try: free some storage, or handheld target clean", server.folder,
                     reason());
        drop_file(&made);
    }
    return made.file >= 0 && end_file(&made, false);
}

static bool do_plan(const struct request *request) {
    unsigned char head[40];
    char path[1200], folder[1100];
    struct plan plan;
    if (!read_all(server.in, head, sizeof head, NULL)) {
        server.lost = true;
        return failed("the connection ended inside a plan");
    }
    close_plan();
    (void)snprintf(folder, sizeof folder, "%s/plans", server.folder);
    plan_path(head + 8, path, sizeof path);
    if (!make_folder(folder)) return skip(request->length - sizeof head) && false;
    if (!store_plan(path, request->length - sizeof head)) return false;
    keep_newest(folder, ".plan", KEPT_PLANS, UINT64_MAX);
    if (!read_plan(&plan, path)) {
        (void)unlink(path);
        return false;
    }
    return start_plan(request, &plan, u32_at(head), u32_at(head + 4));
}

/* ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool check_place(const unsigned char *data, uint64_t bytes) {
    uint32_t segment = u32_at(data);
    uint64_t offset = u64_at(data + 8);
    if (is_inside(&server.session.plan, segment, offset, bytes)) return true;
    return failed("the plan has no %llu bytes at %llu of segment %u", (unsigned long long)bytes, (unsigned long long)offset,
                  segment);
}

static bool check_graph(uint32_t graph) {
    return graph < server.session.plan.graph_count || failed("the plan has no graph %u", graph);
}

/* Whether a WRITE sets an input. A step begins with its first input; a slot may be set long before. */
static bool is_input(const unsigned char *place) {
    const struct plan *plan = &server.session.plan;
    for (uint32_t i = 0; server.open && i < plan->input_count; ++i)
        if (plan->inputs[i].segment == u32_at(place) && plan->inputs[i].offset == u64_at(place + 8)) return true;
    return false;
}

static bool do_write(const struct request *request) {
    unsigned char place[16];
    struct inflow from = {server.in, NULL, request->length - sizeof place, false};
    if (!read_all(server.in, place, sizeof place, NULL)) {
        server.lost = true;
        return failed("the connection ended inside a WRITE");
    }
    if (server.step_begin == 0 && is_input(place)) server.step_begin = request->received;
    bool ok = server.open && check_place(place, from.left) &&
              receive(&server.session, u32_at(place), u64_at(place + 8), &from);
    if (from.lost) server.lost = true;
    else if (!ok) (void)skip(from.left);
    return ok;
}

/* A WRITE whose data lies in the memory that this process shares with the host. */
static bool do_write_shared(const struct request *request) {
    uint64_t at = u64_at(request->data + 16), bytes = u64_at(request->data + 24);
    if (server.shared == NULL || at > server.shared_bytes || bytes > server.shared_bytes - at)
        return failed("there are no %llu bytes at %llu of the shared memory", (unsigned long long)bytes,
                      (unsigned long long)at);
    struct inflow from = {-1, server.shared + at, bytes, false};
    if (server.step_begin == 0 && is_input(request->data)) server.step_begin = request->received;
    return check_place(request->data, bytes) &&
           receive(&server.session, u32_at(request->data), u64_at(request->data + 8), &from);
}

static bool send_part(void *to, const void *data, size_t bytes) {
    (void)to;
    if (!write_all(server.out, data, bytes)) server.lost = true;
    return !server.lost;
}

/* A large READ is not deferred: it is sent in parts, without a copy of the whole. */
static bool read_large(const struct request *request, uint32_t segment, uint64_t offset, uint64_t bytes) {
    unsigned char head[16] = {0};
    send_all_reads();
    if (!finish(&server.session)) return false; /* From here on an error cannot be told any more. */
    memcpy(head + 4, &request->seq, 4);
    memcpy(head + 8, &bytes, 8);
    if (write_all(server.out, head, sizeof head) && send_out(&server.session, segment, offset, bytes, send_part, NULL))
        return true;
    server.lost = true;
    return false;
}

static bool do_read(const struct request *request) {
    uint32_t segment = u32_at(request->data);
    uint64_t offset = u64_at(request->data + 8), bytes = u64_at(request->data + 16);
    if (!check_place(request->data, bytes)) return false;
    if (bytes > CHUNK_BYTES) return read_large(request, segment, offset, bytes);
    if (bytes == 0) return answer(request, NULL, 0);
    if (server.read_count == MOST_READS) send_oldest();
    struct waiting *waiting = &server.reads[server.read_count];
    waiting->seq = request->seq;
    if (!begin_read(&server.session, segment, offset, (size_t)bytes, &waiting->reading)) return false;
    ++server.read_count;
    (void)cl.SetEventCallback(waiting->reading.event, 0, on_done, NULL);
    return true;
}

static bool do_run(const struct request *request) {
    if (!check_graph(u32_at(request->data)) || !run_graph(&server.session, u32_at(request->data))) return false;
    if (server.steps == NULL) server.steps = need(MOST_STEPS, sizeof *server.steps);
    int64_t *step = server.steps[server.step_count++ % MOST_STEPS];
    step[0] = server.step_begin != 0 ? server.step_begin : request->received;
    step[1] = clock_ns();
    server.step_begin = 0;
    return true;
}

static bool do_steps(const struct request *request) {
    struct bytes rows = {0};
    if (server.step_count - server.steps_taken > MOST_STEPS) server.steps_taken = server.step_count - MOST_STEPS;
    for (; server.steps_taken < server.step_count; ++server.steps_taken)
        put(&rows, server.steps[server.steps_taken % MOST_STEPS], sizeof *server.steps);
    return answer_bytes(request, &rows);
}

static bool do_inputs(const struct request *request) {
    uint64_t ways[2] = {server.session.inputs_mapped, server.session.inputs_staged};
    return answer(request, ways, sizeof ways);
}

static bool do_repeated(const struct request *request) {
    uint32_t graph = u32_at(request->data), count = u32_at(request->data + 4);
    if (request->length != 8 + 8 * (uint64_t)count) return failed("RUN_REPEATED needs 8 bytes per node");
    return check_graph(graph) && run_repeated(&server.session, graph, request->data + 8, count);
}

static bool do_node(const struct request *request) {
    return check_graph(u32_at(request->data)) && run_node(&server.session, u32_at(request->data), u32_at(request->data + 4));
}

static bool do_fill(const struct request *request) {
    uint64_t bytes = u64_at(request->data + 16);
    return check_place(request->data, bytes) &&
           fill(&server.session, u32_at(request->data), (uint8_t)u32_at(request->data + 4), u64_at(request->data + 8), bytes);
}

static bool do_time(const struct request *request) {
    struct bytes samples = {0};
    double seconds;
    memcpy(&seconds, request->data + 8, sizeof seconds);
    if (!(seconds >= 0 && seconds <= MOST_SECONDS)) return failed("TIME measures for 0 to %d seconds", (int)MOST_SECONDS);
    if (check_graph(u32_at(request->data)) && time_graph(&server.session, u32_at(request->data), seconds, &samples))
        return answer_bytes(request, &samples);
    free(samples.data);
    return false;
}

static bool do_recorded(const struct request *request) {
    struct bytes rows = {0};
    if (take_commands(&server.session, &rows)) return answer_bytes(request, &rows);
    free(rows.data);
    return false;
}

static bool do_mark(const struct request *request) {
    int64_t mark[3] = {0};
    return clock_mark(&server.session, mark) && answer(request, mark, sizeof mark);
}

static bool do_hello(const struct request *request) {
    uint32_t version = u32_at(request->data);
    if (version != PROTOCOL)
        return failed("this runner speaks protocol %d, and the host protocol %u. Try: handheld target clean, so that the "
                      "runner is sent again",
                      PROTOCOL, version);
    struct bytes text = {0};
    describe(&text, server.library);
    return answer_bytes(request, &text);
}

static bool do_system(const struct request *request) {
    struct bytes text = {0};
    describe_system(&text);
    return answer_bytes(request, &text);
}

/* The answers of files.c and sample.c. */
static bool do_files(const struct request *request) {
    unsigned char *made = NULL;
    size_t bytes = 0;
    const char *why = NULL;
    switch (request->op) {
    case FILES: why = files_answer(server.root, (const char *)request->data, (size_t)request->length, &made, &bytes); break;
    case SAMPLE: why = sampler_start(server.sampler, request->data, (size_t)request->length); break;
    case SAMPLES: why = sampler_take(server.sampler, &made, &bytes); break;
    default: why = sampler_stop(server.sampler, &made, &bytes); break;
    }
    if (why != NULL) return failed("%s", why);
    bool ok = answer(request, made, bytes);
    free(made);
    return ok;
}

static bool do_plain(const struct request *request) {
    int64_t now = clock_ns();
    switch (request->op) {
    case CLOSE:
        close_plan();
        server.broken[0] = 0;
        return true;
    case FINISH: return finish(&server.session) && answer(request, NULL, 0);
    case RECORD: return set_recording(&server.session, u32_at(request->data) != 0) && answer(request, NULL, 0);
    default: return answer(request, &now, sizeof now); /* CLOCK */
    }
}

/* ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────── */

#define NEEDS_PLAN 1 /* only with an open plan */
#define SILENT 2     /* answers only an error, after which the plan is closed */
#define STREAMED 4   /* reads its payload itself */

static const struct {
    uint32_t op;
    bool (*run)(const struct request *);
    uint64_t least, most; /* bytes of the payload */
    uint32_t flags;
} ops[] = {
    {HELLO, do_hello, 4, 4, 0},
    {OPEN, do_open, 40, 40, 0},
    {PLAN, do_plan, 40, (uint64_t)17 << 30, STREAMED},
    {CLOSE, do_plain, 0, 0, SILENT},
    {WRITE, do_write, 16, (uint64_t)1 << 45, NEEDS_PLAN | SILENT | STREAMED},
    {READ, do_read, 24, 24, NEEDS_PLAN},
    {RUN, do_run, 4, 4, NEEDS_PLAN | SILENT},
    {RUN_NODE, do_node, 8, 8, NEEDS_PLAN | SILENT},
    {RUN_REPEATED, do_repeated, 8, MOST_PAYLOAD, NEEDS_PLAN | SILENT},
    {FINISH, do_plain, 0, 0, NEEDS_PLAN},
    {FILL, do_fill, 24, 24, NEEDS_PLAN | SILENT},
    {WRITE_SHARED, do_write_shared, 32, 32, NEEDS_PLAN | SILENT},
    {RECORD, do_plain, 4, 4, NEEDS_PLAN},
    {RECORDED, do_recorded, 0, 0, NEEDS_PLAN},
    {MARK, do_mark, 0, 0, NEEDS_PLAN},
    {CLOCK, do_plain, 0, 0, 0},
    {STEPS_OP, do_steps, 0, 0, 0},
    {TIME, do_time, 16, 16, NEEDS_PLAN},
    {INPUTS_OP, do_inputs, 0, 0, NEEDS_PLAN},
    {FILES, do_files, 0, MOST_PAYLOAD, 0},
    {SAMPLE, do_files, 4, MOST_PAYLOAD, 0},
    {SAMPLES, do_files, 0, 0, 0},
    {SAMPLE_STOP, do_files, 0, 0, 0},
    {SYSTEM, do_system, 0, 0, 0},
};

static void refuse(const struct request *request) {
    send_all_reads();
    (void)transmit(1, request->seq, problem, strlen(problem));
}

static void handle(struct request *request) {
    size_t i = 0, count = sizeof ops / sizeof *ops;
    while (i < count && ops[i].op != request->op) ++i;
    if (i == count || request->length < ops[i].least || request->length > ops[i].most) {
        (void)failed("the runner got op %u with %llu bytes, which is no request of protocol %d. Try: handheld target clean, "
                     "so that the runner is sent again",
                     request->op, (unsigned long long)request->length, PROTOCOL);
        refuse(request);
        server.lost = true; /* The stream is out of step: there is nothing to go on with. */
        return;
    }
    if (!(ops[i].flags & STREAMED)) {
        request->data = need((size_t)request->length + 1, 1);
        if (!read_all(server.in, request->data, (size_t)request->length, NULL)) {
            server.lost = true;
            free(request->data);
            return;
        }
    }
    bool ok;
    if ((ops[i].flags & NEEDS_PLAN) && !server.open) {
        if (ops[i].flags & STREAMED) (void)skip(request->length);
        ok = failed("%s", server.broken[0] != 0 ? server.broken : "no plan is open. Try: send one first");
    } else {
        ok = ops[i].run(request);
        if (!ok && (ops[i].flags & SILENT) && !server.lost) {
            memcpy(server.broken, problem, sizeof problem);
            close_plan();
        }
    }
    free(request->data);
    if (!ok && !server.lost) refuse(request);
}

static bool next_request(struct request *request) {
    unsigned char head[16];
    wait_for_request();
    memset(request, 0, sizeof *request);
    if (server.lost || !read_all(server.in, head, sizeof head, NULL)) return false;
    request->received = clock_ns();
    request->op = u32_at(head);
    request->seq = u32_at(head + 4);
    request->length = u64_at(head + 8);
    return true;
}

/* Drivers print to stdout at times. The protocol moves to another file, and what is printed goes to stderr. */
static bool take_streams(void) {
    server.in = dup(0);
    server.out = dup(1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (server.in < 0 || server.out < 0 || nothing < 0 || pipe(wake) != 0)
        return failed("the runner cannot open its streams: %s", reason());
    (void)dup2(nothing, 0);
    (void)dup2(2, 1);
    (void)close(nothing);
    (void)fcntl(wake[1], F_SETFL, O_NONBLOCK);
    return true;
}

static bool map_shared(int file) {
    off_t end = lseek(file, 0, SEEK_END);
    if (end <= 0) return failed("--shared names file %d, which is no memory that can be shared", file);
    void *memory = mmap(NULL, (size_t)end, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return failed("the memory that is shared with the host cannot be mapped: %s", reason());
    (void)close(file);
    server.shared = memory;
    server.shared_bytes = (uint64_t)end;
    return true;
}

int serve(const char *folder, const char *library, const char *root, int shared) {
    struct request request;
    int code = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    memset(&server, 0, sizeof server);
    server.folder = folder;
    server.library = library;
    server.root = root;
    if (!make_folder(folder) || !take_streams() || (shared > 0 && !map_shared(shared))) {
        tell("%s", problem);
        return 1;
    }
    server.sampler = sampler_fork(root); /* before OpenCL, whose threads do not survive a fork */
    while (next_request(&request)) {
        if (request.op == END && request.length == 0) {
            close_plan();
            (void)answer(&request, NULL, 0);
            break;
        }
        handle(&request);
    }
    if (server.lost) code = 1;
    close_plan();
    sampler_end(server.sampler);
    free(server.steps);
    for (uint32_t i = 0; server.contexts != NULL && i < device_count; ++i)
        if (server.contexts[i] != NULL) (void)cl.ReleaseContext(server.contexts[i]);
    free(server.contexts);
    (void)close(server.in);
    (void)close(server.out);
    (void)close(wake[0]);
    (void)close(wake[1]);
    return code;
}
