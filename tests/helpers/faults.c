/* Calls that fail. Preloaded into a process, it counts the calls of chosen classes on files below a folder, and lets the n-th fail.
 *
 *     gcc -shared -fPIC -O2 -o faults.so faults.c -ldl
 *
 * fault_root(path) chooses the folder. fault_arm(classes, n, how) starts counting; fault_stop() stops and returns how many calls
 * there were, fault_fired() whether the n-th failed, fault_ways(i) which failures the i-th call can have. Nothing happens before
 * fault_arm.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, LINK = 16, UNLINK = 32, MKDIR = 64, READ = 128, MMAP = 256 };
enum { COUNT, EIO_ONCE, EIO_FOR_GOOD, FULL_ONCE, FULL_FOR_GOOD, SHORT, LIE, KILL };
enum { GO, FAIL, HALF, DO_AND_FAIL };
enum { CAN_FAIL = 1, CAN_BE_FULL = 2, CAN_BE_SHORT = 4, MOST = 1 << 14 };

static char root[PATH_MAX];
static size_t root_length;
static atomic_int classes, wanted, how, calls, fired;
static unsigned char ways[MOST];

void fault_root(const char *path) {
    strncpy(root, path, sizeof root - 1);
    root_length = strlen(root);
}

void fault_arm(int which, int n, int mode) {
    calls = 0;
    fired = 0;
    wanted = n;
    how = mode;
    classes = which;
}

int fault_stop(void) {
    classes = 0;
    return calls;
}

int fault_fired(void) { return fired; }

int fault_ways(int i) { return i >= 1 && i <= MOST ? ways[i - 1] : 0; }

static int below(const char *path) { return root_length && path && !strncmp(path, root, root_length); }

static int handle_below(int handle) {
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int at_below(int directory, const char *path) {
    if (path && path[0] == '/') return below(path);
    return directory == AT_FDCWD ? 0 : handle_below(directory);
}

/* What becomes of a call of this class; `divisible`: of bytes, more than one. */
static int fate(int class, int divisible) {
    if (!(classes & class)) return GO;
    int number = atomic_fetch_add(&calls, 1) + 1, mode = how;
    int full = mode == FULL_ONCE || mode == FULL_FOR_GOOD;
    int takes_room = class & (WRITE | OPEN | MKDIR | LINK | RENAME);
    if (number <= MOST) ways[number - 1] = CAN_FAIL | (takes_room ? CAN_BE_FULL : 0) | (divisible ? CAN_BE_SHORT : 0);
    if (mode == COUNT || number < wanted) return GO;
    if (number > wanted && mode != EIO_FOR_GOOD && mode != FULL_FOR_GOOD) return GO;
    if (mode == KILL) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    if (full && !takes_room) return GO;
    if (mode == SHORT && !divisible) return GO;
    if (number == wanted) fired = 1;
    errno = full ? ENOSPC : EIO;
    if (mode == SHORT) return HALF;
    return mode == LIE ? DO_AND_FAIL : FAIL;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define SIMPLE(type, name, class, inside, parameters, arguments) \
    type name parameters { \
        REAL(name); \
        if (!classes || !(inside)) return real arguments; \
        int f = fate(class, 0); \
        if (f == FAIL) return (type)-1; \
        type result = real arguments; \
        if (f == DO_AND_FAIL && result >= 0) { errno = EIO; return (type)-1; } \
        return result; \
    }

#define SIZED(type, name, class, parameters, whole, part) \
    type name parameters { \
        REAL(name); \
        if (!classes || !handle_below(handle)) return real whole; \
        int f = fate(class, size > 1); \
        if (f == FAIL) return (type)-1; \
        if (f == HALF) return real part; \
        type result = real whole; \
        if (f == DO_AND_FAIL && result >= 0) { errno = EIO; return (type)-1; } \
        return result; \
    }

SIZED(ssize_t, write, WRITE, (int handle, const void *body, size_t size), (handle, body, size), (handle, body, size / 2))
SIZED(ssize_t, pwrite, WRITE, (int handle, const void *body, size_t size, off_t at), (handle, body, size, at), (handle, body, size / 2, at))
SIZED(ssize_t, pwrite64, WRITE, (int handle, const void *body, size_t size, off64_t at), (handle, body, size, at), (handle, body, size / 2, at))
SIZED(ssize_t, read, READ, (int handle, void *body, size_t size), (handle, body, size), (handle, body, size / 2))
SIZED(ssize_t, pread, READ, (int handle, void *body, size_t size, off_t at), (handle, body, size, at), (handle, body, size / 2, at))
SIZED(ssize_t, pread64, READ, (int handle, void *body, size_t size, off64_t at), (handle, body, size, at), (handle, body, size / 2, at))
SIMPLE(ssize_t, writev, WRITE, handle_below(handle), (int handle, const struct iovec *parts, int count), (handle, parts, count))
SIMPLE(int, ftruncate, WRITE, handle_below(handle), (int handle, off_t size), (handle, size))
SIMPLE(int, ftruncate64, WRITE, handle_below(handle), (int handle, off64_t size), (handle, size))
SIMPLE(int, fsync, SYNC, handle_below(handle), (int handle), (handle))
SIMPLE(int, fdatasync, SYNC, handle_below(handle), (int handle), (handle))
SIMPLE(int, rename, RENAME, below(to), (const char *from, const char *to), (from, to))
SIMPLE(int, renameat, RENAME, at_below(other, to), (int one, const char *from, int other, const char *to), (one, from, other, to))
SIMPLE(int, link, LINK, below(to), (const char *from, const char *to), (from, to))
SIMPLE(int, linkat, LINK, at_below(other, to), (int one, const char *from, int other, const char *to, int flags), (one, from, other, to, flags))
SIMPLE(int, unlink, UNLINK, below(path), (const char *path), (path))
SIMPLE(int, unlinkat, UNLINK, at_below(directory, path), (int directory, const char *path, int flags), (directory, path, flags))
SIMPLE(int, rmdir, UNLINK, below(path), (const char *path), (path))
SIMPLE(int, mkdir, MKDIR, below(path), (const char *path, mode_t mode), (path, mode))

static int opening(int writes) { return writes ? OPEN : READ; }

#define OPENING(name, inside, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, int); \
            va_end(rest); \
        } \
        if (!classes || !(inside) || (flags & O_DIRECTORY)) return real arguments; \
        int f = fate(opening((flags & O_ACCMODE) != O_RDONLY), 0); \
        if (f == FAIL) return -1; \
        int result = real arguments; \
        if (f == DO_AND_FAIL && result >= 0) { close(result); errno = EIO; return -1; } \
        return result; \
    }

OPENING(open, below(path), (const char *path, int flags, ...), (path, flags, mode))
OPENING(open64, below(path), (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, at_below(directory, path), (int directory, const char *path, int flags, ...), (directory, path, flags, mode))
OPENING(openat64, at_below(directory, path), (int directory, const char *path, int flags, ...), (directory, path, flags, mode))

void *mmap(void *where, size_t size, int protection, int flags, int handle, off_t at) {
    REAL(mmap);
    if (!classes || handle < 0 || !handle_below(handle)) return real(where, size, protection, flags, handle, at);
    int f = fate(MMAP, 0);
    if (f == FAIL || f == DO_AND_FAIL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(where, size, protection, flags, handle, at);
}

void *mmap64(void *where, size_t size, int protection, int flags, int handle, off64_t at) {
    return mmap(where, size, protection, flags, handle, at);
}
