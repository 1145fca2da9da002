/* Preloaded into a process, this writes down, in their order and with their data, all changes that
 * the process makes to the files of one folder, and can make them fail. What is written down has
 * the form that recording.py reads.
 *
 *   DISK_RECORD_FOLDER, DISK_RECORD_LOG   record from the start, as disk_record(folder, log) does
 *   DISK_FAIL="what error after count"    as disk_fail(what, error, after, count) does
 *
 * The index of a write-ahead log (-shm) is mapped into memory, and made anew after a crash: it is
 * left out. What is changed through a mapping or another process is not seen.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, UNLINK, RENAME, NOTE, FAILED };
enum { FAIL_WRITES = 1, FAIL_SYNCS = 2, FAIL_OPENS = 4, FAIL_REPORTS = 8 };
enum { MOST_FILES = 65536 };

struct header {
    uint32_t kind;
    uint32_t flag; /* OPEN: 1 if the file is new; FAILED: the error */
    uint64_t file; /* its inode */
    uint64_t offset;
    uint64_t length; /* of what follows */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static size_t folder_length;
static int log_fd = -1;
static uint64_t file_of[MOST_FILES];
static int fail_what, fail_error;
static long fail_after, fail_count;
static int torn; /* the write that fails next was begun by the call before */

static void put(uint32_t kind, uint32_t flag, uint64_t file, uint64_t offset, const void *data,
                uint64_t length) {
    if (log_fd < 0)
        return;
    struct header header = {kind, flag, file, offset, length};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, length}};
    if (syscall(SYS_writev, log_fd, parts, 2) != (long)(sizeof header + length))
        abort();
}

/* The name of a file within the folder, "." for the folder itself, NULL for anything else. */
static const char *within(int directory, const char *path) {
    static __thread char whole[8192];
    if (log_fd < 0)
        return NULL;
    if (path[0] != '/') {
        char here[4096], link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(directory == AT_FDCWD ? "/proc/self/cwd" : link, here, 4095);
        if (length < 0)
            return NULL;
        here[length] = '\0';
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    if (strncmp(path, folder, folder_length) != 0)
        return NULL;
    path += folder_length;
    if (path[0] == '\0')
        return ".";
    if (path[0] != '/')
        return NULL;
    size_t length = strlen(path);
    if (length >= 4 && strcmp(path + length - 4, "-shm") == 0)
        return NULL;
    return path + 1;
}

static uint64_t tracked(int fd) {
    return log_fd >= 0 && fd >= 0 && fd < MOST_FILES ? file_of[fd] : 0;
}

/* Shall this operation fail? Sets errno if so. */
static int fails(int what, uint64_t file) {
    if (!(fail_what & what) || fail_count == 0)
        return 0;
    if (fail_after > 0) {
        fail_after--;
        return 0;
    }
    if (fail_count > 0)
        fail_count--;
    put(FAILED, (uint32_t)fail_error, file, 0, NULL, 0);
    errno = fail_error;
    return 1;
}

static int opened(int directory, const char *path, int flags, mode_t mode) {
    const char *name = within(directory, path);
    if (name == NULL) {
        int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
        if (fd >= 0 && fd < MOST_FILES)
            file_of[fd] = 0;
        return fd;
    }
    pthread_mutex_lock(&mutex);
    int new = (flags & O_CREAT) && syscall(SYS_faccessat, directory, path, F_OK) != 0;
    int fd = -1;
    if (!new || !fails(FAIL_OPENS, 0))
        fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    struct stat about;
    if (fd >= 0 && fd < MOST_FILES && fstat(fd, &about) == 0) {
        file_of[fd] = about.st_ino;
        put(OPEN, (uint32_t)new, about.st_ino, 0, name, strlen(name));
        if (flags & O_TRUNC)
            put(TRUNCATE, 0, about.st_ino, 0, NULL, 0);
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

/* One write; at -1 it is where the file's own position is. */
static ssize_t written(int fd, const void *data, size_t length, off_t offset) {
    uint64_t file = tracked(fd);
    if (file == 0)
        return offset < 0 ? syscall(SYS_write, fd, data, length)
                          : syscall(SYS_pwrite64, fd, data, length, offset);
    pthread_mutex_lock(&mutex);
    ssize_t result = -1;
    /* A disk that becomes full takes the first half of a write, and refuses the rest. */
    int full = (fail_what & FAIL_WRITES) && fail_count != 0 && fail_after == 0;
    if (full && fail_error == ENOSPC && !torn && length >= 1024) {
        torn = 1;
        length /= 2;
    } else if (fails(FAIL_WRITES, file)) {
        torn = 0;
        length = 0;
    }
    int misreported = 0;
    if (length > 0 && fails(FAIL_REPORTS, file))
        misreported = 1; /* the data is written, and an error is returned */
    if (length > 0) {
        off_t where = offset;
        if (offset < 0) {
            int append = fcntl(fd, F_GETFL) & O_APPEND;
            where = lseek(fd, 0, append ? SEEK_END : SEEK_CUR);
            result = syscall(SYS_write, fd, data, length);
        } else {
            result = syscall(SYS_pwrite64, fd, data, length, offset);
        }
        if (result > 0)
            put(WRITE, 0, file, (uint64_t)where, data, (uint64_t)result);
    }
    if (misreported) {
        errno = fail_error;
        result = -1;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static int cut(int fd, off_t size) {
    uint64_t file = tracked(fd);
    if (file == 0)
        return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&mutex);
    int result = -1;
    struct stat about;
    int grows = fstat(fd, &about) == 0 && about.st_size < size;
    if (!grows || !fails(FAIL_WRITES, file))
        result = (int)syscall(SYS_ftruncate, fd, size);
    if (result == 0)
        put(TRUNCATE, 0, file, (uint64_t)size, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

static int allocated(int fd, off_t offset, off_t length) {
    uint64_t file = tracked(fd);
    if (file == 0)
        return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
    pthread_mutex_lock(&mutex);
    int result = EIO;
    struct stat about;
    if (fails(FAIL_WRITES, file) || syscall(SYS_fallocate, fd, 0, offset, length) != 0)
        result = errno;
    else
        result = 0;
    if (result == 0 && fstat(fd, &about) == 0)
        put(TRUNCATE, 0, file, (uint64_t)about.st_size, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

static int synced(int fd, long number) {
    uint64_t file = tracked(fd);
    if (file == 0)
        return (int)syscall(number, fd);
    pthread_mutex_lock(&mutex);
    int result = -1;
    if (!fails(FAIL_SYNCS, file))
        result = (int)syscall(number, fd);
    if (result == 0)
        put(SYNC, 0, file, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

static int removed(int directory, const char *path, int flags) {
    const char *name = within(directory, path);
    if (name == NULL)
        return (int)syscall(SYS_unlinkat, directory, path, flags);
    pthread_mutex_lock(&mutex);
    int result = (int)syscall(SYS_unlinkat, directory, path, flags);
    if (result == 0)
        put(UNLINK, 0, 0, 0, name, strlen(name));
    pthread_mutex_unlock(&mutex);
    return result;
}

static int renamed(const char *from, const char *to) {
    char both[8192];
    const char *name = within(AT_FDCWD, from);
    size_t length = 0;
    if (name != NULL)
        length = (size_t)snprintf(both, sizeof both, "%s", name) + 1;
    const char *other = within(AT_FDCWD, to);
    if (name == NULL || other == NULL)
        return (int)syscall(SYS_rename, from, to);
    length += (size_t)snprintf(both + length, sizeof both - length, "%s", other);
    pthread_mutex_lock(&mutex);
    int result = (int)syscall(SYS_rename, from, to);
    if (result == 0)
        put(RENAME, 0, 0, 0, both, length);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* What the process may be told. */

int disk_record(const char *which, const char *log) {
    pthread_mutex_lock(&mutex);
    if (log_fd >= 0)
        syscall(SYS_close, log_fd);
    memset(file_of, 0, sizeof file_of);
    snprintf(folder, sizeof folder, "%s", which);
    folder_length = strlen(folder);
    log_fd = -1;
    if (log != NULL)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log,
                              O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int result = log == NULL || log_fd >= 0 ? 0 : errno;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* `after` operations of the kinds `what` succeed, then `count` fail; -1: all. */
void disk_fail(int what, int error, long after, long count) {
    pthread_mutex_lock(&mutex);
    fail_what = what;
    fail_error = error;
    fail_after = after;
    fail_count = count;
    torn = 0;
    pthread_mutex_unlock(&mutex);
}

void disk_note(const char *text) {
    pthread_mutex_lock(&mutex);
    put(NOTE, 0, 0, 0, text, strlen(text));
    pthread_mutex_unlock(&mutex);
}

__attribute__((constructor)) static void begin(void) {
    const char *which = getenv("DISK_RECORD_FOLDER"), *log = getenv("DISK_RECORD_LOG");
    if (which != NULL && log != NULL && disk_record(which, log) != 0)
        abort();
    const char *failing = getenv("DISK_FAIL");
    int what, error;
    long after, count;
    if (failing != NULL && sscanf(failing, "%d %d %ld %ld", &what, &error, &after, &count) == 4)
        disk_fail(what, error, after, count);
}

/* The calls of the C library, in each of their names. */

static mode_t mode_in(int flags, va_list arguments) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define WITH_MODE(flags)                                                                           \
    va_list arguments;                                                                             \
    va_start(arguments, flags);                                                                    \
    mode_t mode = mode_in(flags, arguments);                                                       \
    va_end(arguments)

int open(const char *path, int flags, ...) {
    WITH_MODE(flags);
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    WITH_MODE(flags);
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    WITH_MODE(flags);
    return opened(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    WITH_MODE(flags);
    return opened(directory, path, flags | O_LARGEFILE, mode);
}

int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }

int close(int fd) {
    if (fd >= 0 && fd < MOST_FILES)
        file_of[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

ssize_t write(int fd, const void *data, size_t length) { return written(fd, data, length, -1); }

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return written(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return written(fd, data, length, offset);
}

int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t length) { return allocated(fd, offset, length); }
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    return allocated(fd, offset, length);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int rename(const char *from, const char *to) { return renamed(from, to); }
int unlinkat(int directory, const char *path, int flags) {
    return removed(directory, path, flags);
}
