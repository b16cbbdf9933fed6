/* info.c: see info.h. The host makes a DeviceCaps of a device's entry, so the names of its fields are those. */
#include "info.h"

#include "session.h"

static void field(struct bytes *to, const char *name, const char *text) {
    say(to, ", \"%s\": ", name);
    say_json(to, text, strlen(text));
}

static void number(struct bytes *to, const char *name, uint64_t value) {
    say(to, ", \"%s\": %llu", name, (unsigned long long)value);
}

static void flag(struct bytes *to, const char *name, bool value) { say(to, ", \"%s\": %s", name, value ? "true" : "false"); }

/* A whole word of a list that is separated by spaces. */
static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return true;
    return false;
}

static void describe_device(struct bytes *to, uint32_t index) {
    const struct device *device = &devices[index];
    cl_device_id id = device->id;
    char text[512], *extensions;
    size_t bytes = 0;
    (void)cl.GetDeviceInfo(id, 0x1030, 0, NULL, &bytes);
    extensions = need(bytes + 1, 1);
    if (cl.GetDeviceInfo(id, 0x1030, bytes, extensions, NULL) != 0) extensions[0] = 0;
    say(to, "%s{\"index\": %u", index == 0 ? "" : ", ", index);
    field(to, "name", device->name);
    device_text(id, 0x102C, text, sizeof text);
    field(to, "vendor", text);
    field(to, "kind", device->gpu ? "gpu" : "cpu");
    field(to, "driver", device->driver);
    device_text(id, 0x102F, text, sizeof text);
    field(to, "version", text);
    device_text(id, 0x103D, text, sizeof text);
    field(to, "c_version", text);
    field(to, "platform", device->platform_name);
    field(to, "platform_version", device->platform_version);
    field(to, "extensions", extensions);
    number(to, "compute_units", device_number(id, 0x1002));
    number(to, "max_work_group", device_number(id, 0x1004));
    number(to, "local_mem_bytes", device_number(id, 0x1023));
    number(to, "global_mem_bytes", device_number(id, 0x101F));
    number(to, "max_alloc_bytes", device_number(id, 0x1010));
    number(to, "base_align_bytes", device_number(id, 0x1019) / 8);
    number(to, "global_cache_bytes", device_number(id, 0x101E));
    number(to, "timer_ns", device_number(id, 0x1025));
    number(to, "vector_width", device_number(id, 0x103A));
    number(to, "image_max_buffer", device_number(id, 0x1040));
    number(to, "clock_mhz", device_number(id, 0x100C));
    flag(to, "unified_memory", device->unified);
    flag(to, "images", device_number(id, 0x1016) != 0);
    field(to, "recording", recording_of(device));
    flag(to, "fp16", has_word(extensions, "cl_khr_fp16"));
    flag(to, "fp64", has_word(extensions, "cl_khr_fp64"));
    say(to, "}");
    free(extensions);
}

/* MemAvailable of /proc/meminfo in bytes, or 0. */
static uint64_t available_bytes(void) {
    char text[4096];
    size_t got = 0;
    int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    (void)read_all(file, text, sizeof text - 1, &got);
    (void)close(file);
    text[got] = 0;
    const char *line = strstr(text, "MemAvailable:");
    return line == NULL ? 0 : (uint64_t)strtoull(line + 13, NULL, 10) * 1024;
}

void describe_system(struct bytes *to) {
    struct utsname names;
    memset(&names, 0, sizeof names);
    (void)uname(&names);
    say(to, "{\"pid\": %d", (int)getpid());
    field(to, "system", names.sysname);
    field(to, "release", names.release);
    field(to, "version", names.version);
    field(to, "machine", names.machine);
    number(to, "page_bytes", (uint64_t)page_bytes());
    number(to, "cores", (uint64_t)processors());
    number(to, "available_bytes", available_bytes());
    say(to, "}");
}

void describe(struct bytes *to, const char *library) {
    bool found = open_opencl(library);
    say(to, "{\"runner\": \"%s\", \"source\": \"%s\", \"protocol\": %d, \"plan\": %d, \"system\": ", RUNNER_VERSION,
        HANDHELD_SOURCE, PROTOCOL, PLAN_VERSION);
    describe_system(to);
    if (found) field(to, "library", opencl_library);
    say(to, ", \"devices\": [");
    for (uint32_t i = 0; i < device_count; ++i) describe_device(to, i);
    say(to, "]");
    if (!found) field(to, "problem", problem);
    say(to, "}");
}
