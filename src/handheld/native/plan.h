/* plan.h: a plan file in memory. docs/plan-file.md describes the file byte by byte.
 *
 * The records below have the layout of the file (little endian, everything aligned to its size), so a section is read
 * into memory and used as it is. read_plan checks every number before anything uses it. The values of slots stay in
 * the file, because they may be larger than the memory of a phone can hold twice.
 */
#ifndef HANDHELD_PLAN_H
#define HANDHELD_PLAN_H

#include "base.h"

#define PLAN_VERSION 2
#define NO_VALUE UINT64_MAX /* the value of a slot is not in the file */

enum section { STRINGS = 1, DEVICE, SEGMENTS, PROGRAMS, GRAPHS, LAUNCHES, ARGS, COPIES, INPUTS, OUTPUTS, SLOTS, VALUES,
               STATE, NOTES };
enum arg_kind { ARG_BUFFER, ARG_TEXTURE, ARG_INT, ARG_FLOAT };
enum value_type { TYPE_F32, TYPE_I32, TYPE_BOOL, TYPE_F16 };

struct str {
    uint32_t offset, length;
};
struct plan_device {
    struct str name, vendor, driver;
    uint32_t kind, flags; /* kind: 0 cpu, 1 gpu; flags: bit 0 unified memory, bit 1 shared virtual memory */
    uint64_t base_align_bytes, zero;
};
struct plan_program {
    struct str text, options;
};
struct plan_graph {
    struct str name;
    uint32_t first_launch, launches, first_copy, copies, first_input, inputs, first_output, outputs, nodes, zero[5];
};
struct plan_launch {
    uint32_t program, node;
    struct str kernel;
    uint32_t dims, first_arg, args, zero;
    uint64_t global[3], local[3], zero2;
};
struct plan_arg {
    uint32_t kind, a;
    uint64_t b, c;
};
struct plan_copy {
    uint32_t from_segment, to_segment;
    uint64_t from_offset, to_offset, bytes;
};
struct plan_input {
    struct str name;
    uint32_t segment, type;
    uint64_t offset, bytes;
    struct str shape; /* 32x1x28x28; empty for a number */
};
struct plan_output {
    struct str name;
    uint32_t segment, type;
    uint64_t offset, bytes;
};
struct plan_slot {
    struct str name;
    uint32_t segment, type;
    uint64_t offset, bytes, value;
    uint32_t flags, zero; /* flags: bit 0 part of a checkpoint */
};

struct plan {
    int file; /* open for the values; -1 if there is no plan */
    char *strings;
    struct plan_device *device;
    uint64_t *segments;
    struct plan_program *programs;
    struct plan_graph *graphs;
    struct plan_launch *launches;
    struct plan_arg *args;
    struct plan_copy *copies;
    struct plan_input *inputs;
    struct plan_output *outputs;
    struct plan_slot *slots;
    char *state;
    uint32_t segment_count, program_count, graph_count, launch_count, arg_count, copy_count, input_count, output_count,
        slot_count;
    uint64_t strings_bytes, values_offset, values_bytes, state_bytes;
};

/* Reads and checks a plan file. After a failure nothing needs to be freed. */
bool read_plan(struct plan *plan, const char *path);
void free_plan(struct plan *plan);
/* A string as printf("%.*s") takes it. */
#define TEXT(plan, str) (int)least((str).length, 4096), (plan)->strings + (str).offset
/* Copies a string and ends it with a zero byte; false if it does not fit. */
bool copy_text(const struct plan *plan, struct str text, char *to, size_t space);
/* The name of an element type, and its bytes. */
extern const char *const type_names[];
uint64_t type_bytes(uint32_t type);
/* The graph with this name, or -1. */
int64_t find_graph(const struct plan *plan, const char *name);
/* Whether `bytes` bytes at `offset` lie inside a segment. */
bool is_inside(const struct plan *plan, uint32_t segment, uint64_t offset, uint64_t bytes);
/* The bytes that are allocated for a segment: at least 4, because there are no empty buffers. */
uint64_t segment_bytes(const struct plan *plan, uint32_t segment);

#endif
