/* libc.h: every declaration of the C library that the runner uses, and nothing else.
 *
 * On Linux the declarations come from the system's headers. An Android build without an NDK has no headers: it defines
 * HANDHELD_BARE and declares the same names by hand in libc_bare.h. So that this stays possible, the runner uses only
 * what is listed here: no FILE, no threads, no thread-local storage, no getopt. errno is used in this file alone.
 *
 * Every .c file includes this header first.
 */
#ifndef HANDHELD_LIBC_H
#define HANDHELD_LIBC_H

#ifdef HANDHELD_BARE
#include "libc_bare.h"
#else

#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64

#include <dirent.h>   /* opendir readdir closedir */
#include <dlfcn.h>    /* dlopen dlsym dlerror */
#include <errno.h>
#include <fcntl.h>    /* open fcntl */
#include <poll.h>     /* poll ppoll */
#include <signal.h>   /* signal kill */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>    /* snprintf vsnprintf rename */
#include <stdlib.h>   /* malloc calloc realloc free getenv setenv exit strtoull strtod qsort */
#include <string.h>   /* memcpy memmove memset memcmp memchr strlen strcmp strncmp strchr strrchr strstr strerror */
#include <sys/mman.h> /* mmap munmap */
#include <sys/socket.h> /* socketpair send recv */
#include <sys/stat.h> /* mkdir stat */
#include <sys/types.h>
#include <sys/utsname.h> /* uname */
#include <sys/wait.h>    /* waitpid */
#include <time.h>        /* clock_gettime nanosleep */
#include <unistd.h>      /* read write close lseek fsync ftruncate unlink rmdir dup dup2 pipe fork _exit getpid sysconf */

#endif

static inline int error_number(void) { return errno; }
static inline bool was_interrupted(void) { return errno == EINTR; }
static inline bool was_missing(void) { return errno == ENOENT; }
static inline bool was_there(void) { return errno == EEXIST; }
static inline bool was_full(void) { return errno == ENOSPC; }
static inline int64_t page_bytes(void) { return (int64_t)sysconf(_SC_PAGESIZE); }
static inline int64_t processors(void) { return (int64_t)sysconf(_SC_NPROCESSORS_ONLN); }

/* The time of the last change of a file in seconds, and its size; false if there is no such file. */
static inline bool file_age(const char *path, int64_t *changed_s, uint64_t *bytes) {
    struct stat found;
    if (stat(path, &found) != 0) return false;
    *changed_s = (int64_t)found.st_mtime;
    *bytes = (uint64_t)found.st_size;
    return true;
}

/* Sets the time of the last change to now. */
static inline void touch(const char *path) { (void)utimensat(AT_FDCWD, path, NULL, 0); }

#endif
