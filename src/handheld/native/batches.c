/* batches.c: see commands.h. */
#include "commands.h"

#define MOST_INPUTS 4096u
#define MOST_DIMS 64u
#define MOST_BYTES ((uint64_t)1 << 44) /* of one input: keeps products far from overflow */

static bool wrong(const char *path, const char *why) {
    return failed("%s %s. Try: write it again as docs/runner.md describes", path, why);
}

/* Reads the type and the shape of an input, the shape as a text such as 32x1x28x28. */
static bool read_shape(const struct batches *batches, uint32_t *type, uint64_t *bytes, struct bytes *shape) {
    unsigned char head[8], size[8];
    if (!read_all(batches->file, head, sizeof head, NULL)) return wrong(batches->path, "ends inside its header");
    *type = u32_at(head);
    if (*type > TYPE_F16 || u32_at(head + 4) > MOST_DIMS) return wrong(batches->path, "has an input of an unknown type");
    *bytes = type_bytes(*type);
    for (uint32_t d = 0; d < u32_at(head + 4); ++d) {
        if (!read_all(batches->file, size, sizeof size, NULL)) return wrong(batches->path, "ends inside its header");
        if (u64_at(size) > MOST_BYTES || (*bytes > 0 && u64_at(size) > MOST_BYTES / *bytes))
            return wrong(batches->path, "has an input that is too large");
        *bytes *= u64_at(size);
        say(shape, "%s%llu", d == 0 ? "" : "x", (unsigned long long)u64_at(size));
    }
    return true;
}

/* Compares the input that comes next in the file with the plan's. */
static bool check_input(struct batches *batches, const struct plan *plan, const struct plan_input *input, uint32_t index) {
    struct bytes shape = {0};
    uint32_t type = 0;
    uint64_t bytes = 0;
    bool ok = read_shape(batches, &type, &bytes, &shape);
    put(&shape, "", 1);
    if (ok && (type != input->type || shape.length - 1 != input->shape.length ||
               memcmp(shape.data, plan->strings + input->shape.offset, input->shape.length) != 0))
        ok = failed("%s has %s %s for input %u (%.*s), and the plan takes %s %.*s. Try: batches of the shape and type that "
                    "the plan was made for",
                    batches->path, type_names[type], shape.length > 1 ? shape.data : "number", index,
                    TEXT(plan, input->name), type_names[input->type],
                    input->shape.length > 0 ? (int)least(input->shape.length, 4096) : 6,
                    input->shape.length > 0 ? plan->strings + input->shape.offset : "number");
    free(shape.data);
    batches->batch_bytes += bytes;
    batches->start = (uint64_t)lseek(batches->file, 0, SEEK_CUR);
    return ok;
}

/* Compares the inputs in the file with those of the plan, so that no batch is read into a wrong place. */
static bool check_inputs(struct batches *batches, const struct plan *plan, const uint32_t *graphs, uint32_t count,
                         uint32_t inputs) {
    uint32_t wanted = 0, at = 0;
    for (uint32_t g = 0; g < count; ++g) wanted += plan->graphs[graphs[g]].inputs;
    if (wanted != inputs)
        return failed("%s has %u inputs per batch, and the plan takes %u. Try: batches of the same step", batches->path,
                      inputs, wanted);
    for (uint32_t g = 0; g < count; ++g) {
        const struct plan_graph *graph = &plan->graphs[graphs[g]];
        for (uint32_t i = 0; i < graph->inputs; ++i, ++at)
            if (!check_input(batches, plan, &plan->inputs[graph->first_input + i], at)) return false;
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
    if (u32_at(head + 8) != 2) return wrong(path, "is a file of batches of another version");
    uint32_t inputs = u32_at(head + 12);
    if (inputs > MOST_INPUTS) return wrong(path, "has too many inputs");
    batches->start = sizeof head;
    if (!check_inputs(batches, plan, graphs, count, inputs)) return false;
    batches->count = u64_at(head + 16);
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
        const struct plan_input *input = &session->plan.inputs[found->first_input + i];
        struct inflow from = {batches->file, NULL, input->bytes, false};
        if (!receive(session, input->segment, input->offset, &from))
            return from.lost ? wrong(batches->path, "changed while it was read") : false;
    }
    return true;
}
