/* libc_bare.h: the declarations of Android's C library (arm64, API level 26) that the runner uses, written by hand.
 *
 * A build for Android without an NDK has no headers. Types, constants and structs below are those of Android's C
 * library, bionic, which on arm64 are those of the Linux kernel. runners/android.py lists the same functions with the
 * API level in which each appeared; the link fails where a name is missing there.
 */
#ifndef HANDHELD_LIBC_BARE_H
#define HANDHELD_LIBC_BARE_H

#ifndef __aarch64__
#error "libc_bare.h describes arm64 only"
#endif

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef long ssize_t;
typedef int64_t off_t;
typedef int32_t pid_t;
typedef uint32_t mode_t;
typedef uint32_t nfds_t;
typedef int clockid_t;
typedef int64_t time_t;

struct timespec {
    int64_t tv_sec;
    long tv_nsec;
};
struct timeval {
    int64_t tv_sec;
    long tv_usec;
};
struct pollfd {
    int fd;
    short events, revents;
};
struct utsname {
    char sysname[65], nodename[65], release[65], version[65], machine[65], domainname[65];
};
struct dirent {
    uint64_t d_ino;
    int64_t d_off;
    uint16_t d_reclen;
    uint8_t d_type;
    char d_name[256];
};
struct stat {
    uint64_t st_dev, st_ino;
    uint32_t st_mode, st_nlink, st_uid, st_gid;
    uint64_t st_rdev, pad1;
    int64_t st_size;
    int32_t st_blksize, pad2;
    int64_t st_blocks;
    struct timespec st_atim, st_mtim, st_ctim;
    uint32_t unused[2];
};
#define st_mtime st_mtim.tv_sec
#define S_ISDIR(mode) (((mode) & 0170000) == 0040000)
#define S_ISREG(mode) (((mode) & 0170000) == 0100000)
typedef struct DIR DIR;

enum { SEEK_SET, SEEK_CUR, SEEK_END };
enum { O_RDONLY, O_WRONLY, O_RDWR };
enum {
    O_CREAT = 0100,
    O_EXCL = 0200,
    O_TRUNC = 01000,
    O_APPEND = 02000,
    O_NONBLOCK = 04000,
    O_DIRECTORY = 040000,
    O_NOFOLLOW = 0100000,
    O_CLOEXEC = 02000000
};
enum { F_GETFD = 1, F_SETFD, F_GETFL, F_SETFL };
enum { FD_CLOEXEC = 1, AT_FDCWD = -100 };
enum { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO };
enum { POLLIN = 1, POLLOUT = 4, POLLERR = 8, POLLHUP = 16, POLLNVAL = 32 };
enum { DT_UNKNOWN = 0, DT_DIR = 4, DT_REG = 8, DT_LNK = 10 };
enum { RTLD_LOCAL = 0, RTLD_LAZY = 1, RTLD_NOW = 2, RTLD_GLOBAL = 0x100 };
enum { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID };
enum { SIGHUP = 1, SIGINT = 2, SIGKILL = 9, SIGPIPE = 13, SIGTERM = 15, SIGCHLD = 17 };
enum { WNOHANG = 1 };
#define WIFEXITED(status) (((status) & 0x7f) == 0)
#define WEXITSTATUS(status) (((status) >> 8) & 0xff)
#define WIFSIGNALED(status) (((status) & 0x7f) + 1 >= 2)
#define WTERMSIG(status) ((status) & 0x7f)
enum { PROT_NONE, PROT_READ = 1, PROT_WRITE = 2, MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20 };
#define MAP_FAILED ((void *)-1)
enum { AF_UNIX = 1, SOCK_STREAM = 1, SOCK_DGRAM = 2, SOCK_SEQPACKET = 5, SOCK_CLOEXEC = O_CLOEXEC, MSG_NOSIGNAL = 0x4000 };
enum { PR_SET_PDEATHSIG = 1, PR_SET_NAME = 15 };
enum { _SC_PAGESIZE = 0x27, _SC_NPROCESSORS_ONLN = 0x61 }; /* bionic's numbers, which are not glibc's */

typedef void (*sighandler_t)(int);
#define SIG_DFL ((sighandler_t)0)
#define SIG_IGN ((sighandler_t)1)

enum { EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EEXIST = 17, ENOTDIR = 20 };
enum { EISDIR = 21, EINVAL = 22, ENOSPC = 28, EPIPE = 32, ENAMETOOLONG = 36 };
int *__errno(void);
#define errno (*__errno())

void *dlopen(const char *, int);
void *dlsym(void *, const char *);
char *dlerror(void);
int dlclose(void *);

int open(const char *, int, ...);
int close(int);
ssize_t read(int, void *, size_t);
ssize_t write(int, const void *, size_t);
ssize_t pread(int, void *, size_t, off_t);
ssize_t pwrite(int, const void *, size_t, off_t);
off_t lseek(int, off_t, int);
int fsync(int);
int ftruncate(int, off_t);
int fcntl(int, int, ...);
int dup(int);
int dup2(int, int);
int pipe(int[2]);
int poll(struct pollfd *, nfds_t, int);
int ppoll(struct pollfd *, nfds_t, const struct timespec *, const void *signals); /* NULL: no change of signals */
int socketpair(int, int, int, int[2]);
ssize_t send(int, const void *, size_t, int);
ssize_t recv(int, void *, size_t, int);
int unlink(const char *);
int rmdir(const char *);
int mkdir(const char *, mode_t);
int rename(const char *, const char *);
int stat(const char *, struct stat *);
int fstat(int, struct stat *);
int chmod(const char *, mode_t);
int access(const char *, int);
int utimensat(int, const char *, const struct timespec *, int);
char *getcwd(char *, size_t);
char *realpath(const char *, char *);
ssize_t readlink(const char *, char *, size_t);
DIR *opendir(const char *);
struct dirent *readdir(DIR *);
int closedir(DIR *);
int fnmatch(const char *, const char *, int);

void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void free(void *);
int posix_memalign(void **, size_t, size_t);
void *mmap(void *, size_t, int, int, int, off_t);
int munmap(void *, size_t);
int madvise(void *, size_t, int);

pid_t fork(void);
pid_t waitpid(pid_t, int *, int);
pid_t getpid(void);
pid_t getppid(void);
int setpgid(pid_t, pid_t);
pid_t setsid(void);
int kill(pid_t, int);
sighandler_t signal(int, sighandler_t);
int prctl(int, ...);
int nice(int);
void exit(int) __attribute__((noreturn));
void _exit(int) __attribute__((noreturn));
void abort(void) __attribute__((noreturn));
char *getenv(const char *);
int setenv(const char *, const char *, int);
int unsetenv(const char *);
long sysconf(int);
int uname(struct utsname *);
int clock_gettime(clockid_t, struct timespec *);
int nanosleep(const struct timespec *, struct timespec *);
int usleep(uint32_t);

int snprintf(char *, size_t, const char *, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *, size_t, const char *, va_list) __attribute__((format(printf, 3, 0)));
unsigned long strtoul(const char *, char **, int);
unsigned long long strtoull(const char *, char **, int);
int atoi(const char *);
long strtol(const char *, char **, int);
long long strtoll(const char *, char **, int);
double strtod(const char *, char **);
void qsort(void *, size_t, size_t, int (*)(const void *, const void *));

void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
void *memchr(const void *, int, size_t);
void *memmem(const void *, size_t, const void *, size_t);
size_t strlen(const char *);
size_t strnlen(const char *, size_t);
int strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t);
char *strchr(const char *, int);
char *strrchr(const char *, int);
char *strstr(const char *, const char *);
char *strdup(const char *);
char *strerror(int);

#endif
