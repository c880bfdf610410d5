/* Lets chosen system calls of a process fail: LD_PRELOAD, with the control file in TIERMQ_FAULTS.
 *
 * The control file is mapped; a test writes to it while the process runs. Only files below `prefix` are meant.
 *
 *     0        4        8        12        16 … 272
 *     +--------+--------+--------+---------+--------+
 *     | calls  | error  | every  | happened| prefix |    native i32; `calls` is a set of the bits below
 *     +--------+--------+--------+---------+--------+
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { SYNC = 1, WRITE = 2, SHORT = 4, RESERVE = 8, OPEN = 16 };

struct control {
    int calls, error, every, happened;
    char prefix[256];
};

static struct control *control;
static int asked;

static struct control *the_control(void) {
    const char *path = getenv("TIERMQ_FAULTS");
    if (control == NULL && path != NULL) {
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
        int file = real(path, O_RDWR);
        if (file >= 0) {
            void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (map != MAP_FAILED) control = map;
            close(file);
        }
    }
    return control;
}

static int is_due(int call, const char *path) {
    struct control *now = the_control();
    if (now == NULL || !(now->calls & call) || strncmp(path, now->prefix, strlen(now->prefix)) != 0) return 0;
    if (__sync_fetch_and_add(&asked, 1) % (now->every > 0 ? now->every : 1)) return 0;
    __sync_fetch_and_add(&now->happened, 1);
    return 1;
}

static int fails(int call, int file) {
    char link[64], path[PATH_MAX];
    struct control *now = the_control();
    if (now == NULL || !(now->calls & call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_due(call, path);
}

#define REAL(name) __typeof__(name) *real = dlsym(RTLD_NEXT, #name)
#define FAIL return errno = control->error, -1

int fsync(int file) { REAL(fsync); if (fails(SYNC, file)) FAIL; return real(file); }
int fdatasync(int file) { REAL(fdatasync); if (fails(SYNC, file)) FAIL; return real(file); }

int msync(void *at, size_t length, int flags) {
    REAL(msync);
    struct control *now = the_control();
    if (now != NULL && is_due(SYNC, now->prefix)) FAIL;
    return real(at, length, flags);
}

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (fails(WRITE, file)) FAIL;
    return real(file, data, size > 1 && fails(SHORT, file) ? size / 2 : size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    if (fails(WRITE, file)) FAIL;
    return real(file, data, size > 1 && fails(SHORT, file) ? size / 2 : size, at);
}

int posix_fallocate64(int file, off64_t at, off64_t length) {
    REAL(posix_fallocate64);
    return fails(RESERVE, file) ? control->error : real(file, at, length);
}

int ftruncate64(int file, off64_t length) { REAL(ftruncate64); if (fails(RESERVE, file)) FAIL; return real(file, length); }
