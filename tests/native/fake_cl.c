/* fake_cl.c: an OpenCL in memory, for fuzzing and for tests of error paths. Buffers are memory, kernels do nothing, and
 * every access is checked. It replaces cl.c.
 *
 *   fake_fail   the n-th call from now on that can fail, fails; 0: none
 *   fake_live   objects that were not released
 *
 * A use that a driver would punish (an access outside a buffer, a released object, sub-buffers released in another order
 * than newest first) ends the process.
 */
#include "cl.h"
#include "fake_cl.h"

long fake_fail, fake_live;

struct cl_functions cl;
struct device *devices;
uint32_t device_count;
char opencl_library[1024] = "fake";

static struct device one;
static long newest; /* the number of the last sub-buffer that was made */

struct cl_mem_object {
    unsigned char *data;
    size_t bytes;
    struct cl_mem_object *parent;
    long number, children, maps;
};
struct cl_event_object {
    long count;
};

static void must(bool ok, const char *what) {
    if (ok) return;
    tell("fake OpenCL: %s", what);
    abort();
}

static bool fails(cl_int *code) {
    bool now = fake_fail > 0 && --fake_fail == 0;
    if (code != NULL) *code = now ? -5 : 0;
    return now;
}

static void *make(size_t bytes) {
    ++fake_live;
    return need(1, bytes);
}

static cl_int drop(void *object) {
    must(object != NULL, "released nothing");
    --fake_live;
    free(object);
    return 0;
}

static cl_event event_of(cl_event *wanted) {
    if (wanted == NULL) return NULL;
    *wanted = make(sizeof **wanted);
    (*wanted)->count = 1;
    return *wanted;
}

static void inside(cl_mem memory, size_t offset, size_t bytes) {
    must(memory != NULL && offset <= memory->bytes && bytes <= memory->bytes - offset && bytes > 0, "access outside a buffer");
}

static cl_context create_context(const intptr_t *properties, cl_uint count, const cl_device_id *list,
                                 void (*notify)(const char *, const void *, size_t, void *), void *data, cl_int *code) {
    (void)properties, (void)count, (void)list, (void)notify, (void)data;
    return fails(code) ? NULL : make(1);
}
static cl_int release_context(cl_context context) { return drop(context); }
static cl_command_queue create_queue(cl_context context, cl_device_id device, cl_ulong properties, cl_int *code) {
    (void)context, (void)device, (void)properties;
    return fails(code) ? NULL : make(1);
}
static cl_int release_queue(cl_command_queue queue) { return drop(queue); }

static void *shared_alloc(cl_context context, cl_ulong flags, size_t bytes, cl_uint alignment) {
    cl_int code;
    (void)context, (void)flags, (void)alignment;
    return fails(&code) || bytes > (size_t)32 << 20 ? NULL : make(bytes);
}
static void shared_free(cl_context context, void *memory) {
    must(context != NULL, "freed shared memory without a context");
    (void)drop(memory);
}
static cl_mem create_buffer(cl_context context, cl_ulong flags, size_t bytes, void *host, cl_int *code) {
    (void)context, (void)flags, (void)host;
    must(bytes > 0, "an empty buffer");
    if (fails(code)) return NULL;
    if (bytes > (size_t)32 << 20) {
        *code = -4;
        return NULL;
    }
    cl_mem made = make(sizeof *made);
    made->data = need(1, bytes);
    made->bytes = bytes;
    return made;
}

static cl_mem create_part(cl_mem parent, cl_ulong flags, cl_uint type, const void *region, cl_int *code) {
    const cl_buffer_region *part = region;
    (void)flags, (void)type;
    inside(parent, part->origin, part->size);
    if (fails(code)) return NULL;
    cl_mem made = make(sizeof *made);
    made->data = parent->data + part->origin;
    made->bytes = part->size;
    made->parent = parent;
    made->number = ++newest;
    ++parent->children;
    return made;
}

static cl_mem create_image(cl_context context, cl_ulong flags, const cl_image_format *format, const cl_image_desc *shape,
                           void *host, cl_int *code) {
    (void)context, (void)flags, (void)host;
    size_t texel = (format->order == CL_RGBA ? 4u : 1u) * (format->type == CL_FLOAT ? 4u : 2u);
    must(shape->width * texel <= shape->buffer->bytes, "a texture larger than its buffer");
    if (shape->width == 0) {
        *code = -40;
        return NULL;
    }
    if (fails(code)) return NULL;
    cl_mem made = make(sizeof *made);
    made->parent = shape->buffer;
    ++made->parent->children;
    return made;
}

static cl_int release_memory(cl_mem memory) {
    must(memory->children == 0 && memory->maps == 0, "released memory that is in use");
    if (memory->number != 0) must(memory->number == newest--, "released a part that is not the newest");
    if (memory->parent != NULL) --memory->parent->children;
    else free(memory->data);
    return drop(memory);
}

static cl_program from_source(cl_context context, cl_uint count, const char **text, const size_t *length, cl_int *code) {
    (void)context;
    must(count == 1 && memchr(*text, 0, *length) == NULL, "a program text with a zero byte");
    return fails(code) ? NULL : make(1);
}
static cl_program from_binary(cl_context context, cl_uint count, const cl_device_id *list, const size_t *length,
                              const unsigned char **binary, cl_int *status, cl_int *code) {
    (void)context, (void)count, (void)list;
    *status = 0;
    if (*length != 6 || memcmp(*binary, "binary", 6) != 0) {
        *code = -42;
        return NULL;
    }
    return fails(code) ? NULL : make(1);
}
static cl_int build(cl_program program, cl_uint count, const cl_device_id *list, const char *options,
                    void (*notify)(cl_program, void *), void *data) {
    cl_int code;
    (void)count, (void)list, (void)notify, (void)data;
    must(program != NULL && options != NULL, "built nothing");
    (void)fails(&code);
    return code;
}
static cl_int program_info(cl_program program, cl_uint what, size_t space, void *to, size_t *used) {
    cl_int code;
    size_t bytes = 6;
    (void)program, (void)space, (void)used;
    if (fails(&code)) return code;
    if (what == CL_PROGRAM_BINARY_SIZES) memcpy(to, &bytes, sizeof bytes);
    else memcpy(*(unsigned char **)to, "binary", 6);
    return 0;
}
static cl_int build_info(cl_program program, cl_device_id device, cl_uint what, size_t space, void *to, size_t *used) {
    (void)program, (void)device, (void)what;
    if (used != NULL) *used = 5;
    if (to != NULL) memcpy(to, "oops", space < 5 ? space : 5);
    return 0;
}
static cl_int release_program(cl_program program) { return drop(program); }

static cl_kernel create_kernel(cl_program program, const char *name, cl_int *code) {
    (void)program;
    must(strlen(name) > 0, "a kernel without a name");
    return fails(code) ? NULL : make(1);
}
static cl_int set_arg(cl_kernel kernel, cl_uint index, size_t bytes, const void *value) {
    cl_int code;
    must(kernel != NULL && index < 64 && (bytes == 4 || bytes == sizeof(cl_mem)) && value != NULL, "a wrong argument");
    (void)fails(&code);
    return code;
}
static cl_int release_kernel(cl_kernel kernel) { return drop(kernel); }

static cl_int launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset, const size_t *global,
                     const size_t *local, cl_uint count, const cl_event *list, cl_event *event) {
    cl_int code;
    (void)offset, (void)count, (void)list;
    must(queue != NULL && kernel != NULL && dims >= 1 && dims <= 3, "a wrong launch");
    for (cl_uint d = 0; d < dims; ++d) must(local[d] > 0 && global[d] % local[d] == 0, "sizes that do not divide");
    if (!fails(&code)) (void)event_of(event);
    return code;
}

static cl_int read_buffer(cl_command_queue queue, cl_mem memory, cl_uint wait, size_t offset, size_t bytes, void *to,
                          cl_uint count, const cl_event *list, cl_event *event) {
    cl_int code;
    (void)queue, (void)wait, (void)count, (void)list;
    inside(memory, offset, bytes);
    if (fails(&code)) return code;
    memcpy(to, memory->data + offset, bytes);
    (void)event_of(event);
    return 0;
}
static cl_int write_buffer(cl_command_queue queue, cl_mem memory, cl_uint wait, size_t offset, size_t bytes, const void *from,
                           cl_uint count, const cl_event *list, cl_event *event) {
    cl_int code;
    (void)queue, (void)wait, (void)count, (void)list;
    inside(memory, offset, bytes);
    if (fails(&code)) return code;
    memcpy(memory->data + offset, from, bytes);
    (void)event_of(event);
    return 0;
}
static cl_int copy_buffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t a, size_t b, size_t bytes, cl_uint count,
                          const cl_event *list, cl_event *event) {
    cl_int code;
    (void)queue, (void)count, (void)list;
    inside(from, a, bytes);
    inside(to, b, bytes);
    must(from != to || a + bytes <= b || b + bytes <= a, "a copy that overlaps");
    if (fails(&code)) return code;
    memcpy(to->data + b, from->data + a, bytes);
    (void)event_of(event);
    return 0;
}
static cl_int fill_buffer(cl_command_queue queue, cl_mem memory, const void *pattern, size_t size, size_t offset, size_t bytes,
                          cl_uint count, const cl_event *list, cl_event *event) {
    cl_int code;
    (void)queue, (void)count, (void)list;
    inside(memory, offset, bytes);
    must(bytes % size == 0 && offset % size == 0, "a fill that does not divide");
    if (fails(&code)) return code;
    memset(memory->data + offset, *(const unsigned char *)pattern, bytes);
    (void)event_of(event);
    return 0;
}
static void *map_buffer(cl_command_queue queue, cl_mem memory, cl_uint wait, cl_ulong flags, size_t offset, size_t bytes,
                        cl_uint count, const cl_event *list, cl_event *event, cl_int *code) {
    (void)queue, (void)flags, (void)count, (void)list;
    must(wait != 0 && event == NULL, "a map that does not wait");
    inside(memory, offset, bytes);
    if (fails(code)) return NULL;
    ++memory->maps;
    return memory->data + offset;
}
static cl_int unmap(cl_command_queue queue, cl_mem memory, void *host, cl_uint count, const cl_event *list, cl_event *event) {
    (void)queue, (void)count, (void)list;
    must(memory->maps > 0 && (unsigned char *)host >= memory->data, "unmapped what is not mapped");
    --memory->maps;
    (void)event_of(event);
    return 0;
}

static cl_int flush(cl_command_queue queue) { return queue == NULL ? -36 : 0; }
static cl_int finish_queue(cl_command_queue queue) {
    cl_int code;
    (void)queue;
    (void)fails(&code);
    return code;
}
static cl_int wait_for(cl_uint count, const cl_event *list) {
    cl_int code;
    must(count == 1 && (*list)->count > 0, "waited for nothing");
    (void)fails(&code);
    return code;
}
static cl_int event_info(cl_event event, cl_uint what, size_t space, void *to, size_t *used) {
    (void)what, (void)used;
    must(event->count > 0, "asked a released event");
    memset(to, 0, space);
    return 0;
}
static cl_int event_times(cl_event event, cl_uint what, size_t space, void *to, size_t *used) {
    cl_int code;
    (void)used;
    must(event->count > 0 && space == 8, "asked a released event");
    cl_ulong time = what;
    memcpy(to, &time, 8);
    (void)fails(&code);
    return code;
}
static cl_int set_callback(cl_event event, cl_int type, void (*run)(cl_event, cl_int, void *), void *data) {
    run(event, type, data);
    return 0;
}
static cl_int retain_event(cl_event event) {
    ++event->count;
    return 0;
}
static cl_int release_event(cl_event event) {
    must(event != NULL && event->count > 0, "released no event");
    return --event->count > 0 ? 0 : drop(event);
}

static cl_int device_info(cl_device_id device, cl_uint what, size_t space, void *to, size_t *length) {
    (void)device;
    (void)what;
    (void)space;
    (void)to;
    (void)length;
    return -30;
}

bool open_opencl(const char *library) {
    if (library != NULL && strcmp(library, "none") == 0) return failed("no OpenCL device was found");
    cl = (struct cl_functions){
        .CreateContext = create_context, .ReleaseContext = release_context, .CreateCommandQueue = create_queue,
        .ReleaseCommandQueue = release_queue, .CreateBuffer = create_buffer, .CreateSubBuffer = create_part,
        .CreateImage = create_image, .ReleaseMemObject = release_memory, .CreateProgramWithSource = from_source,
        .CreateProgramWithBinary = from_binary, .BuildProgram = build, .GetProgramInfo = program_info,
        .GetProgramBuildInfo = build_info, .ReleaseProgram = release_program, .CreateKernel = create_kernel,
        .SetKernelArg = set_arg, .ReleaseKernel = release_kernel, .EnqueueNDRangeKernel = launch,
        .EnqueueReadBuffer = read_buffer, .EnqueueWriteBuffer = write_buffer, .EnqueueCopyBuffer = copy_buffer,
        .EnqueueFillBuffer = fill_buffer, .EnqueueMapBuffer = map_buffer, .EnqueueUnmapMemObject = unmap, .Flush = flush,
        .GetDeviceInfo = device_info, .SVMAlloc = shared_alloc, .SVMFree = shared_free,
        .Finish = finish_queue, .WaitForEvents = wait_for, .GetEventInfo = event_info, .GetEventProfilingInfo = event_times,
        .SetEventCallback = set_callback, .RetainEvent = retain_event, .ReleaseEvent = release_event,
    };
    one.gpu = true;
    (void)snprintf(one.name, sizeof one.name, "fake");
    devices = &one;
    device_count = 1;
    return true;
}

/* It has no extensions, and shared virtual memory as its only property. */
uint64_t device_number(cl_device_id device, cl_uint what) {
    (void)device;
    return what == 0x1053; /* CL_DEVICE_SVM_CAPABILITIES: coarse-grained buffers */
}

const char *cl_error(cl_int code) {
    static char text[32];
    (void)snprintf(text, sizeof text, "error %d", code);
    return text;
}
