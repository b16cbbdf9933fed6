/* session.h: one plan on one device: its memory, programs and bound kernels, and the work that is under way.
 *
 *     memory.c     segments, their parts (sub-buffers) and textures
 *     programs.c   builds programs, keeps their binaries in a folder
 *     session.c    opens and closes a session
 *     submit.c     gives launches to the device, records times
 *     record.c     steps that the driver replays; hints
 *     transfer.c   data to the device and back
 *
 * There is one in-order queue, one kernel object per launch whose arguments are set once, and one sub-buffer per place.
 * This is the same as src/handheld/backends/opencl/, so results are equal bit for bit.
 */
#ifndef HANDHELD_SESSION_H
#define HANDHELD_SESSION_H

#include "cl.h"
#include "plan.h"

#define FLUSH_EVERY 48 /* After this many launches the queue is flushed, so that the device can begin. */
#define IN_FLIGHT 2    /* how many steps the host may be ahead of the device */
#define PIECES 2       /* staging memory per input */
#define SMALL_BYTES 4096
#define SMALL_PIECES 32
#define CHUNK_BYTES ((size_t)1 << 20) /* larger data is moved in parts of this size */
#define PINNED_LEAST ((size_t)256 << 10)

/* A part of a segment as its own buffer. */
struct region {
    uint32_t segment;
    uint64_t offset, bytes;
    cl_mem buffer;
};
/* A whole segment as an image1d_buffer_t. */
struct texture {
    uint32_t segment, floats, half;
    cl_mem image;
};
struct bound {
    cl_kernel kernel;
    uint32_t node, dims;
    size_t global[3], local[3];
};
/* Host memory that a copy to the device reads. `event`: the last copy, NULL if there was none. */
struct piece {
    void *host;
    cl_mem pinned;
    size_t bytes;
    cl_event event;
};
/* The staging memory of one input, made when it is first written. */
struct staged {
    uint32_t segment;
    uint64_t offset, bytes;
    struct piece pieces[PIECES];
    uint32_t next;
};
enum command_kind { COMMAND_LAUNCH, COMMAND_UPLOAD, COMMAND_DOWNLOAD, COMMAND_COPY };
/* A recorded command, in the columns of store/commands.py. The last four come from the event when it is read. */
struct command {
    int64_t kind, node, bytes, host_begin, host_end, queued, submitted, started, ended;
};
#ifndef MOST_COMMANDS
#define MOST_COMMANDS ((size_t)1 << 20) /* of a recording; the fuzzer has less memory */
#endif

/* How large inputs reach a device that shares its memory with the host (transfer.c). */
enum input_way { INPUTS_AUTO, INPUTS_STAGED, INPUTS_MAPPED };

struct recorder; /* record.c: recordings of whole graphs that the driver replays */

struct session {
    struct plan plan;
    const struct device *device;
    cl_context context;      /* belongs to the caller */
    cl_command_queue queue;  /* the one in use: plain or timed */
    cl_command_queue plain, timed;
    cl_mem mark;             /* a small buffer for clock marks */
    cl_mem *segments;
    void **shared;           /* per segment: the shared virtual memory under it, or NULL */
    struct region *regions;
    size_t region_count, region_space;
    uint32_t *region_table;  /* a hash table of places in `regions`, plus one */
    size_t region_slots;
    struct texture *textures;
    size_t texture_count, texture_space;
    cl_program *programs;
    struct bound *bound;     /* one per launch of the plan */
    struct staged *staged;
    size_t staged_count;
    struct piece small[SMALL_PIECES], chunks[PIECES];
    uint32_t next_small, next_chunk;
    bool pinned;             /* the device has its own memory: large staging memory is pinned */
    enum input_way input_way;
    uint64_t inputs_mapped, inputs_staged; /* large inputs so far, by the way that they went (transfer.c) */
    cl_event steps[IN_FLIGHT + 1];
    uint32_t step_count;
    bool idle;               /* nothing was enqueued since the queue was last known to be empty */
    bool recording;
    struct command *commands;
    cl_event *command_events;
    size_t command_count, command_space, event_space;
    struct recorder *recorder;
    uint64_t allocated_bytes;
    uint32_t from_cache, shared_segments;
    int64_t build_ns, allocate_ns;
};

typedef void (*progress)(const char *stage, uint32_t done, uint32_t total);

/* session.c: `session` takes over `plan`, also after a failure. `folder`: where binaries are kept, or NULL. */
bool open_session(struct session *session, struct plan *plan, const struct device *device, cl_context context,
                  bool profiling, const char *folder, progress report);
void close_session(struct session *session);
bool open_context(struct device *device, cl_context *context);
bool finish(struct session *session);
/* Whether everything that was enqueued is done, as far as that can be told without waiting. */
bool is_idle(struct session *session);
bool device_failed(const struct session *session, const char *doing, cl_int code);

/* memory.c */
bool allocate(struct session *session);
bool find_region(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes, cl_mem *buffer);
bool find_texture(struct session *session, uint32_t segment, uint32_t floats, uint32_t half, cl_mem *image);
bool fill(struct session *session, uint32_t segment, uint8_t byte, uint64_t offset, uint64_t bytes);
void free_memory(struct session *session);

/* programs.c */
bool build_programs(struct session *session, const char *folder, progress report);
void free_programs(struct session *session);

/* submit.c: launches by their range in the plan. `last`: the event of the last of them, if it is not NULL; the caller
 * releases it. submit_graph is the place for other ways to run the same launches (record.c). */
bool submit_launches(struct session *session, uint32_t first, uint32_t count, cl_event *last);
bool submit_graph(struct session *session, uint32_t graph, cl_event *last);
bool run_graph(struct session *session, uint32_t graph);
bool run_node(struct session *session, uint32_t graph, uint32_t node);
/* `repeats`: pairs of node and times, as they came; nodes that are not listed run once. */
bool run_repeated(struct session *session, uint32_t graph, const unsigned char *repeats, uint32_t count);
/* Seconds per run of a graph, measured for `seconds`. */
bool time_graph(struct session *session, uint32_t graph, double seconds, struct bytes *to);
bool set_recording(struct session *session, bool on);
/* Adds a command that was enqueued with this event, which belongs to the recording from now on. */
bool note(struct session *session, enum command_kind kind, int64_t node, uint64_t bytes, int64_t begin, cl_event event);
/* Appends the recorded commands and forgets them. */
bool take_commands(struct session *session, struct bytes *to);
bool clock_mark(struct session *session, int64_t mark[3]);

/* record.c: `wanted` is auto, off, qcom or khr; NULL: HANDHELD_RECORDING. */
bool open_recorder(struct session *session, const char *wanted);
void close_recorder(struct session *session);
bool submit_step(struct session *session, uint32_t graph, cl_event *last); /* as submit_graph, or a replay of it */
void describe_recording(const struct session *session, struct bytes *to);  /* fields of a JSON object */
const char *recording_of(const struct device *device);                     /* plain, qcom or khr */
bool has_extension(cl_device_id device, const char *name);
cl_context create_context(struct device *device, cl_int *code);

/* transfer.c: data comes from and goes to files, so that it is never held twice. `file` may be a pipe. Data that the host
 * has put into shared memory comes from there. */
struct inflow {
    int file;
    const unsigned char *memory; /* the next byte; NULL if the data comes from the file */
    uint64_t left; /* bytes that were not read yet; after a failure the caller must skip them */
    bool lost;     /* the file ended before */
};
bool receive(struct session *session, uint32_t segment, uint64_t offset, struct inflow *from);
/* A read that was started; the data is there when the event is complete. */
struct reading {
    void *host;
    size_t bytes;
    cl_event event;
};
bool begin_read(struct session *session, uint32_t segment, uint64_t offset, size_t bytes, struct reading *reading);
bool is_done(cl_event event);
bool end_read(struct reading *reading); /* waits; the caller frees `host` */
/* Waits, and sends all bytes of a place through `to`. */
typedef bool (*sink)(void *to, const void *data, size_t bytes);
bool send_out(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes, sink out, void *to);
bool write_values(struct session *session);
void free_staging(struct session *session);

#endif
