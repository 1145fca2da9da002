/* Preloaded into a server, this stands between it and the disk:
 *
 *   SYNC_SHIM_FAIL   a path; once that file exists, every fsync and fdatasync fails with EIO
 *   SYNC_SHIM_DELAY  a path; while that file exists, every one takes 300 ms longer
 *   SYNC_SHIM_LOG    a path; after each success, a line "<size of the file> <its path>" is added
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int present(const char *variable) {
    const char *path = getenv(variable);
    return path != NULL && access(path, F_OK) == 0;
}

static void write_down(int fd, long long size) {
    const char *log = getenv("SYNC_SHIM_LOG");
    if (log == NULL)
        return;
    char link[64], path[4096], line[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    int written = snprintf(line, sizeof line, "%lld %s\n", size, path);
    int out = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0 || write(out, line, (size_t)written) != written)
        abort();
    close(out);
}

static int shimmed(int fd, long number) {
    if (present("SYNC_SHIM_DELAY")) {
        struct timespec delay = {0, 300 * 1000 * 1000};
        nanosleep(&delay, NULL);
    }
    if (present("SYNC_SHIM_FAIL")) {
        errno = EIO;
        return -1;
    }
    struct stat before;
    if (fstat(fd, &before) != 0)
        return -1;
    int result = (int)syscall(number, fd);
    if (result == 0)
        write_down(fd, (long long)before.st_size);
    return result;
}

int fsync(int fd) { return shimmed(fd, SYS_fsync); }
int fdatasync(int fd) { return shimmed(fd, SYS_fdatasync); }
