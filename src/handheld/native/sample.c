/* The sampler's process and the ring that it shares with the runner.
 *
 *   runner ── socket: list, stop ──►  child: waits for the next deadline, reads the source that is due
 *   runner ◄── ring: readings ──────  child
 *
 * The ring has one writer (the child, `head`) and one reader (the runner, `tail`), so it needs no lock. If it is full,
 * readings are dropped and counted. The child ends when its end of the socket closes, which happens however the runner
 * ends. Sampling may use SHARE of the machine's processors; if it needs more, all periods are stretched. */
#include "libc.h"

#include "files.h"
#include "sample.h"

enum {
    RING = 4 * 1024 * 1024, /* a power of two */
    SOURCES = 64,
    ENTRIES = 4096,
    LIST_MOST = 1024 * 1024,
    FIGURES = 6, /* numbers per source in a status */
    TOTALS = 4,  /* numbers before them */
    PATIENCE_MS = 5000,
};

static const int64_t SECOND = 1000000000;
static const int64_t SLOWEST = 250000000; /* Stretching never makes a period longer than this. */
static const double SHARE = 0.01;         /* of all processors */
static const double MOST_STRETCH = 10.0;

struct shared {
    uint64_t head, tail;
    int64_t begun, cpu_begun; /* when the list was started, and the child's processor time then */
    int64_t totals[TOTALS];
    int64_t sources;
    int64_t figures[SOURCES][FIGURES];
    unsigned char ring[RING];
};

struct sampler {
    struct shared *shared;
    int socket;
    int child;
};

struct entry {
    uint32_t id, most;
    const char *path;
    unsigned char *last; /* the content at the last reading */
    uint32_t last_length, last_room;
    int seen;
};

struct source {
    struct entry *entries;
    size_t count;
    int64_t period, due, quickest;
};

/* What the child works on. */
struct job {
    struct shared *shared;
    const char *root;
    char *paths;
    struct entry entries[ENTRIES];
    struct source sources[SOURCES];
    size_t entry_count, source_count;
    double stretch;
    int64_t looked, looked_cpu;
};

static int64_t clock_of(clockid_t which) {
    struct timespec now;
    if (clock_gettime(which, &now)) return 0;
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

static int64_t now_ns(void) { return clock_of(CLOCK_MONOTONIC); }

static int64_t cpu_ns(void) { return clock_of(CLOCK_PROCESS_CPUTIME_ID); }

/* ── the ring ─────────────────────────────────────────────────────────────────────────────── */

static void ring_write(struct shared *shared, uint64_t at, const void *data, size_t bytes) {
    size_t from = (size_t)(at & (RING - 1)), first = bytes < RING - from ? bytes : RING - from;
    memcpy(shared->ring + from, data, first);
    memcpy(shared->ring, (const unsigned char *)data + first, bytes - first);
}

static void put_reading(struct shared *shared, uint32_t id, uint32_t length, int64_t t_ns, const unsigned char *content) {
    size_t bytes = length == SAMPLE_SAME ? 0 : length & ~FILE_UNREADABLE;
    uint64_t head = shared->head, tail = __atomic_load_n(&shared->tail, __ATOMIC_ACQUIRE);
    unsigned char start[16];
    if (RING - (head - tail) < sizeof start + bytes) {
        shared->totals[2]++;
        return;
    }
    memcpy(start, &id, 4);
    memcpy(start + 4, &length, 4);
    memcpy(start + 8, &t_ns, 8);
    ring_write(shared, head, start, sizeof start);
    ring_write(shared, head + sizeof start, content, bytes);
    __atomic_store_n(&shared->head, head + sizeof start + bytes, __ATOMIC_RELEASE);
}

/* ── the child: readings ──────────────────────────────────────────────────────────────────── */

/* Whether the content is that of the last reading; if not, it is kept for the next. */
static int is_same(struct entry *entry, uint32_t length, const unsigned char *content) {
    uint32_t bytes = length & ~FILE_UNREADABLE;
    if (entry->seen && length == entry->last_length && !memcmp(content, entry->last, bytes)) return 1;
    if (bytes > entry->last_room) {
        unsigned char *more = realloc(entry->last, bytes);
        if (!more) {
            entry->seen = 0;
            return 0;
        }
        entry->last = more, entry->last_room = bytes;
    }
    if (bytes) memcpy(entry->last, content, bytes);
    entry->last_length = length, entry->seen = 1;
    return 0;
}

static void read_entry(struct job *job, struct entry *entry) {
    static unsigned char content[FILE_MOST];
    char path[PATH_MOST];
    int64_t begun = now_ns();
    file_join(path, job->root, entry->path, strlen(entry->path));
    uint32_t length = file_read(path, content, entry->most);
    int64_t middle = begun + (now_ns() - begun) / 2;
    uint64_t dropped = (uint64_t)job->shared->totals[2];
    put_reading(job->shared, entry->id, is_same(entry, length, content) ? SAMPLE_SAME : length, middle, content);
    if ((uint64_t)job->shared->totals[2] != dropped) entry->seen = 0; /* The next reading must repeat the content. */
}

static void read_source(struct job *job, struct source *source) {
    int64_t *figures = job->shared->figures[source - job->sources];
    int64_t begun = now_ns(), cpu = cpu_ns();
    for (size_t i = 0; i < source->count; i++) read_entry(job, source->entries + i);
    int64_t took = now_ns() - begun;
    if (!figures[1] || took < source->quickest) source->quickest = took;
    figures[1]++;
    figures[3] += took;
    if (took > figures[4]) figures[4] = took;
    figures[5] += cpu_ns() - cpu;
}

/* The time between two readings: a source is read for at most half of the time. */
static int64_t pace(const struct job *job, const struct source *source) {
    double stretched = (double)source->period * job->stretch;
    int64_t result = stretched < (double)SLOWEST ? (int64_t)stretched : SLOWEST;
    if (result < source->period) result = source->period;
    return result < 2 * source->quickest ? 2 * source->quickest : result;
}

/* Reads what is due. A deadline that has passed meanwhile is counted and left out. */
static void read_due(struct job *job) {
    int64_t now = now_ns();
    for (size_t i = 0; i < job->source_count; i++) {
        struct source *source = job->sources + i;
        if (source->due > now) continue;
        read_source(job, source);
        int64_t period = pace(job, source), after = now_ns();
        source->due += period;
        if (source->due <= after) {
            int64_t skipped = (after - source->due) / period + 1;
            job->shared->figures[i][2] += skipped;
            source->due += skipped * period;
        }
    }
}

/* Once per second: sets the factor for all periods by the processor time that was used. */
static void keep_share(struct job *job) {
    int64_t now = now_ns(), cpu = cpu_ns(), elapsed = now - job->looked;
    if (elapsed < SECOND) return;
    int64_t cores = processors();
    double limit = SHARE * (double)(cores > 0 ? cores : 1);
    if (elapsed < 2 * SECOND) { /* Otherwise the process was stopped, or the machine slept. */
        double stretch = job->stretch * ((double)(cpu - job->looked_cpu) / (double)elapsed) / limit;
        job->stretch = stretch < 1.0 ? 1.0 : stretch > MOST_STRETCH ? MOST_STRETCH : stretch;
    }
    job->looked = now, job->looked_cpu = cpu;
    job->shared->totals[3] = (int64_t)(job->stretch * 1000.0);
}

static void note_totals(struct job *job) {
    job->shared->totals[0] = now_ns() - job->shared->begun;
    job->shared->totals[1] = cpu_ns() - job->shared->cpu_begun;
}

/* ── the child: the list ──────────────────────────────────────────────────────────────────── */

static void forget(struct job *job) {
    for (size_t i = 0; i < job->entry_count; i++) free(job->entries[i].last);
    free(job->paths);
    job->paths = NULL;
    job->entry_count = job->source_count = 0;
}

static uint32_t u32_at(const unsigned char *data) {
    uint32_t value;
    memcpy(&value, data, 4);
    return value;
}

static const char *add_entry(struct job *job, uint32_t id, uint32_t period_us, uint32_t most, const char *path) {
    struct source *source = job->source_count ? job->sources + job->source_count - 1 : NULL;
    if (!source || source->entries[0].id >> 16 != id >> 16) {
        if (job->source_count == SOURCES) return "there are more than 64 sources to sample";
        source = job->sources + job->source_count;
        *source = (struct source){job->entries + job->entry_count, 0, (int64_t)period_us * 1000, 0, 0};
        int64_t *figures = job->shared->figures[job->source_count++];
        memset(figures, 0, FIGURES * sizeof *figures);
        figures[0] = id >> 16;
    }
    job->entries[job->entry_count++] = (struct entry){id, most, path, NULL, 0, 0, 0};
    source->count++;
    return NULL;
}

/* Takes a list apart. The paths get their zeros in a copy, which has the length of each path before it. */
static const char *read_list(struct job *job, const unsigned char *list, size_t bytes) {
    forget(job);
    uint32_t count = bytes >= 4 ? u32_at(list) : ENTRIES + 1;
    if (count > ENTRIES) return "the list of files to sample is damaged, or has more than 4,096 files";
    job->paths = malloc(bytes + 1);
    if (!job->paths) return "there is not enough memory to sample files";
    char *to = job->paths;
    size_t at = 4;
    for (uint32_t i = 0; i < count; i++) {
        if (bytes - at < 16) return "the list of files to sample is cut off";
        uint32_t period = u32_at(list + at + 4), length = u32_at(list + at + 12);
        if (length > bytes - at - 16) return "the list of files to sample is cut off";
        const unsigned char *path = list + at + 16;
        if (!length || *path != '/' || memchr(path, 0, length) || length + strlen(job->root) + 1 > PATH_MOST)
            return "a path to sample must begin with / and be shorter than 1,000 bytes";
        if (!period) return "a period of sampling must be longer than 0";
        memcpy(to, path, length);
        to[length] = 0;
        const char *problem = add_entry(job, u32_at(list + at), period, u32_at(list + at + 8), to);
        if (problem) return problem;
        to += length + 1;
        at += 16 + length;
    }
    return NULL;
}

static const char *start(struct job *job, const unsigned char *list, size_t bytes) {
    struct shared *shared = job->shared;
    const char *problem = read_list(job, list, bytes);
    if (problem) forget(job);
    shared->begun = job->looked = now_ns();
    shared->cpu_begun = job->looked_cpu = cpu_ns();
    job->stretch = 1.0;
    shared->totals[2] = 0, shared->totals[3] = 1000;
    shared->sources = (int64_t)job->source_count;
    for (size_t i = 0; i < job->source_count; i++) job->sources[i].due = shared->begun;
    if (!problem) read_due(job);
    note_totals(job);
    return problem;
}

static void stop(struct job *job) {
    for (size_t i = 0; i < job->source_count; i++) read_source(job, job->sources + i);
    note_totals(job);
    forget(job); /* The figures stay for the last status. */
}

/* ── the child: its loop ──────────────────────────────────────────────────────────────────── */

static int all(int socket, void *data, size_t bytes, int sends) {
    unsigned char *at = data;
    while (bytes) {
        ssize_t done = sends ? send(socket, at, bytes, MSG_NOSIGNAL) : recv(socket, at, bytes, 0);
        if (done < 0 && was_interrupted()) continue;
        if (done <= 0) return 0;
        at += done, bytes -= (size_t)done;
    }
    return 1;
}

/* Answers one message: u32 bytes and a list, or u32 0 to stop. Returns 0 if the runner is gone. */
static int answer(struct job *job, int socket) {
    uint32_t bytes, length;
    const char *problem = NULL;
    if (!all(socket, &bytes, 4, 0)) return 0;
    if (bytes) {
        unsigned char *list = malloc(bytes);
        if (!list || !all(socket, list, bytes, 0)) return 0;
        problem = start(job, list, bytes);
        free(list);
    } else {
        stop(job);
    }
    length = problem ? (uint32_t)strlen(problem) : 0;
    return all(socket, &length, 4, 1) && (!length || all(socket, (void *)(uintptr_t)problem, length, 1));
}

static void work(struct shared *shared, const char *root, int socket) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) return;
    job->shared = shared, job->root = root;
    for (;;) {
        int64_t next = INT64_MAX, now = now_ns();
        for (size_t i = 0; i < job->source_count; i++)
            if (job->sources[i].due < next) next = job->sources[i].due;
        int64_t left = next > now ? next - now : 0;
        struct timespec wait = {(time_t)(left / SECOND), (long)(left % SECOND)};
        struct pollfd poll = {socket, POLLIN, 0};
        int ready = ppoll(&poll, 1, job->source_count ? &wait : NULL, NULL);
        if (ready > 0 && !answer(job, socket)) return;
        if (job->source_count) {
            read_due(job);
            keep_share(job);
            note_totals(job);
        }
    }
}

/* ── the runner ───────────────────────────────────────────────────────────────────────────── */

struct sampler *sampler_fork(const char *root) {
    struct sampler *sampler = calloc(1, sizeof *sampler);
    int ends[2];
    if (!sampler) return NULL;
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
        if (memory != MAP_FAILED) munmap(memory, sizeof(struct shared));
        free(sampler);
        return NULL;
    }
    sampler->shared = memory, sampler->socket = ends[0];
    sampler->child = fork();
    if (sampler->child == 0) {
        close(ends[0]);
        signal(SIGINT, SIG_IGN); /* Ctrl-C is for the runner, which then takes the last readings. */
        int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (nothing >= 0) { /* The host waits for the end of these streams when the runner is gone. */
            dup2(nothing, 0);
            dup2(nothing, 1);
        }
        work(memory, root, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (sampler->child < 0) {
        sampler_end(sampler);
        return NULL;
    }
    return sampler;
}

/* Waits for the child's answer. Returns NULL or the sentence of an error. */
static const char *reply(struct sampler *sampler) {
    static char problem[256];
    uint32_t length;
    struct pollfd poll_of = {sampler->socket, POLLIN, 0};
    int ready = poll(&poll_of, 1, PATIENCE_MS);
    if (ready == 0) {
        kill(sampler->child, SIGKILL); /* A late answer must not be taken for that of another message. */
        return "the sampler does not answer: one of the files takes longer than 5 s to read";
    }
    if (ready < 0 || !all(sampler->socket, &length, 4, 0)) return "the sampler's process has ended";
    if (!length) return NULL;
    if (length >= sizeof problem || !all(sampler->socket, problem, length, 0)) return "the sampler's process has ended";
    problem[length] = 0;
    return problem;
}

const char *sampler_start(struct sampler *sampler, const unsigned char *list, size_t bytes) {
    if (!sampler) return "no process could be started that samples files";
    if (!bytes || bytes > LIST_MOST) return "the list of files to sample is empty, or larger than 1 MiB";
    struct shared *shared = sampler->shared;
    __atomic_store_n(&shared->tail, __atomic_load_n(&shared->head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    uint32_t size = (uint32_t)bytes;
    if (!all(sampler->socket, &size, 4, 1) || !all(sampler->socket, (void *)(uintptr_t)list, bytes, 1))
        return "the sampler's process has ended";
    return reply(sampler);
}

const char *sampler_take(struct sampler *sampler, unsigned char **out, size_t *out_bytes) {
    if (!sampler) return "no process could be started that samples files";
    struct shared *shared = sampler->shared;
    uint64_t tail = shared->tail, head = __atomic_load_n(&shared->head, __ATOMIC_ACQUIRE);
    size_t bytes = (size_t)(head - tail);
    size_t sources = shared->sources > SOURCES || shared->sources < 0 ? 0 : (size_t)shared->sources;
    uint32_t length = (uint32_t)(8 * (TOTALS + FIGURES * sources)), id = SAMPLE_STATUS;
    int64_t now = now_ns();
    unsigned char *data = malloc(bytes + 16 + length);
    if (!data) return "there is not enough memory for the samples";
    size_t from = (size_t)(tail & (RING - 1)), first = bytes < RING - from ? bytes : RING - from;
    memcpy(data, shared->ring + from, first);
    memcpy(data + first, shared->ring, bytes - first);
    __atomic_store_n(&shared->tail, head, __ATOMIC_RELEASE);
    memcpy(data + bytes, &id, 4);
    memcpy(data + bytes + 4, &length, 4);
    memcpy(data + bytes + 8, &now, 8);
    memcpy(data + bytes + 16, shared->totals, sizeof shared->totals);
    memcpy(data + bytes + 16 + sizeof shared->totals, shared->figures, sources * sizeof shared->figures[0]);
    *out = data, *out_bytes = bytes + 16 + length;
    return NULL;
}

const char *sampler_stop(struct sampler *sampler, unsigned char **out, size_t *out_bytes) {
    uint32_t none = 0;
    if (!sampler) return "no process could be started that samples files";
    const char *problem = all(sampler->socket, &none, 4, 1) ? reply(sampler) : "the sampler's process has ended";
    return problem ? problem : sampler_take(sampler, out, out_bytes);
}

void sampler_end(struct sampler *sampler) {
    if (!sampler) return;
    close(sampler->socket);
    if (sampler->child > 0) {
        kill(sampler->child, SIGKILL); /* It may wait for a file that does not answer. */
        waitpid(sampler->child, NULL, 0);
    }
    munmap(sampler->shared, sizeof(struct shared));
    free(sampler);
}
