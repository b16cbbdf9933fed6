/* commands.h: the commands that run a plan file without a host. */
#ifndef HANDHELD_COMMANDS_H
#define HANDHELD_COMMANDS_H

#include "session.h"

struct options {
    const char *plan, *batches, *checkpoint, *losses, *out, *graph;
    const char *folder, *library, *root;
    uint64_t shared;               /* an open file; 0: none */
    uint64_t steps, every, device; /* 0 steps: once through the batches; 0 every: only at the end */
    double seconds;                /* how long `tune` measures each graph */
    bool resume;
};

/* Each returns the exit code. */
int command_train(const struct options *options);
int command_evaluate(const struct options *options);
int command_profile(const struct options *options);
int command_tune(const struct options *options);

/* Opens the plan of the options on its device; `session` must be closed. */
bool open_task(const struct options *options, struct session *session, cl_context *context);
void close_task(struct session *session, cl_context context);

/* batches.c: a file of batches. "HANDBATC", u32 version 2, u32 inputs, u64 batches, for each input u32 type, u32
 * dimensions and their u64 sizes, then the inputs of the first batch, of the second batch, ... without gaps. */
struct batches {
    int file;
    const char *path;
    uint64_t count, start, batch_bytes;
};
/* Checks that the batches have the inputs of these graphs, one graph after the other. */
bool open_batches(struct batches *batches, const char *path, const struct plan *plan, const uint32_t *graphs, uint32_t count);
/* Moves to a batch; send_inputs then sends the inputs of one graph after the other. */
bool seek_batch(const struct batches *batches, uint64_t index);
bool send_inputs(struct session *session, const struct batches *batches, uint32_t graph);

/* state.c: checkpoints, as safetensors files whose header is in the plan (STATE). */
bool write_checkpoint(struct session *session, const char *path, uint64_t steps);
bool read_checkpoint(struct session *session, const char *path, uint64_t *steps);

#endif
