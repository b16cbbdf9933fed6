/* base.h: what every file of the runner shares: errors, growing text, files, the clock, checksums.
 *
 * Errors: a function that can fail returns false after failed(), which keeps one sentence in `problem`. The caller
 * passes false on; the command or the protocol prints the sentence. Nothing is retried silently.
 */
#ifndef HANDHELD_BASE_H
#define HANDHELD_BASE_H

#include "libc.h"

#define RUNNER_VERSION "1.0"
#define PROTOCOL 1
#ifndef HANDHELD_SOURCE
#define HANDHELD_SOURCE "unknown" /* The builder sets it to a hash of the sources. */
#endif

#define LIKE_PRINTF(text, rest) __attribute__((format(printf, text, rest)))

extern char problem[8192];
bool failed(const char *format, ...) LIKE_PRINTF(1, 2);
/* The text of the last error of the C library. */
const char *reason(void);

/* Memory for small things. Without it the process ends, with a sentence on stderr. */
void *need(size_t count, size_t size);
/* Grows an array so that `count` more elements fit, and returns it. */
void *grow(void *array, size_t *space, size_t used, size_t count, size_t size);

/* Bytes that grow. */
struct bytes {
    char *data;
    size_t length, space;
};
void put(struct bytes *to, const void *data, size_t length);
void say(struct bytes *to, const char *format, ...) LIKE_PRINTF(2, 3);
/* A JSON string with its quotes. Bytes that are not UTF-8 become '?'. */
void say_json(struct bytes *to, const char *text, size_t length);
bool is_utf8(const char *text, size_t length);

/* Reading and writing all of it. read_all returns false at the end of the file too; *got tells how much there was. */
bool read_all(int file, void *data, size_t length, size_t *got);
bool write_all(int file, const void *data, size_t length);
void tell(const char *format, ...) LIKE_PRINTF(1, 2);  /* a line on stderr, for people */
void print(const char *format, ...) LIKE_PRINTF(1, 2); /* text on stdout */

/* A new file beside `path`; end_file gives it its name in one step, so that no reader ever sees half of it. */
struct new_file {
    int file;
    char path[1024], temporary[1100];
};
bool begin_file(struct new_file *made, const char *path);
bool end_file(struct new_file *made, bool durable);
void drop_file(struct new_file *made);
bool make_folder(const char *path);
/* Deletes the files of a folder that end with `suffix`, the least recently used first, beyond both limits. */
void keep_newest(const char *folder, const char *suffix, size_t files, uint64_t bytes);

int64_t clock_ns(void); /* CLOCK_MONOTONIC */
void nap_us(long microseconds);
uint32_t crc32_add(uint32_t crc, const void *data, size_t length); /* zlib's; start with 0 */
uint64_t hash64(uint64_t hash, const void *data, size_t length);   /* FNV-1a; start with HASH_START */
#define HASH_START 14695981039346656037u

static inline uint32_t u32_at(const void *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}
static inline uint64_t u64_at(const void *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}
static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

#endif
