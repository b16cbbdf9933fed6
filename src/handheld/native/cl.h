/* cl.h: OpenCL 1.2 as the runner uses it. The library is loaded at run time; no OpenCL headers are needed to build.
 *
 * Functions are called through the table `cl`: cl.Finish(queue) is clFinish(queue).
 */
#ifndef HANDHELD_CL_H
#define HANDHELD_CL_H

#include "base.h"

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef struct cl_platform_object *cl_platform_id;
typedef struct cl_device_object *cl_device_id;
typedef struct cl_context_object *cl_context;
typedef struct cl_queue_object *cl_command_queue;
typedef struct cl_mem_object *cl_mem;
typedef struct cl_program_object *cl_program;
typedef struct cl_kernel_object *cl_kernel;
typedef struct cl_event_object *cl_event;
typedef struct {
    size_t origin, size;
} cl_buffer_region;
typedef struct {
    cl_uint order, type;
} cl_image_format;
typedef struct {
    cl_uint type;
    size_t width, height, depth, array_size, row_pitch, slice_pitch;
    cl_uint mip_levels, samples;
    cl_mem buffer;
} cl_image_desc;

/* Functions that a driver of OpenCL 1.2 or older may lack; they are NULL then. */
#define CL_LATER_FUNCTIONS(X)                                                                                        \
    X(void *, GetExtensionFunctionAddressForPlatform, (cl_platform_id, const char *))                                \
    X(void *, SVMAlloc, (cl_context, cl_ulong, size_t, cl_uint))                                                     \
    X(void, SVMFree, (cl_context, void *))

#define CL_FUNCTIONS(X)                                                                                              \
    X(cl_int, GetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                                                \
    X(cl_int, GetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *))                                  \
    X(cl_int, GetDeviceIDs, (cl_platform_id, cl_ulong, cl_uint, cl_device_id *, cl_uint *))                          \
    X(cl_int, GetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                                      \
    X(cl_context, CreateContext, (const intptr_t *, cl_uint, const cl_device_id *,                                   \
                                  void (*)(const char *, const void *, size_t, void *), void *, cl_int *))           \
    X(cl_int, ReleaseContext, (cl_context))                                                                          \
    X(cl_command_queue, CreateCommandQueue, (cl_context, cl_device_id, cl_ulong, cl_int *))                          \
    X(cl_int, ReleaseCommandQueue, (cl_command_queue))                                                               \
    X(cl_mem, CreateBuffer, (cl_context, cl_ulong, size_t, void *, cl_int *))                                        \
    X(cl_mem, CreateSubBuffer, (cl_mem, cl_ulong, cl_uint, const void *, cl_int *))                                  \
    X(cl_mem, CreateImage, (cl_context, cl_ulong, const cl_image_format *, const cl_image_desc *, void *, cl_int *)) \
    X(cl_int, ReleaseMemObject, (cl_mem))                                                                            \
    X(cl_program, CreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *))           \
    X(cl_program, CreateProgramWithBinary, (cl_context, cl_uint, const cl_device_id *, const size_t *,               \
                                            const unsigned char **, cl_int *, cl_int *))                             \
    X(cl_int, BuildProgram, (cl_program, cl_uint, const cl_device_id *, const char *,                                \
                             void (*)(cl_program, void *), void *))                                                  \
    X(cl_int, GetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *))                                       \
    X(cl_int, GetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))                    \
    X(cl_int, ReleaseProgram, (cl_program))                                                                          \
    X(cl_kernel, CreateKernel, (cl_program, const char *, cl_int *))                                                 \
    X(cl_int, SetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                                              \
    X(cl_int, ReleaseKernel, (cl_kernel))                                                                            \
    X(cl_int, EnqueueNDRangeKernel, (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *,           \
                                     const size_t *, cl_uint, const cl_event *, cl_event *))                         \
    X(cl_int, EnqueueReadBuffer, (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint,                \
                                  const cl_event *, cl_event *))                                                     \
    X(cl_int, EnqueueWriteBuffer, (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, cl_uint,         \
                                   const cl_event *, cl_event *))                                                    \
    X(cl_int, EnqueueCopyBuffer, (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint,                 \
                                  const cl_event *, cl_event *))                                                     \
    X(cl_int, EnqueueFillBuffer, (cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, cl_uint,           \
                                  const cl_event *, cl_event *))                                                     \
    X(void *, EnqueueMapBuffer, (cl_command_queue, cl_mem, cl_uint, cl_ulong, size_t, size_t, cl_uint,               \
                                 const cl_event *, cl_event *, cl_int *))                                            \
    X(cl_int, EnqueueUnmapMemObject, (cl_command_queue, cl_mem, void *, cl_uint, const cl_event *, cl_event *))      \
    X(cl_int, Flush, (cl_command_queue))                                                                             \
    X(cl_int, Finish, (cl_command_queue))                                                                            \
    X(cl_int, WaitForEvents, (cl_uint, const cl_event *))                                                            \
    X(cl_int, GetEventInfo, (cl_event, cl_uint, size_t, void *, size_t *))                                           \
    X(cl_int, GetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *))                                  \
    X(cl_int, SetEventCallback, (cl_event, cl_int, void (*)(cl_event, cl_int, void *), void *))                      \
    X(cl_int, RetainEvent, (cl_event))                                                                               \
    X(cl_int, ReleaseEvent, (cl_event))                                                                              \
    CL_LATER_FUNCTIONS(X)

struct cl_functions {
#define X(type, name, args) type(*name) args;
    CL_FUNCTIONS(X)
#undef X
};
extern struct cl_functions cl;

enum {
    CL_DEVICE_TYPE_CPU = 2,
    CL_MEM_READ_WRITE = 1,
    CL_MEM_READ_ONLY = 4,
    CL_MEM_USE_HOST_PTR = 8,
    CL_MEM_ALLOC_HOST_PTR = 16,
    CL_MAP_READ = 1,
    CL_MAP_WRITE = 2,
    CL_MAP_WRITE_INVALIDATE_REGION = 4,
    CL_QUEUE_PROFILING_ENABLE = 2,
    CL_BUFFER_CREATE_TYPE_REGION = 0x1220,
    CL_MEM_OBJECT_IMAGE1D_BUFFER = 0x10F6,
    CL_R = 0x10B0,
    CL_RGBA = 0x10B5,
    CL_HALF_FLOAT = 0x10DD,
    CL_FLOAT = 0x10DE,
    CL_PLATFORM_VERSION = 0x0901,
    CL_PLATFORM_NAME = 0x0902,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_PROFILING_COMMAND_QUEUED = 0x1280, /* then submitted, started, ended */
};

/* An OpenCL device. Devices are listed with GPUs before CPUs, so the first is what a user means without a name. */
struct device {
    cl_platform_id platform;
    cl_device_id id;
    bool gpu, unified;
    char name[256], driver[256], platform_name[256], platform_version[256];
    char hints[96]; /* that its context was made with, for people; empty if there are none */
};

/* Loads OpenCL and lists its devices, once. `library`: the one to load instead of the known names; NULL otherwise. */
bool open_opencl(const char *library);
extern struct device *devices;
extern uint32_t device_count;
extern char opencl_library[1024];

/* An error code by its name: CL_OUT_OF_RESOURCES (-5). */
const char *cl_error(cl_int code);
/* Properties of a device. A text has no spaces at its ends; a number that the driver does not know is 0. */
void device_text(cl_device_id device, cl_uint what, char *to, size_t space);
uint64_t device_number(cl_device_id device, cl_uint what);

/* Gives a PoCL device the name of a processor that its compiler knows, if it has none (unknown_cpu.c). */
void name_processor(cl_device_id device);

#endif
