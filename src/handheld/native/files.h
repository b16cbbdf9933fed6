/* Files of the target: reads those that match patterns (FILES), and one file for the sampler. */
#ifndef HANDHELD_FILES_H
#define HANDHELD_FILES_H

#include <stddef.h>

enum {
    FILE_MOST = 64 * 1024,         /* bytes that are read of one file */
    FILES_MOST = 16 * 1024 * 1024, /* bytes of one answer */
    PATH_MOST = 1024,              /* bytes of a path, with the root and the zero at its end */
};

/* Set in a length when the file cannot be read; the content is then the reason: `13 Permission denied`. */
#define FILE_UNREADABLE 0x80000000u

/* Answers FILES. `patterns` has one absolute pattern per line, with `*` and `?` within a path element; they are looked
 * for under `root`. The answer is made with malloc. Returns NULL, or the sentence of an error. */
const char *files_answer(const char *root, const char *patterns, size_t length, unsigned char **answer, size_t *bytes);

/* Reads at most `most` bytes of a file into `into`, which must hold FILE_MOST bytes. Returns their number. On an error
 * the number has FILE_UNREADABLE set, and `into` holds the reason. */
unsigned file_read(const char *path, unsigned char *into, unsigned most);

/* Joins a root and an absolute path. Returns 0 if the result is longer than PATH_MOST. */
int file_join(char out[PATH_MOST], const char *root, const char *path, size_t length);

#endif
