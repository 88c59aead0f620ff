/* Stands between a process and the C library (LD_PRELOAD), and sees every change of files below one folder: writes, syncs,
   creations, truncations, removals, renames, new folders. It can write them down, and at one of them kill the process, do
   half of it, or let it fail.

   The process chooses by calling faults_begin and faults_plan; before that nothing happens. Syncs are written down and
   not done: what a power cut leaves is computed from the record, and a process that is killed needs none. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL, TEAR, FAIL_ONCE, FULL_FROM };
#define MOST_FILES 4096

static char root[PATH_MAX], target[PATH_MAX];   /* what is recorded, and the part of it where faults are */
static char *paths[MOST_FILES];                 /* of the open files below root */
static int record = -1, with_data, action;
static long point, planned;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);

__attribute__((constructor)) static void find_real(void) {
    real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_pwrite = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
}

/* ------------------------------------------------------------------ what the process calls */

void faults_begin(const char *folder, const char *within, int record_to, int data) {
    snprintf(root, sizeof root, "%s", folder);
    snprintf(target, sizeof target, "%s", within);
    record = record_to;
    with_data = data;
}

/* At the `at`-th change from now on (1 is the first). */
void faults_plan(int what, long at) {
    pthread_mutex_lock(&mutex);
    action = what;
    point = 0;
    planned = at;
    pthread_mutex_unlock(&mutex);
}

/* -> whether the planned change has come. */
int faults_happened(void) { return action != NOTHING && point >= planned; }

/* ------------------------------------------------------------------ what is watched */

static int is_below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) && (path[length] == 0 || path[length] == '/');
}

/* -> the path as it is from the root on; 0 if it is not watched. */
static int watched(const char *path, char *absolute) {
    if (!root[0] || !path) return 0;
    if (path[0] == '/') snprintf(absolute, PATH_MAX, "%s", path);
    else {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(absolute, PATH_MAX, "%.2000s/%.2000s", here, path);
    }
    return is_below(absolute, root);
}

static const char *path_of(int file) { return file >= 0 && file < MOST_FILES ? paths[file] : NULL; }

static void note(char kind, const char *path, uint64_t offset, const void *data, uint32_t size) {
    struct __attribute__((packed)) { char kind; uint16_t path_size; uint64_t offset; uint32_t size; } head;
    if (record < 0) return;
    if (!with_data && kind == 'W' && is_below(path, target)) size = 0;
    head.kind = kind; head.path_size = strlen(path); head.offset = offset; head.size = size;
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path_size}, {(void *)data, size}};
    if (writev(record, parts, size ? 3 : 2) < 0) abort();
}

/* What is to become of a change: 0 it is made, -1 it fails with errno set, 1 half of it is made (writes only). */
static int fate(char kind, const char *path, int file, const void *data, size_t size, int64_t offset) {
    if (!is_below(path, target)) return 0;
    point++;
    if (action == NOTHING || point < planned) return 0;
    if (action == FULL_FROM) {
        if (!strchr("WCD", kind)) return 0;
        if (kind == 'W' && point == planned && size > 1) return 1;
        errno = ENOSPC;
        return -1;
    }
    if (point > planned) return 0;
    if (action == FAIL_ONCE) { errno = EIO; return -1; }
    if (action == TEAR && kind == 'W' && size > 1) {
        if (offset < 0) real_write(file, data, size / 2);
        else real_pwrite(file, data, size / 2, offset);
    }
    kill(getpid(), SIGKILL);
    return -1;
}

/* ------------------------------------------------------------------ the calls */

#define LOCK pthread_mutex_lock(&mutex)
#define UNLOCK(result) do { int kept = errno; pthread_mutex_unlock(&mutex); errno = kept; return result; } while (0)

static int open_it(int (*real)(const char *, int, ...), const char *path, int flags, int mode) {
    char absolute[PATH_MAX];
    if (!watched(path, absolute)) return real(path, flags, mode);
    LOCK;
    struct stat status;
    int is_there = !stat(absolute, &status);
    char kind = !is_there && (flags & O_CREAT) ? 'C' : is_there && (flags & O_TRUNC) ? 'T' : 0;
    if (kind && fate(kind, absolute, -1, NULL, 0, -1)) UNLOCK(-1);
    int file = real(path, flags, mode);
    if (file >= 0 && file < MOST_FILES) {
        free(paths[file]);
        paths[file] = strdup(absolute);
        if (kind) note(kind, absolute, 0, NULL, 0);
    }
    UNLOCK(file);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        return open_it(real, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name, same) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        return folder == AT_FDCWD || path[0] == '/' ? same(path, flags, mode) : real(folder, path, flags, mode); \
    }
OPENAT(openat, open)
OPENAT(openat64, open64)

int close(int file) {
    REAL(close);
    if (path_of(file)) {
        pthread_mutex_lock(&mutex);
        free(paths[file]);
        paths[file] = NULL;
        pthread_mutex_unlock(&mutex);
    }
    return real(file);
}

static ssize_t write_it(int file, const void *data, size_t size, int64_t offset) {
    const char *path = path_of(file);
    if (!path) return offset < 0 ? real_write(file, data, size) : real_pwrite(file, data, size, offset);
    LOCK;
    int half = fate('W', path, file, data, size, offset);
    if (half < 0) UNLOCK(-1);
    if (half) size /= 2;
    int64_t start = offset;
    if (offset < 0) start = lseek(file, 0, fcntl(file, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t done = offset < 0 ? real_write(file, data, size) : real_pwrite(file, data, size, offset);
    if (done > 0) note('W', path, start, data, done);
    UNLOCK(done);
}
ssize_t write(int file, const void *data, size_t size) { return write_it(file, data, size, -1); }
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return write_it(file, data, size, offset); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) { return write_it(file, data, size, offset); }

#define TRUNCATE(name, offset_t) \
    int name(int file, offset_t size) { \
        REAL(name); \
        const char *path = path_of(file); \
        if (!path) return real(file, size); \
        LOCK; \
        if (fate('T', path, -1, NULL, 0, -1)) UNLOCK(-1); \
        int result = real(file, size); \
        if (!result) note('T', path, size, NULL, 0); \
        UNLOCK(result); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(name, kind) \
    int name(int file) { \
        REAL(name); \
        const char *path = path_of(file); \
        if (!path) return real(file); \
        LOCK; \
        if (fate(kind, path, -1, NULL, 0, -1)) UNLOCK(-1); \
        note(kind, path, 0, NULL, 0); \
        UNLOCK(0); \
    }
SYNC(fsync, 'F')
SYNC(fdatasync, 'S')

int unlink(const char *path) {
    REAL(unlink);
    char absolute[PATH_MAX];
    if (!watched(path, absolute)) return real(path);
    LOCK;
    if (fate('U', absolute, -1, NULL, 0, -1)) UNLOCK(-1);
    int result = real(path);
    if (!result) note('U', absolute, 0, NULL, 0);
    UNLOCK(result);
}

int rename(const char *path, const char *new_path) {
    REAL(rename);
    char absolute[PATH_MAX], new_absolute[PATH_MAX];
    if (!watched(path, absolute) || !watched(new_path, new_absolute)) return real(path, new_path);
    LOCK;
    if (fate('N', absolute, -1, NULL, 0, -1)) UNLOCK(-1);
    int result = real(path, new_path);
    if (!result) note('N', absolute, 0, new_absolute, strlen(new_absolute));
    UNLOCK(result);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    char absolute[PATH_MAX];
    if (!watched(path, absolute)) return real(path, mode);
    LOCK;
    if (fate('D', absolute, -1, NULL, 0, -1)) UNLOCK(-1);
    int result = real(path, mode);
    if (!result) note('D', absolute, 0, NULL, 0);
    UNLOCK(result);
}
