/* batches.c: see commands.h. */
#include "commands.h"

#define MOST_INPUTS 4096u

static bool wrong(const char *path, const char *why) {
    return failed("%s %s. Try: write it again as docs/runner.md describes", path, why);
}

/* Compares the sizes in the file with those of the plan, so that no batch is read into a wrong place. */
static bool check_inputs(struct batches *batches, const struct plan *plan, const uint32_t *graphs, uint32_t count,
                         uint32_t inputs) {
    uint32_t wanted = 0, at = 0;
    for (uint32_t g = 0; g < count; ++g) wanted += plan->graphs[graphs[g]].inputs;
    if (wanted != inputs)
        return failed("%s has %u inputs per batch, and the plan takes %u. Try: batches of the same step", batches->path,
                      inputs, wanted);
    for (uint32_t g = 0; g < count; ++g) {
        const struct plan_graph *graph = &plan->graphs[graphs[g]];
        for (uint32_t i = 0; i < graph->inputs; ++i, ++at) {
            const struct plan_value *input = &plan->inputs[graph->first_input + i];
            uint64_t bytes;
            if (!read_all(batches->file, &bytes, sizeof bytes, NULL)) return wrong(batches->path, "ends inside its header");
            if (bytes != input->bytes)
                return failed("%s has %llu bytes for input %u (%.*s), and the plan takes %llu. Try: batches of the size that "
                              "the plan was made for",
                              batches->path, (unsigned long long)bytes, at, TEXT(plan, input->name),
                              (unsigned long long)input->bytes);
            batches->batch_bytes += bytes;
        }
    }
    return true;
}

bool open_batches(struct batches *batches, const char *path, const struct plan *plan, const uint32_t *graphs, uint32_t count) {
    unsigned char head[24];
    memset(batches, 0, sizeof *batches);
    batches->file = open(path, O_RDONLY | O_CLOEXEC);
    batches->path = path;
    if (batches->file < 0) return failed("%s cannot be read: %s", path, reason());
    if (!read_all(batches->file, head, sizeof head, NULL) || memcmp(head, "HANDBATC", 8) != 0)
        return wrong(path, "is no file of batches");
    if (u32_at(head + 8) != 1) return wrong(path, "is a file of batches of another version");
    uint32_t inputs = u32_at(head + 12);
    if (inputs > MOST_INPUTS) return wrong(path, "has too many inputs");
    if (!check_inputs(batches, plan, graphs, count, inputs)) return false;
    batches->count = u64_at(head + 16);
    batches->start = sizeof head + 8 * (uint64_t)inputs;
    off_t size = lseek(batches->file, 0, SEEK_END);
    if (batches->count == 0) return wrong(path, "has no batch");
    if (size < 0 || batches->count > ((uint64_t)1 << 62) / (batches->batch_bytes + 1) ||
        (uint64_t)size != batches->start + batches->count * batches->batch_bytes)
        return wrong(path, "does not have the size that its header says: it was cut off");
    return true;
}

bool seek_batch(const struct batches *batches, uint64_t index) {
    uint64_t at = batches->start + index % batches->count * batches->batch_bytes;
    return lseek(batches->file, (off_t)at, SEEK_SET) >= 0 || wrong(batches->path, "cannot be read");
}

bool send_inputs(struct session *session, const struct batches *batches, uint32_t graph) {
    const struct plan_graph *found = &session->plan.graphs[graph];
    for (uint32_t i = 0; i < found->inputs; ++i) {
        const struct plan_value *input = &session->plan.inputs[found->first_input + i];
        struct inflow from = {batches->file, NULL, input->bytes, false};
        if (!receive(session, input->segment, input->offset, &from))
            return from.lost ? wrong(batches->path, "changed while it was read") : false;
    }
    return true;
}
