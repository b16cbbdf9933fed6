/* fuzz.c: mutated plan files, mutated streams of requests, and failing drivers, in one process with an OpenCL in memory
 * (fake_cl.c). Compile it with -fsanitize=address,undefined; a finding ends the process.
 *
 *     fuzz plans COUNT SEED FOLDER PLAN...     each mutated plan is read and, if it is legal, run
 *     fuzz streams COUNT SEED FOLDER PLAN...   each mutated stream is served
 *     fuzz drivers FOLDER PLAN...              the first, second, third ... call of the driver fails
 *
 * Prints how many were accepted and refused. Objects of the driver that are left over are findings too.
 */
#include "commands.h"
#include "fake_cl.h"
#include "info.h"
#include "sample.h"
#include "serve.h"

#include <sys/resource.h>

/* The parts of the runner that are not linked. */
void describe(struct bytes *to, const char *library) { say(to, "{\"library\": \"%s\"}", library == NULL ? "" : library); }
void describe_system(struct bytes *to) { say(to, "{}"); }
struct sampler *sampler_fork(const char *root) { return root == NULL ? NULL : NULL; }
const char *sampler_start(struct sampler *s, const unsigned char *list, size_t bytes) {
    return s == NULL && list != NULL && bytes > 0 ? "no sampler" : NULL;
}
const char *sampler_take(struct sampler *s, unsigned char **answer, size_t *bytes) {
    *answer = NULL;
    *bytes = 0;
    return s == NULL ? "no sampler" : NULL;
}
const char *sampler_stop(struct sampler *s, unsigned char **answer, size_t *bytes) { return sampler_take(s, answer, bytes); }
void sampler_end(struct sampler *s) { (void)s; }

static uint64_t state = 1;
static uint64_t draw(uint64_t below) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 2685821657736338717u >> 11) % (below > 0 ? below : 1);
}

static uint64_t interesting(uint64_t old) {
    static const uint64_t values[] = {0, 1, 2, 3, 4, 7, 8, 63, 64, 65, 255, 4095, 4096, 65535, 65536, 0x7FFFFFFF, 0x80000000,
                                      0xFFFFFFFF, 0x100000000, (uint64_t)1 << 44, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7,
                                      UINT64_MAX};
    switch (draw(4)) {
    case 0: return old + draw(17) - 8;
    case 1: return old ^ (uint64_t)1 << draw(64);
    default: return values[draw(sizeof values / sizeof *values)];
    }
}

struct file {
    unsigned char *data;
    size_t bytes;
};

static struct file load_file(const char *path) {
    struct file made = {NULL, 0};
    int file = open(path, O_RDONLY);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    if (size < 0 || lseek(file, 0, SEEK_SET) < 0) {
        tell("%s cannot be read", path);
        exit(2);
    }
    made.bytes = (size_t)size;
    made.data = need(made.bytes, 1);
    (void)read_all(file, made.data, made.bytes, NULL);
    (void)close(file);
    return made;
}

static void change_number(unsigned char *at, bool is_long) {
    uint64_t value = is_long ? u64_at(at) : u32_at(at);
    value = interesting(value);
    memcpy(at, &value, is_long ? 8 : 4);
}

/* A number of a record or of the section table, at its place. */
static void change_field(struct file *file) {
    size_t table = 32 + 24 * (size_t)draw(14), offset = (size_t)u64_at(file->data + table + 8);
    size_t bytes = (size_t)u64_at(file->data + table + 16);
    bool is_long = draw(2) == 0;
    if (draw(6) == 0 || bytes < 8 || offset > file->bytes || bytes > file->bytes - offset) {
        change_number(file->data + table + (is_long ? 8 * (1 + draw(2)) : 4 * draw(2)), is_long);
        return;
    }
    size_t at = offset + (size_t)draw(bytes / 8) * 8 + (is_long ? 0 : (size_t)draw(2) * 4);
    change_number(file->data + at, is_long);
}

static void mutate_plan(struct file *file) {
    for (uint64_t times = 1 + draw(3); times > 0; --times) {
        switch (draw(8)) {
        case 0: file->data[draw(file->bytes)] ^= (unsigned char)(1u << draw(8)); break;
        case 1: file->data[draw(file->bytes)] = (unsigned char)draw(256); break;
        case 2:
            if (draw(4) == 0) file->bytes = (size_t)draw(file->bytes);
            if (file->bytes < 400) return;
            break;
        default: change_field(file); break;
        }
    }
    if (draw(8) == 0) return;
    uint64_t size = file->bytes; /* Repaired, so that the checks behind the checksum are reached. */
    uint32_t crc = crc32_add(0, file->data + 32, file->bytes - 32);
    memcpy(file->data + 16, &size, 8);
    memcpy(file->data + 24, &crc, 4);
}

static void write_file(const char *path, const unsigned char *data, size_t bytes) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || !write_all(file, data, bytes)) exit(3);
    (void)close(file);
}

/* Reads a file of batches for graph 0: one 8x8 f32 input, as the plans have it, with up to two numbers changed. */
static void use_batches(struct session *session, const char *folder) {
    unsigned char data[24 + 24 + 2 * 256] = "HANDBATC";
    const uint32_t head[4] = {2, 1, 2, 0}, input[6] = {TYPE_F32, 2, 8, 0, 8, 0};
    const uint32_t first = 0;
    struct batches batches;
    char path[600];
    memcpy(data + 8, head, sizeof head);
    memcpy(data + 24, input, sizeof input);
    for (uint64_t times = draw(3); times > 0; --times) change_number(data + 8 + 4 * draw(9), draw(2) == 0);
    (void)snprintf(path, sizeof path, "%s/batches", folder);
    write_file(path, data, draw(4) == 0 ? (size_t)draw(sizeof data) : sizeof data);
    problem[0] = 0;
    if (open_batches(&batches, path, &session->plan, &first, 1)) {
        for (uint64_t k = 0; k < 3; ++k) (void)(seek_batch(&batches, k) && send_inputs(session, &batches, 0));
    } else if (strstr(problem, "Try: ") == NULL) {
        tell("batches were refused without a sentence: %s", problem);
        abort();
    }
    if (batches.file >= 0) (void)close(batches.file);
}

/* Does with a plan what the commands do. Failures are answers; only crashes are findings. */
static void use_plan(struct plan *plan, const char *folder) {
    struct session session;
    struct bytes out = {0};
    cl_context context = NULL;
    char path[600];
    uint64_t steps = 0;
    int64_t mark[3];
    unsigned char repeats[8] = {0, 0, 0, 0, 3, 0, 0, 0};
    (void)open_opencl(NULL);
    if (!copy_text(plan, plan->device->name, devices->name, sizeof devices->name)) devices->name[0] = 0;
    if (!open_context(devices, &context)) {
        free_plan(plan);
        return;
    }
    if (!open_session(&session, plan, devices, context, false, folder, NULL)) {
        (void)cl.ReleaseContext(context);
        return;
    }
    (void)snprintf(path, sizeof path, "%s/checkpoint", folder);
    if (fake_fail == 0 && session.plan.graph_count > 0) use_batches(&session, folder);
    for (uint32_t g = 0; g < session.plan.graph_count && g < 8; ++g) {
        bool on = g % 2 == 1 && set_recording(&session, true);
        for (int k = 0; k < 4; ++k) (void)run_graph(&session, g);
        (void)run_node(&session, g, (uint32_t)draw(session.plan.graphs[g].nodes + 1));
        (void)run_repeated(&session, g, repeats, 1);
        if (on) (void)(take_commands(&session, &out) && set_recording(&session, false));
        (void)time_graph(&session, g, 0.0, &out);
    }
    for (uint32_t i = 0; i < session.plan.output_count && i < 8; ++i) {
        const struct plan_output *output = &session.plan.outputs[i];
        struct reading reading;
        if (output->bytes <= CHUNK_BYTES && begin_read(&session, output->segment, output->offset, (size_t)output->bytes, &reading)) {
            (void)end_read(&reading);
            free(reading.host);
        }
    }
    (void)clock_mark(&session, mark);
    if (write_checkpoint(&session, path, 7)) (void)read_checkpoint(&session, path, &steps);
    free(out.data);
    close_session(&session);
    (void)cl.ReleaseContext(context);
}

static void no_leftovers(const char *what, uint64_t number) {
    if (fake_live == 0) return;
    tell("%s %llu left %ld objects of the driver", what, (unsigned long long)number, fake_live);
    abort();
}

static void fuzz_plans(uint64_t count, const char *folder, int plans, char **paths) {
    uint64_t accepted = 0;
    char path[600];
    (void)snprintf(path, sizeof path, "%s/mutated.plan", folder);
    for (uint64_t i = 0; i < count; ++i) {
        struct file file = load_file(paths[i % (uint64_t)plans]);
        struct plan plan;
        if (i >= (uint64_t)plans) mutate_plan(&file);
        write_file(path, file.data, file.bytes);
        free(file.data);
        problem[0] = 0;
        if (read_plan(&plan, path)) {
            ++accepted;
            use_plan(&plan, folder);
        } else if (problem[0] == 0 || strstr(problem, "Try: ") == NULL) {
            tell("plan %llu was refused without a sentence: %s", (unsigned long long)i, problem);
            abort();
        }
        no_leftovers("plan", i);
    }
    print("%llu plans: %llu accepted, %llu refused\n", (unsigned long long)count, (unsigned long long)accepted,
          (unsigned long long)(count - accepted));
}

/* ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void request(struct bytes *to, uint32_t op, const void *data, size_t bytes) {
    static uint32_t seq;
    uint64_t length = bytes;
    ++seq;
    put(to, &op, 4);
    put(to, &seq, 4);
    put(to, &length, 8);
    put(to, data, bytes);
}

static void numbers(struct bytes *to, uint32_t op, uint32_t a, uint32_t b, uint64_t c, uint64_t d, size_t bytes) {
    unsigned char data[24];
    memcpy(data, &a, 4);
    memcpy(data + 4, &b, 4);
    memcpy(data + 8, &c, 8);
    memcpy(data + 16, &d, 8);
    request(to, op, data, bytes);
}

/* Everything that a host does with one plan. */
static void session_stream(struct bytes *to, const struct file *plan) {
    unsigned char place[16 + 64] = {0};
    struct bytes sent = {0};
    numbers(to, 1, 1, 0, 0, 0, 4);
    put(&sent, place, 40);
    request(to, 2, sent.data, 40); /* OPEN */
    put(&sent, plan->data, plan->bytes);
    request(to, 3, sent.data, sent.length); /* PLAN */
    for (int k = 0; k < 2; ++k) {
        numbers(to, 20, (uint32_t)k, 0, 0, 0, 4);   /* RECORD */
        request(to, 10, place, sizeof place);       /* WRITE */
        numbers(to, 12, 0, 0, 0, 0, 4);             /* RUN */
        numbers(to, 11, 0, 0, 0, 4, 24);            /* READ */
        numbers(to, 13, 0, 1, 0, 0, 8);             /* RUN_NODE */
        numbers(to, 14, 0, 1, 0x300000000, 0, 16);  /* RUN_REPEATED: node 0 three times */
        numbers(to, 16, 0, 7, 0, 64, 24);           /* FILL */
        numbers(to, 11, 0, 0, 0, 128, 24);
        request(to, 15, NULL, 0);                   /* FINISH */
        request(to, 21, NULL, 0);                   /* RECORDED */
    }
    numbers(to, 20, 0, 0, 0, 0, 4);
    request(to, 22, NULL, 0); /* MARK */
    request(to, 23, NULL, 0); /* CLOCK */
    request(to, 24, NULL, 0); /* STEPS */
    numbers(to, 25, 0, 0, 0, 0, 16); /* TIME */
    request(to, 30, "/x*\n", 4);
    request(to, 32, NULL, 0);
    numbers(to, 20, 1, 0, 0, 0, 4);
    numbers(to, 14, 0, 1, (uint64_t)MOST_COMMANDS << 32, 0, 16); /* more than a recording holds: the plan is closed */
    request(to, 3, sent.data, sent.length);
    free(sent.data);
    numbers(to, 20, 1, 0, 0, 0, 4);
    for (int k = 0; k < 2; ++k) numbers(to, 13, 0, 0, 0, 0, 8); /* so that it is full before a copy */
    for (size_t k = 0; k < MOST_COMMANDS / 3; ++k) numbers(to, 12, 0, 0, 0, 0, 4);
    request(to, 4, NULL, 0);  /* CLOSE */
    numbers(to, 12, 0, 0, 0, 0, 4);
    request(to, 5, NULL, 0);  /* END */
}

static void mutate_stream(struct bytes *stream) {
    for (uint64_t times = 1 + draw(4); times > 0; --times) {
        size_t at = (size_t)draw(stream->length - 8);
        switch (draw(6)) {
        case 0: stream->data[at] = (char)draw(256); break;
        case 1: stream->data[at] = (char)(stream->data[at] ^ 1 << draw(8)); break;
        case 2: change_number((unsigned char *)stream->data + at, true); break;
        case 3: change_number((unsigned char *)stream->data + at / 8 * 8, draw(2) == 0); break;
        case 4: stream->length = at + 8; break;
        default: {
            size_t from = (size_t)draw(stream->length - 8), bytes = (size_t)draw(64);
            if (from + bytes > stream->length || at + bytes > stream->length) break;
            memmove(stream->data + at, stream->data + from, bytes);
        }
        }
        if (stream->length < 64) return;
    }
}

static void serve_stream(const struct bytes *stream, const char *folder) {
    char path[600];
    (void)snprintf(path, sizeof path, "%s/stream", folder);
    write_file(path, (unsigned char *)stream->data, stream->length);
    int in = open(path, O_RDONLY), nothing = open("/dev/null", O_WRONLY);
    (void)dup2(in, 0);
    (void)dup2(nothing, 1);
    (void)close(in);
    (void)close(nothing);
    (void)snprintf(path, sizeof path, "%s/served", folder);
    (void)serve(path, NULL, folder, 0);
}

static void fuzz_streams(uint64_t count, const char *folder, int plans, char **paths) {
    int stdout_kept = dup(1);
    for (uint64_t i = 0; i < count; ++i) {
        struct file plan = load_file(paths[i % (uint64_t)plans]);
        struct bytes stream = {0};
        session_stream(&stream, &plan);
        if (i >= (uint64_t)plans) mutate_stream(&stream);
        serve_stream(&stream, folder);
        free(stream.data);
        free(plan.data);
        no_leftovers("stream", i);
    }
    (void)dup2(stdout_kept, 1);
    print("%llu streams served\n", (unsigned long long)count);
}

/* ── failing drivers ──────────────────────────────────────────────────────────────────────────────────────────── */

static void fuzz_drivers(const char *folder, int plans, char **paths) {
    int stdout_kept = dup(1);
    long last = 0;
    for (int p = 0; p < plans; ++p) {
        struct file file = load_file(paths[p]);
        for (long k = 1;; ++k) {
            struct bytes stream = {0};
            struct plan plan;
            session_stream(&stream, &file);
            fake_fail = k;
            serve_stream(&stream, folder);
            free(stream.data);
            no_leftovers("a served driver failure", (uint64_t)k);
            bool served = fake_fail > 0;
            fake_fail = k;
            if (read_plan(&plan, paths[p])) use_plan(&plan, folder);
            no_leftovers("a driver failure", (uint64_t)k);
            if (served && fake_fail > 0) break; /* Both ran to their end without the failure. */
            last = k;
        }
        fake_fail = 0;
        free(file.data);
    }
    (void)dup2(stdout_kept, 1);
    print("%ld failures of the driver\n", last);
}

int main(int count, char **words) {
    struct rlimit most = {4096, 4096}; /* Files that stay open are findings. */
    (void)setrlimit(RLIMIT_NOFILE, &most);
    if (count >= 4 && strcmp(words[1], "drivers") == 0) {
        if (!make_folder(words[2])) return 2;
        fuzz_drivers(words[2], count - 3, words + 3);
        return 0;
    }
    if (count < 6) return 2;
    state = strtoull(words[3], NULL, 10) * 2 + 1;
    if (!make_folder(words[4])) return 2;
    if (strcmp(words[1], "plans") == 0) fuzz_plans(strtoull(words[2], NULL, 10), words[4], count - 5, words + 5);
    else fuzz_streams(strtoull(words[2], NULL, 10), words[4], count - 5, words + 5);
    return 0;
}
