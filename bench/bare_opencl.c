/* Opens an OpenCL device and waits: what a driver takes for itself, for bench/runner_footprint.py.
 *
 *     bare_opencl LIBRARY INDEX open      loads the library, makes a context and a queue, and ends
 *     bare_opencl LIBRARY INDEX kernel    also builds and runs an empty kernel
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
#define CALL(result, name, ...) result (*name)(__VA_ARGS__) = (result(*)(__VA_ARGS__))(uintptr_t)dlsym(library, #name)

/* So that the memory can be read before the process ends. */
static int wait_a_little(void) { return usleep(200000) != 0; }

int main(int count, char **words) {
    void *library = count > 3 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    CALL(int, clGetPlatformIDs, unsigned, handle *, unsigned *);
    CALL(int, clGetDeviceIDs, handle, uint64_t, unsigned, handle *, unsigned *);
    CALL(handle, clCreateContext, const intptr_t *, unsigned, const handle *, void *, void *, int *);
    CALL(handle, clCreateCommandQueue, handle, handle, uint64_t, int *);
    CALL(handle, clCreateProgramWithSource, handle, unsigned, const char **, const size_t *, int *);
    CALL(int, clBuildProgram, handle, unsigned, const handle *, const char *, void *, void *);
    CALL(handle, clCreateKernel, handle, const char *, int *);
    CALL(int, clEnqueueNDRangeKernel, handle, handle, unsigned, const size_t *, const size_t *, const size_t *, unsigned,
         const handle *, handle *);
    CALL(int, clFinish, handle);

    handle platforms[16], devices[64];
    unsigned platform_count = 0, found = 0, wanted = (unsigned)atoi(words[2]);
    if (clGetPlatformIDs(16, platforms, &platform_count)) return 2;
    for (unsigned p = 0; p < platform_count && p < 16; p++) {
        unsigned more = 0;
        if (!clGetDeviceIDs(platforms[p], 0xFFFFFFFF, 64 - found, devices + found, &more)) found += more;
    }
    if (wanted >= found) return 3;
    int error = 0;
    handle context = clCreateContext(NULL, 1, devices + wanted, NULL, NULL, &error);
    handle queue = error ? NULL : clCreateCommandQueue(context, devices[wanted], 0, &error);
    if (!error && strcmp(words[3], "open") == 0) return wait_a_little();
    const char *text = "__kernel void nothing(void) {}";
    handle program = error ? NULL : clCreateProgramWithSource(context, 1, &text, NULL, &error);
    if (error || clBuildProgram(program, 1, devices + wanted, "", NULL, NULL)) return 4;
    handle kernel = clCreateKernel(program, "nothing", &error);
    size_t one = 1;
    if (error || clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL) || clFinish(queue)) return 5;
    return wait_a_little();
}
