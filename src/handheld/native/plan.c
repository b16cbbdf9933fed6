/* plan.c: reads a plan file and checks everything in it, so that the other files may trust it.
 *
 * Order of the checks: the header and the checksum of the whole file (damage), the section table, then each record.
 * Memory is bounded by the size of the file, which is compared with the header before anything is allocated.
 */
#include "plan.h"

#define HEADER_BYTES 32u
#define SECTIONS 14u
#define TABLE_BYTES (SECTIONS * 24u)
#define FILE_LIMIT ((uint64_t)16 << 30)
#define STRINGS_LIMIT ((uint64_t)256 << 20)
#define STATE_LIMIT ((uint64_t)100 << 20)
#define SEGMENT_LIMIT ((uint64_t)1 << 44) /* bytes of one segment; keeps sums of sizes far from overflow */
#define NODES_LIMIT 1048576u

struct section_entry {
    uint32_t kind, records;
    uint64_t offset, bytes;
};

/* The size of a record and the most records, by kind. Sections of plain bytes have size 1 and no table. */
static const struct {
    const char *name;
    uint32_t size, most;
} kinds[SECTIONS + 1] = {
    {"", 0, 0},
    {"STRINGS", 1, 0},
    {"DEVICE", sizeof(struct plan_device), 1},
    {"SEGMENTS", 8, 4096},
    {"PROGRAMS", sizeof(struct plan_program), 65536},
    {"GRAPHS", sizeof(struct plan_graph), 65536},
    {"LAUNCHES", sizeof(struct plan_launch), 1048576},
    {"ARGS", sizeof(struct plan_arg), 1048576u * 64},
    {"COPIES", sizeof(struct plan_copy), 1048576},
    {"INPUTS", sizeof(struct plan_input), 1048576},
    {"OUTPUTS", sizeof(struct plan_output), 1048576},
    {"SLOTS", sizeof(struct plan_slot), 1048576},
    {"VALUES", 1, 0},
    {"STATE", 1, 0},
    {"NOTES", 1, 0},
};

/* A record that is no legal part of a plan. */
static bool bad(const char *what, uint64_t index, const char *why) {
    return failed("the plan file is damaged: %s %llu %s. Try: write it again with handheld plan --out", what,
                  (unsigned long long)index, why);
}

static bool truncated(const char *path) {
    return failed("%s ends before its last section: it was cut off. Try: write or copy it again", path);
}

uint64_t segment_bytes(const struct plan *plan, uint32_t segment) {
    return plan->segments[segment] < 4 ? 4 : plan->segments[segment];
}

bool is_inside(const struct plan *plan, uint32_t segment, uint64_t offset, uint64_t bytes) {
    if (segment >= plan->segment_count) return false;
    uint64_t size = segment_bytes(plan, segment);
    return offset <= size && bytes <= size - offset;
}

bool copy_text(const struct plan *plan, struct str text, char *to, size_t space) {
    if (text.length >= space) return false;
    memcpy(to, plan->strings + text.offset, text.length);
    to[text.length] = 0;
    return true;
}

int64_t find_graph(const struct plan *plan, const char *name) {
    size_t length = strlen(name);
    for (uint32_t i = 0; i < plan->graph_count; ++i) {
        struct str found = plan->graphs[i].name;
        if (found.length == length && memcmp(plan->strings + found.offset, name, length) == 0) return i;
    }
    return -1;
}

/* ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_text(const struct plan *plan, struct str text) {
    if (text.offset > plan->strings_bytes || text.length > plan->strings_bytes - text.offset) return false;
    const char *at = plan->strings + text.offset;
    return text.length == 0 || (memchr(at, 0, text.length) == NULL && is_utf8(at, text.length));
}

static bool check_header(int file, const char *path) {
    unsigned char header[HEADER_BYTES];
    size_t got;
    if (!read_all(file, header, sizeof header, &got)) {
        if (got >= 8 && memcmp(header, "HANDPLAN", 8) == 0) return truncated(path);
        return failed("%s is no plan file. Try: handheld plan STEP --on DEVICE --out FILE.plan", path);
    }
    if (memcmp(header, "HANDPLAN", 8) != 0)
        return failed("%s is no plan file. Try: handheld plan STEP --on DEVICE --out FILE.plan", path);
    if (u32_at(header + 8) != PLAN_VERSION)
        return failed("%s is a plan file of version %u, and this runner reads version %d. Try: write the plan again "
                      "with the Handheld that this runner belongs to",
                      path, u32_at(header + 8), PLAN_VERSION);
    uint64_t size = u64_at(header + 16);
    off_t end = lseek(file, 0, SEEK_END);
    if (end < 0) return failed("%s cannot be read: %s", path, reason());
    if ((uint64_t)end < size) return truncated(path);
    if ((uint64_t)end != size || size > FILE_LIMIT || size < HEADER_BYTES + TABLE_BYTES ||
        u32_at(header + 12) != SECTIONS || u32_at(header + 28) != 0)
        return failed("%s has a header that does not fit the file. Try: write or copy it again", path);
    uint32_t crc = 0;
    char piece[65536];
    if (lseek(file, HEADER_BYTES, SEEK_SET) < 0) return failed("%s cannot be read: %s", path, reason());
    for (uint64_t left = size - HEADER_BYTES; left > 0;) {
        size_t count = (size_t)least(left, sizeof piece);
        if (!read_all(file, piece, count, NULL)) return truncated(path);
        crc = crc32_add(crc, piece, count);
        left -= count;
    }
    if (crc != u32_at(header + 24))
        return failed("%s is damaged: its checksum does not fit its content. Try: write or copy it again", path);
    return true;
}

/* Whether the bytes from `from` to `to` are zeros: what no section owns must not hide anything. */
static bool zeros(int file, uint64_t from, uint64_t to) {
    char piece[4096];
    if (lseek(file, (off_t)from, SEEK_SET) < 0) return false;
    while (from < to) {
        size_t count = (size_t)least(to - from, sizeof piece);
        if (!read_all(file, piece, count, NULL)) return false;
        for (size_t i = 0; i < count; ++i)
            if (piece[i] != 0) return false;
        from += count;
    }
    return true;
}

static bool check_sections(int file, const struct section_entry *table, uint64_t size) {
    uint64_t end = HEADER_BYTES + TABLE_BYTES;
    for (uint32_t i = 0; i < SECTIONS; ++i) {
        const struct section_entry *one = &table[i];
        uint32_t kind = i + 1, align = kind == VALUES ? 64 : 8;
        if (one->kind != kind) return bad("section", kind, "is not at its place");
        if (one->offset % align != 0 || one->offset < end || one->offset > size || one->bytes > size - one->offset)
            return bad("section", kind, "does not lie inside the file");
        uint64_t bytes = (uint64_t)one->records * kinds[kind].size;
        if (kinds[kind].size > 1 && (one->records > kinds[kind].most || one->bytes != bytes))
            return bad("section", kind, "has a wrong number of records");
        if (!zeros(file, end, one->offset)) return bad("section", kind, "follows bytes that belong to no section");
        end = one->offset + one->bytes;
    }
    if (!zeros(file, end, size)) return bad("section", SECTIONS, "is followed by bytes that belong to no section");
    if (table[STRINGS - 1].bytes > STRINGS_LIMIT) return bad("section", STRINGS, "is too large");
    if (table[STATE - 1].bytes > STATE_LIMIT) return bad("section", STATE, "is too large");
    if (table[DEVICE - 1].records != 1) return bad("section", DEVICE, "must have one record");
    return true;
}

/* Reads a section. An empty one is a small block too, so that a pointer is never NULL. */
static bool load(int file, const struct section_entry *table, enum section kind, void *to) {
    const struct section_entry *one = &table[kind - 1];
    void *data = malloc((size_t)one->bytes + 1);
    if (data == NULL)
        return failed("the system has no memory for %llu bytes of a plan. Try: end other programs",
                      (unsigned long long)one->bytes);
    memcpy(to, &data, sizeof data);
    if (lseek(file, (off_t)one->offset, SEEK_SET) >= 0 && read_all(file, data, (size_t)one->bytes, NULL)) return true;
    return failed("the plan file changed while it was read. Try: again");
}

/* ── records ──────────────────────────────────────────────────────────────────────────────────────────────────── */

const char *const type_names[] = {"f32", "i32", "bool", "f16"};
uint64_t type_bytes(uint32_t type) { return type == TYPE_BOOL ? 1 : type == TYPE_F16 ? 2 : 4; }

static bool check_device(const struct plan *plan) {
    const struct plan_device *device = plan->device;
    uint64_t align = device->base_align_bytes;
    if (!is_text(plan, device->name) || !is_text(plan, device->vendor) || !is_text(plan, device->driver))
        return bad("device", 0, "has a text outside STRINGS");
    if (device->kind > 1 || device->flags > 3 || device->zero != 0) return bad("device", 0, "has unknown flags");
    if (align == 0 || align > 1 << 20 || (align & (align - 1)) != 0) return bad("device", 0, "has no legal alignment");
    return true;
}

static bool check_programs(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->segment_count; ++i)
        if (plan->segments[i] > SEGMENT_LIMIT) return bad("segment", i, "is too large");
    for (uint32_t i = 0; i < plan->program_count; ++i) {
        const struct plan_program *program = &plan->programs[i];
        if (!is_text(plan, program->text) || !is_text(plan, program->options) || program->text.length == 0)
            return bad("program", i, "has a text outside STRINGS");
        if (program->options.length > 1000) return bad("program", i, "has options that are too long");
    }
    return true;
}

/* Whether `count` records from `first` on exist. */
static bool within(uint32_t first, uint32_t count, uint32_t records) { return first <= records && count <= records - first; }

static bool check_graphs(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->graph_count; ++i) {
        const struct plan_graph *graph = &plan->graphs[i];
        if (!is_text(plan, graph->name) || graph->name.length == 0) return bad("graph", i, "has no name");
        if (graph->nodes > NODES_LIMIT) return bad("graph", i, "has too many nodes");
        if (!within(graph->first_launch, graph->launches, plan->launch_count) ||
            !within(graph->first_copy, graph->copies, plan->copy_count) ||
            !within(graph->first_input, graph->inputs, plan->input_count) ||
            !within(graph->first_output, graph->outputs, plan->output_count))
            return bad("graph", i, "has records that do not exist");
        for (int k = 0; k < 5; ++k)
            if (graph->zero[k] != 0) return bad("graph", i, "has unknown fields");
        uint32_t before = 0;
        for (uint32_t k = graph->first_launch; k < graph->first_launch + graph->launches; ++k) {
            uint32_t node = plan->launches[k].node;
            if (node < before || node >= graph->nodes) return bad("launch", k, "is not in the order of its nodes");
            before = node;
        }
    }
    return true;
}

static bool check_arg(const struct plan *plan, uint32_t index) {
    const struct plan_arg *arg = &plan->args[index];
    if (arg->kind == ARG_BUFFER) {
        if (arg->c == 0 || !is_inside(plan, arg->a, arg->b, arg->c)) return bad("argument", index, "lies outside its segment");
        if (arg->b % plan->device->base_align_bytes != 0) return bad("argument", index, "is not aligned for the device");
        return true;
    }
    if (arg->kind == ARG_TEXTURE) {
        if (arg->a >= plan->segment_count || (arg->b != 1 && arg->b != 4) || arg->c > 1)
            return bad("argument", index, "is no legal texture");
        return true;
    }
    if (arg->kind > ARG_FLOAT || arg->b != 0 || arg->c != 0) return bad("argument", index, "is of an unknown kind");
    return true;
}

static bool is_name(const char *text, uint32_t length) {
    for (uint32_t i = 0; i < length; ++i) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) return false;
    }
    return length > 0 && length < 256;
}

static bool check_launches(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->launch_count; ++i) {
        const struct plan_launch *launch = &plan->launches[i];
        if (launch->program >= plan->program_count) return bad("launch", i, "has no program");
        if (!is_text(plan, launch->kernel) || !is_name(plan->strings + launch->kernel.offset, launch->kernel.length))
            return bad("launch", i, "has no legal kernel name");
        if (launch->dims < 1 || launch->dims > 3 || launch->zero != 0 || launch->zero2 != 0)
            return bad("launch", i, "has no legal dimensions");
        for (uint32_t d = 0; d < 3; ++d) {
            uint64_t global = launch->global[d], local = launch->local[d];
            if (local == 0 || global == 0 || global % local != 0 || global > INT64_MAX)
                return bad("launch", i, "has sizes that do not divide");
            if (d >= launch->dims && (global != 1 || local != 1)) return bad("launch", i, "has sizes beyond its dimensions");
        }
        if (launch->args > 64 || !within(launch->first_arg, launch->args, plan->arg_count))
            return bad("launch", i, "has arguments that do not exist");
    }
    for (uint32_t i = 0; i < plan->arg_count; ++i)
        if (!check_arg(plan, i)) return false;
    return true;
}

static bool check_copies(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->copy_count; ++i) {
        const struct plan_copy *copy = &plan->copies[i];
        if (copy->bytes == 0 || !is_inside(plan, copy->from_segment, copy->from_offset, copy->bytes) ||
            !is_inside(plan, copy->to_segment, copy->to_offset, copy->bytes))
            return bad("copy", i, "lies outside its segments");
        uint64_t low = least(copy->from_offset, copy->to_offset);
        uint64_t gap = copy->from_offset + copy->to_offset - 2 * low;
        if (copy->from_segment == copy->to_segment && gap < copy->bytes) return bad("copy", i, "overlaps itself");
    }
    return true;
}

/* Whether a shape is numbers with an x between them that give `elements`. */
static bool is_shape(const char *text, uint32_t length, uint64_t elements) {
    uint64_t product = 1, size = 0;
    uint32_t sizes = 0;
    bool zero = false;
    for (uint32_t i = 0, digits = 0; i <= length && length > 0; ++i) {
        if (i < length && text[i] >= '0' && text[i] <= '9' && digits++ < 19) {
            size = size * 10 + (uint64_t)(text[i] - '0');
            continue;
        }
        if (digits == 0 || ++sizes > 64 || (i < length && text[i] != 'x')) return false;
        zero = zero || size == 0;
        if (!zero && size > SEGMENT_LIMIT / product) return false;
        product *= zero ? 1 : size;
        size = digits = 0;
    }
    return elements == (zero ? 0 : product);
}

static bool check_inputs(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->input_count; ++i) {
        const struct plan_input *input = &plan->inputs[i];
        if (!is_text(plan, input->name) || !is_text(plan, input->shape)) return bad("input", i, "has a text outside STRINGS");
        if (input->type > TYPE_F16 || input->bytes % type_bytes(input->type) != 0) return bad("input", i, "has no legal type");
        if (!is_shape(plan->strings + input->shape.offset, input->shape.length, input->bytes / type_bytes(input->type)))
            return bad("input", i, "has a shape that does not fit its bytes");
        if (!is_inside(plan, input->segment, input->offset, input->bytes)) return bad("input", i, "lies outside its segment");
    }
    return true;
}

static bool check_outputs(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->output_count; ++i) {
        const struct plan_output *output = &plan->outputs[i];
        if (!is_text(plan, output->name)) return bad("output", i, "has a name outside STRINGS");
        if (output->type > TYPE_F16 || output->bytes % type_bytes(output->type) != 0)
            return bad("output", i, "has no legal type");
        if (!is_inside(plan, output->segment, output->offset, output->bytes))
            return bad("output", i, "lies outside its segment");
    }
    return true;
}

static bool check_slots(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->slot_count; ++i) {
        const struct plan_slot *slot = &plan->slots[i];
        if (!is_text(plan, slot->name)) return bad("slot", i, "has a name outside STRINGS");
        if (slot->type > TYPE_F16 || slot->bytes % type_bytes(slot->type) != 0 || slot->flags > 1 || slot->zero != 0)
            return bad("slot", i, "has no legal type");
        if (!is_inside(plan, slot->segment, slot->offset, slot->bytes)) return bad("slot", i, "lies outside its segment");
        if (slot->value != NO_VALUE && (slot->value % 64 != 0 || slot->value > plan->values_bytes ||
                                        slot->bytes > plan->values_bytes - slot->value))
            return bad("slot", i, "has a value outside VALUES");
    }
    return true;
}

static bool load_all(struct plan *plan, const char *path) {
    struct section_entry table[SECTIONS];
    int file = plan->file;
    if (!check_header(file, path)) return false;
    off_t size = lseek(file, 0, SEEK_END);
    if (lseek(file, HEADER_BYTES, SEEK_SET) < 0 || !read_all(file, table, sizeof table, NULL)) return truncated(path);
    if (!check_sections(file, table, (uint64_t)size)) return false;
    if (!load(file, table, STRINGS, &plan->strings) || !load(file, table, DEVICE, &plan->device) ||
        !load(file, table, SEGMENTS, &plan->segments) || !load(file, table, PROGRAMS, &plan->programs) ||
        !load(file, table, GRAPHS, &plan->graphs) || !load(file, table, LAUNCHES, &plan->launches) ||
        !load(file, table, ARGS, &plan->args) || !load(file, table, COPIES, &plan->copies) ||
        !load(file, table, INPUTS, &plan->inputs) || !load(file, table, OUTPUTS, &plan->outputs) ||
        !load(file, table, SLOTS, &plan->slots) || !load(file, table, STATE, &plan->state))
        return false;
    plan->strings_bytes = table[STRINGS - 1].bytes;
    plan->segment_count = table[SEGMENTS - 1].records;
    plan->program_count = table[PROGRAMS - 1].records;
    plan->graph_count = table[GRAPHS - 1].records;
    plan->launch_count = table[LAUNCHES - 1].records;
    plan->arg_count = table[ARGS - 1].records;
    plan->copy_count = table[COPIES - 1].records;
    plan->input_count = table[INPUTS - 1].records;
    plan->output_count = table[OUTPUTS - 1].records;
    plan->slot_count = table[SLOTS - 1].records;
    plan->values_offset = table[VALUES - 1].offset;
    plan->values_bytes = table[VALUES - 1].bytes;
    plan->state_bytes = table[STATE - 1].bytes;
    return true;
}

bool read_plan(struct plan *plan, const char *path) {
    memset(plan, 0, sizeof *plan);
    plan->file = open(path, O_RDONLY | O_CLOEXEC);
    if (plan->file < 0) return failed("%s cannot be read: %s", path, reason());
    if (load_all(plan, path) && check_device(plan) && check_programs(plan) && check_launches(plan) && check_graphs(plan) &&
        check_copies(plan) && check_inputs(plan) && check_outputs(plan) && check_slots(plan))
        return true;
    free_plan(plan);
    return false;
}

void free_plan(struct plan *plan) {
    if (plan->file >= 0) (void)close(plan->file);
    free(plan->strings);
    free(plan->device);
    free(plan->segments);
    free(plan->programs);
    free(plan->graphs);
    free(plan->launches);
    free(plan->args);
    free(plan->copies);
    free(plan->inputs);
    free(plan->outputs);
    free(plan->slots);
    free(plan->state);
    memset(plan, 0, sizeof *plan);
    plan->file = -1;
}
