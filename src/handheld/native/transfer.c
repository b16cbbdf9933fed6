/* transfer.c: data to the device and back.
 *
 * To the device, there are two ways:
 *
 *   staged   The data is read into memory of the runner, and a copy in the queue takes it from there. The runner does
 *            not wait for the device. Small data, the inputs of a step while the device is busy, and everything for a
 *            device with its own memory goes this way. Large staging memory for such a device is pinned by the driver:
 *            from other pages it would copy piece by piece.
 *   mapped   If device and host share their memory, the data is read straight into it. This waits until the device is
 *            done, so an input goes this way only if the device is idle. INPUTS tells how many did.
 *
 * A recording uses only copies, so that each transfer is a command with times.
 */
#include "session.h"

static bool pull(struct inflow *from, void *to, size_t bytes) {
    size_t got = 0;
    if (from->memory != NULL) {
        memcpy(to, from->memory, bytes);
        from->memory += bytes;
        from->left -= bytes;
        return true;
    }
    bool ok = read_all(from->file, to, bytes, &got);
    from->left -= got;
    if (ok) return true;
    from->lost = true;
    return failed("the data of a transfer ended before its length. Try: again");
}

/* Slots are not part of a recording: they are read and written between steps. */
static bool is_noted(const struct session *session, uint32_t segment, uint64_t offset) {
    if (!session->recording) return false;
    for (uint32_t i = 0; i < session->plan.slot_count; ++i)
        if (session->plan.slots[i].segment == segment && session->plan.slots[i].offset == offset) return false;
    return true;
}

/* ── staging memory ───────────────────────────────────────────────────────────────────────────────────────────── */

static bool make_pinned(struct session *session, struct piece *piece) {
    cl_int code = 0;
    cl_mem buffer = cl.CreateBuffer(session->context, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, piece->bytes, NULL, &code);
    if (code != 0) return false;
    piece->host = cl.EnqueueMapBuffer(session->plain, buffer, 1, CL_MAP_WRITE | CL_MAP_READ, 0, piece->bytes, 0, NULL, NULL,
                                      &code);
    if (code == 0 && piece->host != NULL) {
        piece->pinned = buffer;
        return true;
    }
    (void)cl.ReleaseMemObject(buffer);
    piece->host = NULL;
    return false;
}

/* Makes the memory of a piece if it has none, and waits until the last copy has read it. */
static bool free_piece(struct session *session, struct piece *piece, size_t bytes) {
    if (piece->host == NULL) {
        piece->bytes = bytes;
        if (session->pinned && bytes >= PINNED_LEAST && !make_pinned(session, piece)) {
            session->pinned = false; /* Other memory is slower but works too. */
            tell("no pinned memory of %zu bytes for batches: uploads to the device are slower", bytes);
        }
        if (piece->host == NULL) piece->host = malloc(bytes);
        if (piece->host == NULL)
            return failed("the system has no memory for %zu bytes of a batch. Try: a smaller batch", bytes);
    }
    if (piece->event == NULL) return true;
    cl_int code = cl.WaitForEvents(1, &piece->event);
    (void)cl.ReleaseEvent(piece->event);
    piece->event = NULL;
    return code == 0 || device_failed(session, "it received data", code);
}

static void drop_piece(struct session *session, struct piece *piece) {
    if (piece->event != NULL) (void)cl.ReleaseEvent(piece->event);
    if (piece->pinned != NULL) {
        (void)cl.EnqueueUnmapMemObject(session->plain, piece->pinned, piece->host, 0, NULL, NULL);
        (void)cl.Finish(session->plain);
        (void)cl.ReleaseMemObject(piece->pinned);
    } else free(piece->host);
    memset(piece, 0, sizeof *piece);
}

void free_staging(struct session *session) {
    for (size_t i = 0; i < session->staged_count; ++i)
        for (int k = 0; k < PIECES; ++k) drop_piece(session, &session->staged[i].pieces[k]);
    for (int i = 0; i < SMALL_PIECES; ++i) drop_piece(session, &session->small[i]);
    for (int i = 0; i < PIECES; ++i) drop_piece(session, &session->chunks[i]);
    free(session->staged);
    session->staged = NULL;
    session->staged_count = 0;
}

/* The staging memory of an input; NULL if the place is none. */
static struct staged *find_staged(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes) {
    for (size_t i = 0; i < session->staged_count; ++i) {
        struct staged *one = &session->staged[i];
        if (one->segment == segment && one->offset == offset && one->bytes == bytes) return one;
    }
    for (uint32_t i = 0; i < session->plan.input_count; ++i) {
        const struct plan_input *input = &session->plan.inputs[i];
        if (input->segment != segment || input->offset != offset || input->bytes != bytes) continue;
        if (session->staged == NULL) session->staged = need((size_t)session->plan.input_count, sizeof *session->staged);
        struct staged *one = &session->staged[session->staged_count++];
        one->segment = segment;
        one->offset = offset;
        one->bytes = bytes;
        return one;
    }
    return NULL;
}

/* ── to the device ────────────────────────────────────────────────────────────────────────────────────────────── */

static bool send_piece(struct session *session, struct piece *piece, uint32_t segment, uint64_t offset, size_t bytes,
                       int64_t begin) {
    session->idle = false;
    cl_int code = cl.EnqueueWriteBuffer(session->queue, session->segments[segment], 0, (size_t)offset, bytes, piece->host, 0,
                                        NULL, &piece->event);
    if (code != 0) {
        piece->event = NULL;
        return device_failed(session, "it received data", code);
    }
    if (!is_noted(session, segment, offset)) return true;
    (void)cl.RetainEvent(piece->event);
    return note(session, COMMAND_UPLOAD, -1, bytes, begin, piece->event);
}

static bool receive_staged(struct session *session, struct piece *piece, size_t space, uint32_t segment, uint64_t offset,
                           size_t bytes, struct inflow *from) {
    int64_t begin = clock_ns();
    return free_piece(session, piece, space) && pull(from, piece->host, bytes) &&
           send_piece(session, piece, segment, offset, bytes, begin);
}

static bool receive_mapped(struct session *session, uint32_t segment, uint64_t offset, size_t bytes, struct inflow *from) {
    cl_mem buffer = session->segments[segment];
    cl_int code = 0;
    void *host = cl.EnqueueMapBuffer(session->queue, buffer, 1, CL_MAP_WRITE_INVALIDATE_REGION, (size_t)offset, bytes, 0, NULL,
                                     NULL, &code);
    if (code != 0 || host == NULL) return device_failed(session, "it mapped memory", code);
    bool ok = pull(from, host, bytes);
    code = cl.EnqueueUnmapMemObject(session->queue, buffer, host, 0, NULL, NULL);
    return ok && (code == 0 || device_failed(session, "it received data", code));
}

static bool is_mapped(struct session *session) {
    return session->input_way == INPUTS_AUTO ? is_idle(session) : session->input_way == INPUTS_MAPPED;
}

bool receive(struct session *session, uint32_t segment, uint64_t offset, struct inflow *from) {
    uint64_t bytes = from->left;
    bool shared = (session->plan.device->flags & 1) != 0 && !session->recording;
    if (bytes == 0) return true;
    if (bytes <= SMALL_BYTES) {
        struct piece *piece = &session->small[session->next_small++ % SMALL_PIECES];
        return receive_staged(session, piece, SMALL_BYTES, segment, offset, (size_t)bytes, from);
    }
    struct staged *staged = find_staged(session, segment, offset, bytes);
    if (shared && (staged == NULL || is_mapped(session))) {
        session->inputs_mapped += staged != NULL;
        return receive_mapped(session, segment, offset, (size_t)bytes, from);
    }
    session->inputs_staged += staged != NULL;
    if (staged != NULL)
        return receive_staged(session, &staged->pieces[staged->next++ % PIECES], (size_t)bytes, segment, offset,
                              (size_t)bytes, from);
    while (from->left > 0) {
        size_t count = (size_t)least(from->left, CHUNK_BYTES);
        struct piece *piece = &session->chunks[session->next_chunk++ % PIECES];
        if (!receive_staged(session, piece, CHUNK_BYTES, segment, offset, count, from)) return false;
        offset += count;
    }
    return true;
}

bool write_values(struct session *session) {
    const struct plan *plan = &session->plan;
    for (uint32_t i = 0; i < plan->slot_count; ++i) {
        const struct plan_slot *slot = &plan->slots[i];
        if (slot->value == NO_VALUE) continue;
        struct inflow from = {plan->file, NULL, slot->bytes, false};
        if (lseek(plan->file, (off_t)(plan->values_offset + slot->value), SEEK_SET) < 0)
            return failed("the plan file changed while it was read. Try: again");
        if (!receive(session, slot->segment, slot->offset, &from)) return false;
    }
    return true;
}

/* ── from the device ──────────────────────────────────────────────────────────────────────────────────────────── */

bool is_done(cl_event event) {
    cl_int status = 0; /* CL_COMPLETE is 0, and an error is negative. */
    return cl.GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) != 0 || status <= 0;
}

bool begin_read(struct session *session, uint32_t segment, uint64_t offset, size_t bytes, struct reading *reading) {
    memset(reading, 0, sizeof *reading);
    reading->bytes = bytes;
    if (bytes == 0) return true;
    int64_t begin = clock_ns();
    reading->host = need(bytes, 1);
    cl_int code = cl.EnqueueReadBuffer(session->queue, session->segments[segment], 0, (size_t)offset, bytes, reading->host, 0,
                                       NULL, &reading->event);
    if (code != 0) {
        free(reading->host);
        memset(reading, 0, sizeof *reading);
        return device_failed(session, "it sent data", code);
    }
    (void)cl.Flush(session->queue);
    if (!is_noted(session, segment, offset)) return true;
    (void)cl.RetainEvent(reading->event);
    if (note(session, COMMAND_DOWNLOAD, -1, bytes, begin, reading->event)) return true;
    (void)cl.WaitForEvents(1, &reading->event);
    (void)cl.ReleaseEvent(reading->event);
    free(reading->host);
    return false;
}

bool end_read(struct reading *reading) {
    if (reading->event == NULL) return true;
    cl_int code = cl.WaitForEvents(1, &reading->event);
    (void)cl.ReleaseEvent(reading->event);
    reading->event = NULL;
    return code == 0 || failed("the device failed before a result was read: %s. Try: again", cl_error(code));
}

bool send_out(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes, sink out, void *to) {
    cl_mem buffer = session->segments[segment];
    bool shared = (session->plan.device->flags & 1) != 0 && !session->recording, ok = true;
    cl_int code = 0;
    for (uint64_t done = 0; done < bytes && ok;) {
        size_t count = (size_t)least(bytes - done, shared ? CHUNK_BYTES * 8 : CHUNK_BYTES), at = (size_t)(offset + done);
        if (shared) {
            void *host = cl.EnqueueMapBuffer(session->queue, buffer, 1, CL_MAP_READ, at, count, 0, NULL, NULL, &code);
            if (code != 0 || host == NULL) return device_failed(session, "it sent data", code);
            ok = out(to, host, count);
            code = cl.EnqueueUnmapMemObject(session->queue, buffer, host, 0, NULL, NULL);
        } else {
            struct piece *piece = &session->chunks[session->next_chunk++ % PIECES];
            cl_event event = NULL;
            int64_t begin = clock_ns();
            if (!free_piece(session, piece, CHUNK_BYTES)) return false;
            code = cl.EnqueueReadBuffer(session->queue, buffer, 1, at, count, piece->host, 0, NULL, &event);
            if (code == 0 && is_noted(session, segment, offset)) ok = note(session, COMMAND_DOWNLOAD, -1, count, begin, event);
            else if (code == 0) (void)cl.ReleaseEvent(event);
            if (code == 0 && ok) ok = out(to, piece->host, count);
        }
        if (code != 0) return device_failed(session, "it sent data", code);
        done += count;
    }
    return ok;
}
