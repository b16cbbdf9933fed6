/* base.c: see base.h. */
#include "base.h"

char problem[8192];

bool failed(const char *format, ...) {
    char text[sizeof problem]; /* The old problem may be one of the arguments. */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(problem, text, sizeof problem);
    return false;
}

const char *reason(void) { return strerror(error_number()); }

void *need(size_t count, size_t size) {
    void *memory = count == 0 || size > SIZE_MAX / count ? NULL : calloc(count, size);
    if (memory == NULL && count > 0) {
        tell("the runner needs %zu times %zu bytes, and the system has no memory left. Try: a smaller batch", count,
             size);
        exit(70);
    }
    return memory;
}

void *grow(void *array, size_t *space, size_t used, size_t count, size_t size) {
    if (used + count <= *space) return array;
    size_t wanted = used + count < 16 ? 16 : (used + count) * 2;
    void *larger = wanted > SIZE_MAX / size ? NULL : realloc(array, wanted * size);
    if (larger == NULL) {
        tell("the runner needs %zu bytes, and the system has no memory left. Try: a smaller batch", wanted * size);
        exit(70);
    }
    *space = wanted;
    return larger;
}

/* ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void put(struct bytes *to, const void *data, size_t length) {
    if (length == 0) return;
    to->data = grow(to->data, &to->space, to->length, length, 1);
    memcpy(to->data + to->length, data, length);
    to->length += length;
}

void say(struct bytes *to, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(to, text, length < 0 ? 0 : (size_t)least((uint64_t)length, sizeof text - 1));
}

/* The number of bytes of the UTF-8 character at `text`; 0 if it is none. */
static size_t character(const unsigned char *text, size_t length) {
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = text[0];
    size_t count = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (count == 0 || count > length) return 0;
    uint32_t code = count == 1 ? first : first & (0x7Fu >> count);
    for (size_t i = 1; i < count; ++i) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (text[i] & 0x3Fu);
    }
    if (code < smallest[count] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 0;
    return count;
}

bool is_utf8(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        size_t count = character((const unsigned char *)text + i, length - i);
        if (count == 0) return false;
        i += count;
    }
    return true;
}

void say_json(struct bytes *to, const char *text, size_t length) {
    put(to, "\"", 1);
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t count = character((const unsigned char *)text + i, length - i);
        if (count == 0) put(to, "?", 1);
        else if (c == '"' || c == '\\') say(to, "\\%c", c);
        else if (c < 0x20) say(to, "\\u%04x", c);
        else put(to, text + i, count);
        i += count == 0 ? 1 : count;
    }
    put(to, "\"", 1);
}

/* ── files ────────────────────────────────────────────────────────────────────────────────────────────────────── */

bool read_all(int file, void *data, size_t length, size_t *got) {
    size_t done = 0;
    while (done < length) {
        ssize_t count = read(file, (char *)data + done, length - done);
        if (count < 0 && was_interrupted()) continue;
        if (count <= 0) break;
        done += (size_t)count;
    }
    if (got != NULL) *got = done;
    return done == length;
}

bool write_all(int file, const void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t count = write(file, (const char *)data + done, length - done);
        if (count < 0 && was_interrupted()) continue;
        if (count <= 0) return false;
        done += (size_t)count;
    }
    return true;
}

void tell(const char *format, ...) {
    char text[sizeof problem + 64];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text - 1, format, args);
    va_end(args);
    size_t count = length < 0 ? 0 : (size_t)least((uint64_t)length, sizeof text - 2);
    text[count] = '\n';
    (void)write_all(2, text, count + 1);
}

void print(const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)write_all(1, text, length < 0 ? 0 : (size_t)least((uint64_t)length, sizeof text - 1));
}

bool begin_file(struct new_file *made, const char *path) {
    made->file = -1;
    if (strlen(path) >= sizeof made->path) return failed("the path %.200s... is too long", path);
    (void)snprintf(made->path, sizeof made->path, "%s", path);
    (void)snprintf(made->temporary, sizeof made->temporary, "%s.%d.new", path, (int)getpid());
    made->file = open(made->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (made->file < 0) return failed("%s cannot be written: %s. Try: another folder", path, reason());
    return true;
}

bool end_file(struct new_file *made, bool durable) {
    bool ok = !durable || fsync(made->file) == 0;
    if (close(made->file) != 0) ok = false;
    made->file = -1;
    if (ok && rename(made->temporary, made->path) == 0) return true;
    (void)failed("%s cannot be written: %s. Try: free some storage", made->path, reason());
    (void)unlink(made->temporary);
    return false;
}

void drop_file(struct new_file *made) {
    if (made->file >= 0) (void)close(made->file);
    made->file = -1;
    (void)unlink(made->temporary);
}

bool make_folder(const char *path) {
    if (mkdir(path, 0755) == 0 || was_there()) return true;
    return failed("the folder %s cannot be made: %s", path, reason());
}

struct kept_file {
    char name[128];
    int64_t changed_s;
    uint64_t bytes;
};

static int newest_first(const void *a, const void *b) {
    int64_t left = ((const struct kept_file *)a)->changed_s, right = ((const struct kept_file *)b)->changed_s;
    return left < right ? 1 : left > right ? -1 : 0;
}

void keep_newest(const char *folder, const char *suffix, size_t files, uint64_t bytes) {
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    struct kept_file *found = NULL;
    size_t count = 0, space = 0;
    char path[1200];
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        size_t length = strlen(entry->d_name), end = strlen(suffix);
        if (length < end || length >= sizeof found->name || strcmp(entry->d_name + length - end, suffix) != 0) continue;
        found = grow(found, &space, count, 1, sizeof *found);
        struct kept_file *one = &found[count];
        memcpy(one->name, entry->d_name, length + 1);
        (void)snprintf(path, sizeof path, "%s/%s", folder, one->name);
        if (file_age(path, &one->changed_s, &one->bytes)) ++count;
    }
    (void)closedir(listing);
    if (count > 0) qsort(found, count, sizeof *found, newest_first);
    uint64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
        total += found[i].bytes;
        if (i < files && total <= bytes) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, found[i].name);
        (void)unlink(path);
    }
    free(found);
}

/* ── clock and checksums ──────────────────────────────────────────────────────────────────────────────────────── */

int64_t clock_ns(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (int64_t)now.tv_sec * 1000000000 + (int64_t)now.tv_nsec;
}

void nap_us(long microseconds) {
    struct timespec nap = {microseconds / 1000000, microseconds % 1000000 * 1000};
    (void)nanosleep(&nap, NULL);
}

uint32_t crc32_add(uint32_t crc, const void *data, size_t length) {
    static uint32_t table[8][256]; /* Eight bytes at a time: a plan may have gigabytes of values. */
    const unsigned char *at = data;
    if (table[0][1] == 0) {
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
            table[0][i] = value;
        }
        for (int k = 1; k < 8; ++k)
            for (int i = 0; i < 256; ++i) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    }
    crc = ~crc;
    for (; length >= 8; length -= 8, at += 8) {
        uint32_t low = u32_at(at) ^ crc, high = u32_at(at + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; length > 0; --length, ++at) crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}

uint64_t hash64(uint64_t hash, const void *data, size_t length) {
    const unsigned char *at = data;
    for (size_t i = 0; i < length; ++i) hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}
