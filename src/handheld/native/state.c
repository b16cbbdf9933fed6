/* state.c: checkpoints. A checkpoint is a safetensors file: u64 length of a header, the header, the values of the slots.
 *
 * The runner does not know JSON. The plan holds the header in its section STATE, after 16 bytes: u32 where the 20 digits
 * of the number of steps are in it, u32 where the 8 hex digits of the checksum are, u32 the checksum so far, u32 zero.
 * The checksum is a CRC-32 that goes on over the 20 digits, a zero byte and all values.
 */
#include "commands.h"

#define HEAD 16u
#define STEP_DIGITS 20u
#define CRC_DIGITS 8u

struct header {
    char *text; /* a copy of the plan's header */
    uint64_t bytes;
    uint32_t steps_at, crc_at, crc;
};

static bool get_header(const struct plan *plan, struct header *header) {
    if (plan->state_bytes == 0) return failed("the plan has no state to write into a checkpoint. Try: write it again");
    bool ok = plan->state_bytes >= HEAD + STEP_DIGITS + CRC_DIGITS;
    header->steps_at = ok ? u32_at(plan->state) : 0;
    header->crc_at = ok ? u32_at(plan->state + 4) : 0;
    header->bytes = ok ? plan->state_bytes - HEAD : 0;
    if (!ok || header->steps_at > header->bytes - STEP_DIGITS || header->crc_at > header->bytes - CRC_DIGITS)
        return failed("the plan file is damaged: its section STATE has no legal header. Try: write it again");
    header->crc = u32_at(plan->state + 8);
    header->text = need((size_t)header->bytes, 1);
    memcpy(header->text, plan->state + HEAD, (size_t)header->bytes);
    return true;
}

/* The checksum before the first value. */
static uint32_t first_crc(const struct header *header, const char *digits) {
    return crc32_add(crc32_add(header->crc, digits, STEP_DIGITS), "", 1);
}

struct outflow {
    int file;
    uint32_t crc;
};

static bool write_part(void *to, const void *data, size_t bytes) {
    struct outflow *out = to;
    out->crc = crc32_add(out->crc, data, bytes);
    return write_all(out->file, data, bytes) || failed("%s", reason());
}

static bool write_slots(struct session *session, struct outflow *out) {
    const struct plan *plan = &session->plan;
    for (uint32_t i = 0; i < plan->slot_count; ++i) {
        const struct plan_slot *slot = &plan->slots[i];
        if ((slot->flags & 1) != 0 && !send_out(session, slot->segment, slot->offset, slot->bytes, write_part, out)) return false;
    }
    return true;
}

bool write_checkpoint(struct session *session, const char *path, uint64_t steps) {
    struct header header;
    struct new_file made;
    char digits[STEP_DIGITS + 1], hex[CRC_DIGITS + 1];
    if (!finish(session) || !get_header(&session->plan, &header)) return false;
    (void)snprintf(digits, sizeof digits, "%020llu", (unsigned long long)steps);
    memcpy(header.text + header.steps_at, digits, STEP_DIGITS);
    if (!begin_file(&made, path)) {
        free(header.text);
        return false;
    }
    struct outflow out = {made.file, first_crc(&header, digits)};
    bool ok = write_all(made.file, &header.bytes, 8) && write_all(made.file, header.text, (size_t)header.bytes);
    if (!ok) (void)failed("%s", reason());
    ok = ok && write_slots(session, &out);
    (void)snprintf(hex, sizeof hex, "%08x", out.crc);
    if (ok && (lseek(made.file, (off_t)(8 + header.crc_at), SEEK_SET) < 0 || !write_all(made.file, hex, CRC_DIGITS)))
        ok = failed("%s", reason());
    free(header.text);
    if (ok) return end_file(&made, true);
    drop_file(&made);
    return failed("the checkpoint %s could not be written: %s. Try: free some storage; the one before is still there", path,
                  problem);
}

/* Whether the file's header is the plan's, apart from the number of steps and the checksum. */
static bool same_header(const struct header *header, const char *found) {
    for (uint64_t i = 0; i < header->bytes; ++i) {
        bool steps = i >= header->steps_at && i < (uint64_t)header->steps_at + STEP_DIGITS;
        bool crc = i >= header->crc_at && i < (uint64_t)header->crc_at + CRC_DIGITS;
        if (!steps && !crc && header->text[i] != found[i]) return false;
    }
    return true;
}

static bool check_crc(int file, uint32_t crc, uint64_t bytes, const char *wanted, const char *path) {
    char piece[65536], hex[CRC_DIGITS + 1];
    while (bytes > 0) {
        size_t count = (size_t)least(bytes, sizeof piece);
        if (!read_all(file, piece, count, NULL)) return failed("%s was cut off. Try: an older checkpoint", path);
        crc = crc32_add(crc, piece, count);
        bytes -= count;
    }
    (void)snprintf(hex, sizeof hex, "%08x", crc);
    return memcmp(hex, wanted, CRC_DIGITS) == 0 || failed("%s is damaged: its checksum is wrong. Try: an older checkpoint", path);
}

static bool read_header(int file, const struct header *header, const char *path, char *found) {
    uint64_t bytes = 0;
    if (!read_all(file, &bytes, sizeof bytes, NULL) || bytes != header->bytes ||
        !read_all(file, found, (size_t)bytes, NULL) || !same_header(header, found))
        return failed("%s is no checkpoint of this plan. Try: the plan that it was trained with, or train without --resume",
                      path);
    return true;
}

static bool restore(struct session *session, int file, const struct header *header, const char *path, uint64_t *steps) {
    const struct plan *plan = &session->plan;
    char *found = need((size_t)header->bytes, 1), digits[STEP_DIGITS + 1] = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->slot_count; ++i) bytes += plan->slots[i].flags & 1 ? plan->slots[i].bytes : 0;
    bool ok = read_header(file, header, path, found);
    if (ok) {
        memcpy(digits, found + header->steps_at, STEP_DIGITS);
        *steps = strtoull(digits, NULL, 10);
        ok = check_crc(file, first_crc(header, digits), bytes, found + header->crc_at, path);
    }
    free(found);
    if (!ok || lseek(file, (off_t)(8 + header->bytes), SEEK_SET) < 0) return false;
    for (uint32_t i = 0; i < plan->slot_count && ok; ++i) {
        const struct plan_slot *slot = &plan->slots[i];
        struct inflow from = {file, NULL, slot->bytes, false};
        ok = (slot->flags & 1) == 0 || receive(session, slot->segment, slot->offset, &from);
    }
    return ok;
}

bool read_checkpoint(struct session *session, const char *path, uint64_t *steps) {
    struct header header;
    if (!get_header(&session->plan, &header)) return false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = file >= 0 ? restore(session, file, &header, path, steps) : failed("%s cannot be read: %s", path, reason());
    if (file >= 0) (void)close(file);
    free(header.text);
    return ok;
}
