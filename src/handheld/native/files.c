/* Files of the target that match patterns. Only an element with `*` or `?` needs its folder to be listed: on many
 * phones a file may be read although its folder may not be listed. */
#include "libc.h"

#include "files.h"

/* Numbers of errors on Linux, which Android has too. */
enum { NO_SUCH_FILE = 2, NO_FOLDER = 20, IS_FOLDER = 21 };

struct walk {
    char path[PATH_MOST]; /* what is looked at now, with the root */
    size_t root;          /* length of the root in `path`, which answers leave out */
    unsigned char *data;
    size_t bytes, room;
    const char *problem;
};

/* ── one file ─────────────────────────────────────────────────────────────────────────────── */

int file_join(char out[PATH_MOST], const char *root, const char *path, size_t length) {
    size_t before = strlen(root);
    while (before && root[before - 1] == '/') before--;
    if (before + length + 1 > PATH_MOST) return 0;
    memcpy(out, root, before);
    memcpy(out + before, path, length);
    out[before + length] = 0;
    return 1;
}

static unsigned reason(unsigned char *into, int error) {
    int length = snprintf((char *)into, 256, "%d %s", error, strerror(error));
    if (length < 0) length = 0;
    if (length > 255) length = 255;
    return (unsigned)length | FILE_UNREADABLE;
}

unsigned file_read(const char *path, unsigned char *into, unsigned most) {
    if (most > FILE_MOST) most = FILE_MOST;
    /* A pipe would wait for a writer without O_NONBLOCK; files of /proc and /sys do not mind. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return reason(into, error_number());
    unsigned count = 0;
    while (count < most) {
        ssize_t got = read(file, into + count, most - count);
        if (got < 0 && was_interrupted()) continue;
        if (got < 0) {
            unsigned result = reason(into, error_number());
            close(file);
            return result;
        }
        if (got == 0) break;
        count += (unsigned)got;
    }
    close(file);
    return count;
}

/* ── the answer ───────────────────────────────────────────────────────────────────────────── */

static void put(struct walk *walk, const void *data, size_t bytes) {
    if (walk->problem) return;
    if (walk->bytes + bytes > FILES_MOST) {
        walk->problem = "the files that match these patterns hold more than 16 MiB. Try: fewer patterns";
        return;
    }
    if (walk->bytes + bytes > walk->room) {
        size_t room = walk->room ? walk->room : 4096;
        while (room < walk->bytes + bytes) room *= 2;
        unsigned char *more = realloc(walk->data, room);
        if (!more) {
            walk->problem = "there is not enough memory for the files";
            return;
        }
        walk->data = more, walk->room = room;
    }
    memcpy(walk->data + walk->bytes, data, bytes);
    walk->bytes += bytes;
}

static void put_file(struct walk *walk, unsigned length, const unsigned char *content) {
    uint32_t sizes[2] = {(uint32_t)strlen(walk->path + walk->root), length};
    put(walk, sizes, sizeof sizes);
    put(walk, walk->path + walk->root, sizes[0]);
    put(walk, content, length & ~FILE_UNREADABLE);
}

static int is_absent(unsigned length, const unsigned char *content) {
    if (!(length & FILE_UNREADABLE)) return 0;
    int error = atoi((const char *)content);
    return error == NO_SUCH_FILE || error == NO_FOLDER || error == IS_FOLDER;
}

static void take_file(struct walk *walk) {
    static unsigned char content[FILE_MOST];
    unsigned length = file_read(walk->path, content, FILE_MOST);
    if (!is_absent(length, content)) put_file(walk, length, content);
}

/* ── patterns ─────────────────────────────────────────────────────────────────────────────── */

/* Whether a name matches a pattern of `length` bytes. After a `*`, the match is tried again one character later. */
static int matches(const char *pattern, size_t length, const char *name) {
    const char *end = pattern + length, *star = NULL, *again = NULL;
    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern, again = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++, name++;
        } else if (star) {
            pattern = star, name = ++again;
        } else {
            return 0;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

static void expand(struct walk *walk, size_t done, const char *pattern, size_t left);

static void list(struct walk *walk, size_t done, const char *element, size_t length, const char *rest, size_t left) {
    DIR *folder = opendir(done ? walk->path : "/");
    if (!folder) {
        unsigned char text[256];
        unsigned result = reason(text, error_number());
        if (!is_absent(result, text)) put_file(walk, result, text);
        return;
    }
    struct dirent *entry;
    while (!walk->problem && (entry = readdir(folder))) {
        const char *name = entry->d_name;
        size_t size = strlen(name);
        if ((name[0] == '.' && element[0] != '.') || !matches(element, length, name)) continue;
        if (!strcmp(name, ".") || !strcmp(name, "..") || done + 1 + size + 1 > PATH_MOST) continue;
        walk->path[done] = '/';
        memcpy(walk->path + done + 1, name, size + 1);
        expand(walk, done + 1 + size, rest, left);
        walk->path[done] = 0;
    }
    closedir(folder);
}

/* Looks for the rest of a pattern below walk->path, of which `done` bytes are used. */
static void expand(struct walk *walk, size_t done, const char *pattern, size_t left) {
    while (left && !walk->problem) {
        while (left && *pattern == '/') pattern++, left--;
        size_t length = 0;
        int wild = 0;
        for (; length < left && pattern[length] != '/'; length++) wild |= pattern[length] == '*' || pattern[length] == '?';
        if (!length) break;
        if (wild) {
            list(walk, done, pattern, length, pattern + length, left - length);
            return;
        }
        if (done + 1 + length + 1 > PATH_MOST) {
            walk->problem = "a path of a pattern is longer than 1,000 bytes";
            return;
        }
        walk->path[done] = '/';
        memcpy(walk->path + done + 1, pattern, length);
        done += 1 + length;
        walk->path[done] = 0;
        pattern += length, left -= length;
    }
    if (!walk->problem) take_file(walk);
}

const char *files_answer(const char *root, const char *patterns, size_t length, unsigned char **answer, size_t *bytes) {
    struct walk walk = {.data = NULL};
    if (!file_join(walk.path, root, "", 0)) return "the root folder's path is longer than 1,000 bytes";
    walk.root = strlen(walk.path);
    if (memchr(patterns, 0, length)) walk.problem = "a pattern contains a zero byte";
    while (length && !walk.problem) {
        const char *end = memchr(patterns, '\n', length);
        size_t line = end ? (size_t)(end - patterns) : length;
        if (line && *patterns != '/') walk.problem = "a pattern must begin with /";
        walk.path[walk.root] = 0;
        if (line && !walk.problem) expand(&walk, walk.root, patterns, line);
        patterns += line + (end != NULL), length -= line + (end != NULL);
    }
    if (walk.problem) {
        free(walk.data);
        return walk.problem;
    }
    *answer = walk.data, *bytes = walk.bytes;
    return NULL;
}
