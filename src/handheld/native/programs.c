/* programs.c: builds the programs of a plan and keeps their binaries in FOLDER/binaries, so that the next start does not
 * compile.
 *
 * A file holds its key (device, driver, platform, options, text) in full. The file's name is only a hash of the key, and
 * what was made for another text or another driver is never used. A binary that the driver refuses is built from source.
 *
 *     "HANDBIN1"  u64 bytes of the key  u64 bytes of the binary  u32 CRC-32 of key and binary  u32 zero  key  binary
 */
#include "session.h"

#define HEAD 32u
#define KEPT_BYTES ((uint64_t)256 << 20)
#define KEPT_FILES 4096
#define BINARY_LIMIT ((uint64_t)256 << 20)

static void make_key(const struct session *session, const struct plan_program *program, struct bytes *key) {
    const struct device *device = session->device;
    key->length = 0;
    put(key, device->name, strlen(device->name) + 1);
    put(key, device->driver, strlen(device->driver) + 1);
    put(key, device->platform_version, strlen(device->platform_version) + 1);
    put(key, session->plan.strings + program->options.offset, program->options.length);
    put(key, "", 1);
    put(key, session->plan.strings + program->text.offset, program->text.length);
}

static void file_name(const char *folder, const struct bytes *key, char *path, size_t space) {
    (void)snprintf(path, space, "%s/binaries/%016llx.bin", folder,
                   (unsigned long long)hash64(HASH_START, key->data, key->length));
}

/* The binary for this key, made with malloc; NULL if there is none. */
static unsigned char *load_binary(const char *path, const struct bytes *key, size_t *bytes) {
    unsigned char head[HEAD], *data = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    off_t size = lseek(file, 0, SEEK_END);
    if (lseek(file, 0, SEEK_SET) == 0 && read_all(file, head, HEAD, NULL) && memcmp(head, "HANDBIN1", 8) == 0 &&
        u64_at(head + 8) == key->length && u64_at(head + 16) > 0 && u64_at(head + 16) <= BINARY_LIMIT &&
        (uint64_t)size == HEAD + key->length + u64_at(head + 16)) {
        size_t total = (size_t)size - HEAD;
        data = malloc(total);
        if (data != NULL && (!read_all(file, data, total, NULL) || memcmp(data, key->data, key->length) != 0 ||
                             crc32_add(0, data, total) != u32_at(head + 24))) {
            free(data);
            data = NULL;
        }
    }
    (void)close(file);
    if (data == NULL) return NULL;
    *bytes = (size_t)u64_at(head + 16);
    memmove(data, data + key->length, *bytes);
    touch(path);
    return data;
}

/* Writes the binary of a program. That this fails (a full disk) only means that the next start compiles again. */
static void keep_binary(cl_program program, const char *path, const struct bytes *key) {
    size_t bytes = 0;
    if (cl.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != 0 || bytes == 0 ||
        bytes > BINARY_LIMIT)
        return;
    unsigned char *binary = malloc(bytes), head[HEAD] = "HANDBIN1";
    struct new_file made;
    if (binary != NULL && cl.GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == 0 &&
        begin_file(&made, path)) {
        uint64_t key_bytes = key->length, binary_bytes = bytes;
        uint32_t crc = crc32_add(crc32_add(0, key->data, key->length), binary, bytes);
        memcpy(head + 8, &key_bytes, 8);
        memcpy(head + 16, &binary_bytes, 8);
        memcpy(head + 24, &crc, 4);
        if (write_all(made.file, head, HEAD) && write_all(made.file, key->data, key->length) &&
            write_all(made.file, binary, bytes))
            (void)end_file(&made, false);
        else drop_file(&made);
    }
    free(binary);
}

static bool build_from_source(struct session *session, uint32_t index, const char *options, cl_program *program) {
    const struct plan_program *source = &session->plan.programs[index];
    const char *text = session->plan.strings + source->text.offset;
    size_t length = source->text.length;
    cl_int code = 0;
    *program = cl.CreateProgramWithSource(session->context, 1, &text, &length, &code);
    if (code == 0) code = cl.BuildProgram(*program, 1, &session->device->id, options, NULL, NULL);
    if (code == 0) return true;
    char kernel[128] = "", *log = NULL;
    size_t log_bytes = 0;
    for (uint32_t i = 0; i < session->plan.launch_count && kernel[0] == 0; ++i)
        if (session->plan.launches[i].program == index)
            (void)copy_text(&session->plan, session->plan.launches[i].kernel, kernel, sizeof kernel);
    if (*program != NULL &&
        cl.GetProgramBuildInfo(*program, session->device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &log_bytes) == 0 &&
        log_bytes > 0 && (log = calloc(log_bytes + 1, 1)) != NULL)
        (void)cl.GetProgramBuildInfo(*program, session->device->id, CL_PROGRAM_BUILD_LOG, log_bytes, log, NULL);
    (void)failed("%s could not build program %u (kernel %s): %s. Try: handheld doctor --conformance, which tells what its "
                 "driver can build. Its compiler says: %.4000s",
                 session->device->name, index, kernel, cl_error(code), log == NULL ? "nothing" : log);
    free(log);
    return false;
}

static bool build_from_binary(struct session *session, const unsigned char *binary, size_t bytes, const char *options,
                              cl_program *program) {
    cl_int code = 0, status = 0;
    *program = cl.CreateProgramWithBinary(session->context, 1, &session->device->id, &bytes, &binary, &status, &code);
    if (code == 0 && status == 0 && cl.BuildProgram(*program, 1, &session->device->id, options, NULL, NULL) == 0) return true;
    if (code == 0 && *program != NULL) (void)cl.ReleaseProgram(*program);
    *program = NULL;
    return false;
}

static bool build_one(struct session *session, uint32_t index, const char *folder, struct bytes *key, bool *kept) {
    const struct plan_program *source = &session->plan.programs[index];
    char options[1024], path[1200];
    if (!copy_text(&session->plan, source->options, options, sizeof options)) return failed("options are too long");
    if (folder != NULL) {
        size_t bytes = 0;
        make_key(session, source, key);
        file_name(folder, key, path, sizeof path);
        unsigned char *binary = load_binary(path, key, &bytes);
        bool ok = binary != NULL && build_from_binary(session, binary, bytes, options, &session->programs[index]);
        free(binary);
        if (ok) {
            ++session->from_cache;
            return true;
        }
    }
    if (!build_from_source(session, index, options, &session->programs[index])) return false;
    if (folder != NULL) {
        keep_binary(session->programs[index], path, key);
        *kept = true;
    }
    return true;
}

bool build_programs(struct session *session, const char *folder, progress report) {
    uint32_t count = session->plan.program_count;
    struct bytes key = {0};
    char path[1100];
    bool ok = true, kept = false;
    session->programs = need((size_t)count + 1, sizeof(cl_program));
    if (folder != NULL) {
        (void)snprintf(path, sizeof path, "%s/binaries", folder);
        if (!make_folder(path)) folder = NULL;
    }
    for (uint32_t i = 0; ok && i < count; ++i) {
        if (report != NULL) report("building", i, count);
        ok = build_one(session, i, folder, &key, &kept);
    }
    if (report != NULL && ok && count > 0) report("building", count, count);
    if (kept) keep_newest(path, ".bin", KEPT_FILES, KEPT_BYTES);
    free(key.data);
    return ok;
}

void free_programs(struct session *session) {
    for (uint32_t i = 0; session->bound != NULL && i < session->plan.launch_count; ++i)
        if (session->bound[i].kernel != NULL) (void)cl.ReleaseKernel(session->bound[i].kernel);
    for (uint32_t i = 0; session->programs != NULL && i < session->plan.program_count; ++i)
        if (session->programs[i] != NULL) (void)cl.ReleaseProgram(session->programs[i]);
    free(session->bound);
    free(session->programs);
    session->bound = NULL;
    session->programs = NULL;
}
