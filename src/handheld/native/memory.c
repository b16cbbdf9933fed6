/* memory.c: the memory of a plan on the device. Everything starts as zeros, because kernels also read the gaps between
 * tensors. Objects are released newest first: NVIDIA's driver crashes if sub-buffers are released in another order. */
#include "session.h"

#define FILL_BYTES ((uint64_t)1 << 30) /* that one command fills; NVIDIA's driver counts them in 32 bits */

static bool refused(struct session *session, cl_int code) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < session->plan.segment_count; ++i) total += segment_bytes(&session->plan, i);
    return failed("%s refused %.1f MB in %u pieces: %s. Try: a smaller batch", session->device->name,
                  (double)total / 1e6, session->plan.segment_count, cl_error(code));
}

static bool fill_zeros(struct session *session, cl_mem buffer, uint64_t bytes) {
    static const uint8_t zero = 0;
    cl_int code = cl.EnqueueFillBuffer(session->queue, buffer, &zero, 1, 0, (size_t)least(bytes, FILL_BYTES), 0, NULL, NULL);
    /* The rest is copied from the zeroed part. */
    for (uint64_t at = FILL_BYTES; code == 0 && at < bytes; at += FILL_BYTES)
        code = cl.EnqueueCopyBuffer(session->queue, buffer, buffer, 0, (size_t)at, (size_t)least(bytes - at, FILL_BYTES), 0,
                                    NULL, NULL);
    return code == 0 || refused(session, code);
}

/* A buffer over shared virtual memory, or NULL if the device has none. The driver does not compare the sub-buffers of
 * such a buffer with each other at every launch. */
static cl_mem in_shared_memory(struct session *session, uint32_t segment, size_t bytes) {
    cl_int code = 0;
    if (cl.SVMAlloc == NULL || cl.SVMFree == NULL) return NULL;
    if ((device_number(session->device->id, 0x1053) & 1) == 0) return NULL; /* coarse-grained buffers */
    void *memory = cl.SVMAlloc(session->context, CL_MEM_READ_WRITE, bytes, 0);
    if (memory == NULL) return NULL;
    cl_mem made = cl.CreateBuffer(session->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, memory, &code);
    if (code != 0) {
        cl.SVMFree(session->context, memory);
        return NULL;
    }
    session->shared[segment] = memory;
    ++session->shared_segments;
    return made;
}

bool allocate(struct session *session) {
    const struct plan *plan = &session->plan;
    cl_ulong flags = CL_MEM_READ_WRITE | (plan->device->flags & 1 ? CL_MEM_ALLOC_HOST_PTR : 0);
    session->segments = need((size_t)plan->segment_count + 1, sizeof(cl_mem));
    session->shared = need((size_t)plan->segment_count + 1, sizeof(void *));
    for (uint32_t i = 0; i < plan->segment_count; ++i) {
        cl_int code = 0;
        uint64_t bytes = segment_bytes(plan, i);
        if (plan->device->flags & 2) session->segments[i] = in_shared_memory(session, i, (size_t)bytes);
        if (session->segments[i] == NULL)
            session->segments[i] = cl.CreateBuffer(session->context, flags, (size_t)bytes, NULL, &code);
        if (code != 0) {
            session->segments[i] = NULL;
            return refused(session, code);
        }
        session->allocated_bytes += bytes;
    }
    for (uint32_t i = 0; i < plan->segment_count; ++i)
        if (!fill_zeros(session, session->segments[i], segment_bytes(plan, i) / 4 * 4)) return false;
    session->idle = false;
    return true;
}

/* ── parts of segments ────────────────────────────────────────────────────────────────────────────────────────── */

static uint32_t *region_slot(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes) {
    uint64_t key[3] = {segment, offset, bytes};
    size_t at = (size_t)hash64(HASH_START, key, sizeof key) & (session->region_slots - 1);
    for (;; at = (at + 1) & (session->region_slots - 1)) {
        uint32_t *slot = &session->region_table[at];
        if (*slot == 0) return slot;
        const struct region *found = &session->regions[*slot - 1];
        if (found->segment == segment && found->offset == offset && found->bytes == bytes) return slot;
    }
}

static void make_room(struct session *session) {
    if (session->region_count * 2 < session->region_slots) return;
    size_t slots = session->region_slots == 0 ? 256 : session->region_slots * 2;
    free(session->region_table);
    session->region_table = need(slots, sizeof(uint32_t));
    session->region_slots = slots;
    for (size_t i = 0; i < session->region_count; ++i) {
        const struct region *one = &session->regions[i];
        *region_slot(session, one->segment, one->offset, one->bytes) = (uint32_t)i + 1;
    }
}

bool find_region(struct session *session, uint32_t segment, uint64_t offset, uint64_t bytes, cl_mem *buffer) {
    make_room(session);
    uint32_t *slot = region_slot(session, segment, offset, bytes);
    if (*slot == 0) {
        cl_buffer_region part = {(size_t)offset, (size_t)bytes};
        cl_int code = 0;
        cl_mem made = cl.CreateSubBuffer(session->segments[segment], CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &part,
                                         &code);
        if (code != 0)
            return failed("%s cannot use %llu bytes at %llu of segment %u as a buffer: %s. Try: make the plan again on this "
                          "device",
                          session->device->name, (unsigned long long)bytes, (unsigned long long)offset, segment,
                          cl_error(code));
        session->regions = grow(session->regions, &session->region_space, session->region_count, 1, sizeof *session->regions);
        session->regions[session->region_count++] = (struct region){segment, offset, bytes, made};
        *slot = (uint32_t)session->region_count;
    }
    *buffer = session->regions[*slot - 1].buffer;
    return true;
}

bool find_texture(struct session *session, uint32_t segment, uint32_t floats, uint32_t half, cl_mem *image) {
    for (size_t i = 0; i < session->texture_count; ++i) {
        const struct texture *one = &session->textures[i];
        if (one->segment != segment || one->floats != floats || one->half != half) continue;
        *image = one->image;
        return true;
    }
    uint64_t bytes = segment_bytes(&session->plan, segment);
    cl_image_format format = {floats == 4 ? CL_RGBA : CL_R, half ? CL_HALF_FLOAT : CL_FLOAT};
    cl_image_desc shape = {0};
    shape.type = CL_MEM_OBJECT_IMAGE1D_BUFFER;
    shape.width = (size_t)(bytes / ((half ? 2 : 4) * floats));
    shape.buffer = session->segments[segment];
    cl_int code = 0;
    cl_mem made = cl.CreateImage(session->context, CL_MEM_READ_ONLY, &format, &shape, NULL, &code);
    if (code != 0)
        return failed("%s cannot create a texture of %llu bytes: %s. Try: make the plan again on this device",
                      session->device->name, (unsigned long long)bytes, cl_error(code));
    session->textures = grow(session->textures, &session->texture_space, session->texture_count, 1, sizeof *session->textures);
    session->textures[session->texture_count++] = (struct texture){segment, floats, half, made};
    *image = made;
    return true;
}

bool fill(struct session *session, uint32_t segment, uint8_t byte, uint64_t offset, uint64_t bytes) {
    cl_int code = 0;
    for (uint64_t done = 0; code == 0 && done < bytes; done += FILL_BYTES)
        code = cl.EnqueueFillBuffer(session->queue, session->segments[segment], &byte, 1, (size_t)(offset + done),
                                    (size_t)least(bytes - done, FILL_BYTES), 0, NULL, NULL);
    session->idle = false;
    return code == 0 || failed("%s cannot fill %llu bytes: %s. Try: again", session->device->name, (unsigned long long)bytes,
                               cl_error(code));
}

void free_memory(struct session *session) {
    while (session->texture_count > 0) (void)cl.ReleaseMemObject(session->textures[--session->texture_count].image);
    while (session->region_count > 0) (void)cl.ReleaseMemObject(session->regions[--session->region_count].buffer);
    for (uint32_t i = session->plan.segment_count; session->segments != NULL && i-- > 0;)
        if (session->segments[i] != NULL) (void)cl.ReleaseMemObject(session->segments[i]);
    for (uint32_t i = session->plan.segment_count; session->shared != NULL && i-- > 0;)
        if (session->shared[i] != NULL) cl.SVMFree(session->context, session->shared[i]);
    free(session->textures);
    free(session->regions);
    free(session->region_table);
    free(session->segments);
    free(session->shared);
    session->textures = NULL;
    session->regions = NULL;
    session->region_table = NULL;
    session->region_slots = 0;
    session->segments = NULL;
    session->shared = NULL;
}
