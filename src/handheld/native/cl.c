/* cl.c: finds and loads OpenCL. It may be missing, refused by the linker, or have no device; each is told with its
 * reason, because on phones the file that works differs from vendor to vendor. */
#include "cl.h"

struct cl_functions cl;
struct device *devices;
uint32_t device_count;
char opencl_library[1024];

/* In the order of MNN's OpenCLWrapper: names that a linker may allow come before paths. */
static const char *const libraries[] = {
    "libOpenCL.so",
    "libOpenCL.so.1",
#if defined(__aarch64__)
    "libmali.so",
    "libmali.so.1",
    "libPVROCL.so",
#endif
#if defined(__ANDROID__) || defined(HANDHELD_BARE)
    "libGLES_mali.so",
    "libOpenCL-pixel.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/libOpenCL-pixel.so",
    "/vendor/lib64/libPVROCL.so",
    "/system/vendor/lib64/libPVROCL.so",
#endif
    NULL,
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define X(type, name, args) {"cl" #name, offsetof(struct cl_functions, name)},
    CL_FUNCTIONS(X)
#undef X
};

static bool may_lack(const char *name) {
#define X(type, function, args) if (strcmp(name, "cl" #function) == 0) return true;
    CL_LATER_FUNCTIONS(X)
#undef X
    return false;
}

static const struct {
    cl_int code;
    const char *name;
} errors[] = {
    {-1, "CL_DEVICE_NOT_FOUND"},         {-2, "CL_DEVICE_NOT_AVAILABLE"},     {-3, "CL_COMPILER_NOT_AVAILABLE"},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"}, {-5, "CL_OUT_OF_RESOURCES"},    {-6, "CL_OUT_OF_HOST_MEMORY"},
    {-7, "CL_PROFILING_INFO_NOT_AVAILABLE"},  {-8, "CL_MEM_COPY_OVERLAP"},    {-9, "CL_IMAGE_FORMAT_MISMATCH"},
    {-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED"},   {-11, "CL_BUILD_PROGRAM_FAILURE"}, {-12, "CL_MAP_FAILURE"},
    {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET"}, {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {-30, "CL_INVALID_VALUE"},           {-33, "CL_INVALID_DEVICE"},          {-34, "CL_INVALID_CONTEXT"},
    {-35, "CL_INVALID_QUEUE_PROPERTIES"}, {-36, "CL_INVALID_COMMAND_QUEUE"},  {-38, "CL_INVALID_MEM_OBJECT"},
    {-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR"}, {-40, "CL_INVALID_IMAGE_SIZE"}, {-42, "CL_INVALID_BINARY"},
    {-43, "CL_INVALID_BUILD_OPTIONS"},   {-45, "CL_INVALID_PROGRAM_EXECUTABLE"}, {-46, "CL_INVALID_KERNEL_NAME"},
    {-48, "CL_INVALID_KERNEL"},          {-49, "CL_INVALID_ARG_INDEX"},       {-50, "CL_INVALID_ARG_VALUE"},
    {-51, "CL_INVALID_ARG_SIZE"},        {-52, "CL_INVALID_KERNEL_ARGS"},     {-53, "CL_INVALID_WORK_DIMENSION"},
    {-54, "CL_INVALID_WORK_GROUP_SIZE"}, {-55, "CL_INVALID_WORK_ITEM_SIZE"},  {-58, "CL_INVALID_EVENT"},
    {-59, "CL_INVALID_OPERATION"},       {-61, "CL_INVALID_BUFFER_SIZE"},     {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
};

const char *cl_error(cl_int code) {
    static char text[64];
    const char *name = "OpenCL error";
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        if (errors[i].code == code) name = errors[i].name;
    (void)snprintf(text, sizeof text, "%s (%d)", name, code);
    return text;
}

/* ── properties ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void strip(char *text) {
    size_t length = strlen(text), start = 0;
    while (length > 0 && (unsigned char)text[length - 1] <= ' ') text[--length] = 0;
    while (text[start] != 0 && (unsigned char)text[start] <= ' ') ++start;
    memmove(text, text + start, length - (start < length ? start : length) + 1);
}

void device_text(cl_device_id device, cl_uint what, char *to, size_t space) {
    size_t length = 0;
    to[0] = 0;
    if (cl.GetDeviceInfo(device, what, space - 1, to, &length) != 0 || length >= space) to[0] = 0;
    to[space - 1] = 0;
    strip(to);
}

static void platform_text(cl_platform_id platform, cl_uint what, char *to, size_t space) {
    size_t length = 0;
    to[0] = 0;
    if (cl.GetPlatformInfo(platform, what, space - 1, to, &length) != 0 || length >= space) to[0] = 0;
    to[space - 1] = 0;
    strip(to);
}

uint64_t device_number(cl_device_id device, cl_uint what) {
    uint64_t value = 0; /* Numbers have 4 or 8 bytes; in little endian the smaller fills the low half. */
    size_t length = 0;
    return cl.GetDeviceInfo(device, what, sizeof value, &value, &length) == 0 && length <= 8 ? value : 0;
}

/* ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The loader in a Python wheel looks for drivers beside itself, but names them without a folder and needs a variable
 * that Python sets. So what the .icd files beside a library name is loaded first; the loader then finds it. */
static void load_beside(const char *library) {
    char folder[900], path[1200], line[256];
    const char *slash = strrchr(library, '/');
    if (slash == NULL || (size_t)(slash - library) >= sizeof folder) return;
    (void)snprintf(folder, sizeof folder, "%.*s", (int)(slash - library), library);
    (void)snprintf(path, sizeof path, "%s/..", folder);
    (void)setenv("PYOPENCL_HOME", path, 0);
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        size_t length = strlen(entry->d_name), got = 0;
        if (length < 5 || strcmp(entry->d_name + length - 4, ".icd") != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        (void)read_all(file, line, sizeof line - 1, &got);
        (void)close(file);
        line[got] = 0;
        strip(line);
        (void)snprintf(path, sizeof path, "%s/%s", folder, line);
        if (line[0] != 0 && line[0] != '/') (void)dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    if (listing != NULL) (void)closedir(listing);
}

/* Loads one library; NULL, or why it cannot be used. */
static const char *load(const char *name) {
    static char why[512];
    load_beside(name);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        (void)snprintf(why, sizeof why, "%.500s", error == NULL ? "it cannot be loaded" : error);
        return why;
    }
    /* Pixel phones hand functions out only through this one. */
    void *(*pointer)(const char *) = NULL;
    void (*enable)(void) = NULL;
    void *symbol = dlsym(library, "loadOpenCLPointer");
    memcpy(&pointer, &symbol, sizeof pointer);
    symbol = dlsym(library, "enableOpenCL");
    memcpy(&enable, &symbol, sizeof enable);
    if (pointer != NULL && enable != NULL) enable();
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        symbol = pointer != NULL ? pointer(functions[i].name) : dlsym(library, functions[i].name);
        if (symbol == NULL && !may_lack(functions[i].name)) {
            (void)snprintf(why, sizeof why, "%.400s has no function %s", name, functions[i].name);
            return why;
        }
        memcpy((char *)&cl + functions[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

static void add_device(cl_platform_id platform, cl_device_id id, bool gpu) {
    struct device *one = &devices[device_count++];
    one->platform = platform;
    one->id = id;
    one->gpu = gpu;
    one->unified = device_number(id, 0x1035) != 0;
    device_text(id, 0x102B, one->name, sizeof one->name);
    device_text(id, 0x102D, one->driver, sizeof one->driver);
    platform_text(platform, CL_PLATFORM_NAME, one->platform_name, sizeof one->platform_name);
    platform_text(platform, CL_PLATFORM_VERSION, one->platform_version, sizeof one->platform_version);
    if (strncmp(one->platform_name, "Portable Computing Language", 27) == 0) name_processor(id);
}

/* Lists the devices of all platforms; NULL, or why there are none. */
static const char *list_devices(void) {
    static char why[128];
    cl_platform_id platforms[16];
    cl_device_id ids[64];
    cl_uint platform_total = 0, count = 0;
    cl_int code = cl.GetPlatformIDs(16, platforms, &platform_total);
    if (code != 0 || platform_total == 0) {
        (void)snprintf(why, sizeof why, "it has no platform: %s", cl_error(code));
        return why;
    }
    platform_total = platform_total > 16 ? 16 : platform_total;
    devices = need((size_t)platform_total * 64, sizeof *devices);
    for (int gpu = 1; gpu >= 0; --gpu)
        for (cl_uint p = 0; p < platform_total; ++p) {
            if (cl.GetDeviceIDs(platforms[p], 0xFFFFFFFF, 64, ids, &count) != 0) continue;
            for (cl_uint d = 0; d < count && d < 64; ++d)
                if (((device_number(ids[d], 0x1000) & CL_DEVICE_TYPE_CPU) == 0) == (gpu == 1))
                    add_device(platforms[p], ids[d], gpu == 1);
        }
    return device_count > 0 ? NULL : "its platforms have no device";
}

/* Whether the linker's message says that there is no such library. If one that it needs is missing, the message names
 * that one, or says by whom it is needed. */
static bool is_absent(const char *name, const char *why) {
    return strstr(why, name) != NULL && strstr(why, "needed by") == NULL &&
           (strstr(why, "No such file") != NULL || strstr(why, "not found") != NULL);
}

bool open_opencl(const char *library) {
    static bool tried;
    static char kept[sizeof problem];
    if (device_count > 0) return true;
    if (tried) return failed("%s", kept);
    tried = true;
    if (library == NULL) library = getenv("HANDHELD_OPENCL");
    struct bytes tries = {0}, absent = {0}; /* Most names are absent on most phones, and need no sentence each. */
    const char *const given[] = {library, NULL};
    for (const char *const *name = library == NULL ? libraries : given; *name != NULL; ++name) {
        const char *why = load(*name);
        if (why == NULL) why = list_devices();
        if (why == NULL) {
            (void)snprintf(opencl_library, sizeof opencl_library, "%s", *name);
            free(tries.data);
            free(absent.data);
            return true;
        }
        if (is_absent(*name, why)) say(&absent, "%s%s", absent.length == 0 ? "" : ", ", *name);
        else say(&tries, "%s%s: %.300s", tries.length == 0 ? "" : "; ", *name, why);
    }
    if (absent.length > 0) {
        put(&absent, "", 1);
        say(&tries, "%snot there: %s", tries.length == 0 ? "" : "; ", (const char *)absent.data);
    }
    put(&tries, "", 1);
    (void)failed("no OpenCL device was found (%.6000s). Try: install the driver of the device, or name its library with "
                 "--opencl LIB or HANDHELD_OPENCL",
                 tries.data);
    memcpy(kept, problem, sizeof kept);
    free(tries.data);
    free(absent.data);
    return false;
}
