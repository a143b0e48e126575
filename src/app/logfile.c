/* logfile.c: see the header. stderr becomes a stream of our own, which writes each text to the old
 * one and to the file. A failed write to the file is reported once, and the work continues, because
 * only a copy is lost. */
#include "app/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Belongs to the process, like stderr. */
static struct {
    int fd;
    bool failed;
} log_file = {.fd = -1};

static bool write_all(int fd, const char *s, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(fd, s, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        s += done;
        n -= (size_t)done;
    }
    return true;
}

static ssize_t on_write(void *cookie, const char *s, size_t n)
{
    static const char told[] = "(the log file takes no more)\n";
    (void)cookie;
    const int before = errno;
    const bool is_bar = s[0] == '\r';
    if (!is_bar && !log_file.failed && !write_all(log_file.fd, s, n)) {
        log_file.failed = true;
        (void)write_all(STDERR_FILENO, told, sizeof told - 1);
    }
    const bool shown = write_all(STDERR_FILENO, s, n);
    errno = before;
    return shown ? (ssize_t)n : 0;
}

sac_status logfile_open(const char *path, sac_error *err)
{
    log_file.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (log_file.fd < 0)
        return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    FILE *both = fopencookie(NULL, "w", (cookie_io_functions_t){.write = on_write});
    if (!both) return error_set(err, SAC_ERR_MEMORY, "out of memory for a log file");
    setvbuf(both, NULL, _IOLBF, BUFSIZ);
    stderr = both;
    return SAC_OK;
}
