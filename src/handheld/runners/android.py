"""The names of Android's libraries that the runner may call.

An NDK has libraries to link against. Without one, build.py makes libraries that hold these names and nothing else;
Android's linker finds the real ones. A name that is missing here is an error of the link, so the list is complete.
"""

from __future__ import annotations

#: The first API level with arm64. In bionic's libc.map.txt and libdl.map.txt, every name below has this level or none.
FIRST = 21

_LIBC = """
    __errno __libc_init _exit abort access atoi calloc chmod clock_gettime close closedir dup dup2 exit fcntl
    fnmatch fork free fstat fsync ftruncate getcwd getenv getpid getppid kill lseek madvise malloc memchr memcmp
    memcpy memmem memmove memset mkdir mmap munmap nanosleep nice open opendir pipe poll posix_memalign ppoll
    prctl pread pwrite qsort read readdir readlink realloc realpath recv rename rmdir send setenv setpgid setsid
    signal snprintf socketpair stat strchr strcmp strdup strerror strlen strncmp strnlen strrchr strstr strtod
    strtol strtoll strtoul strtoull sysconf uname unlink unsetenv usleep utimensat vsnprintf waitpid write
"""
_LIBDL = "dlclose dlerror dlopen dlsym"

#: library → name → the API level in which Android got it for arm64
NAMES: dict[str, dict[str, int]] = {
    "libc.so": dict.fromkeys(_LIBC.split(), FIRST),
    "libdl.so": dict.fromkeys(_LIBDL.split(), FIRST),
}
