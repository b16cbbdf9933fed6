/* unknown_cpu.c: names the processor to a PoCL whose compiler does not know it. Such a compiler calls it `generic` and
 * then refuses that name. The name is in PoCL's own description of the device, after the text `x86_64-...`. See
 * backends/opencl/unknown_cpu.py, which does the same for pyopencl. */
#include "cl.h"
#include "files.h"

#if defined(__x86_64__)

/* Reads memory of this process that may not be there: most words of the struct are not addresses. */
static bool peek(int memory, uint64_t address, void *to, size_t bytes) {
    return address < (uint64_t)1 << 47 && lseek(memory, (off_t)address, SEEK_SET) >= 0 &&
           read(memory, to, bytes) == (ssize_t)bytes;
}

/* Whether the flags of the first core have all these words, each with a space on both sides. */
static bool has_all(const char *flags, const char *const *words) {
    for (; *words != NULL; ++words)
        if (strstr(flags, *words) == NULL) return false;
    return true;
}

static const char *known_name(void) {
    static const char *const haswell[] = {" avx2 ", " fma ", " bmi1 ", " bmi2 ", " abm ", " movbe ", " f16c ", NULL};
    static const char *const amd[] = {" sse4a ", NULL};
    const char *name = "x86-64";
    char *text = need(FILE_MOST + 1, 1);
    unsigned length = file_read("/proc/cpuinfo", (unsigned char *)text, FILE_MOST);
    text[(length & FILE_UNREADABLE) != 0 ? 0 : length] = 0;
    char *flags = strstr(text, "\nflags"), *end = flags == NULL ? NULL : strchr(flags + 1, '\n');
    if (end != NULL) {
        *end = 0;
        if (has_all(flags, haswell)) name = has_all(flags, amd) ? "znver3" : "haswell";
    }
    free(text);
    return name;
}

void name_processor(cl_device_id device) {
    static const char unknown[8] = "generic";
    uint64_t words[256];
    char text[8];
    bool after_machine = false;
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (memory < 0) return;
    if (peek(memory, (uint64_t)(uintptr_t)device, words, sizeof words))
        for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
            bool there = peek(memory, words[i], text, sizeof text);
            if (there && after_machine && memcmp(text, unknown, sizeof text) == 0) {
                char *name = (char *)(uintptr_t)words[i];
                (void)snprintf(name, sizeof unknown, "%s", known_name());
                break;
            }
            after_machine = there && memcmp(text, "x86_64-", 7) == 0;
        }
    (void)close(memory);
}

#else

void name_processor(cl_device_id device) { (void)device; }

#endif
