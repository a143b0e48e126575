/* subprocess.c: see the header. The input is in memory to which only the child and we have a
 * handle, so the program can seek in it, no file name is on its command line, and nothing is left
 * behind. */
#include "text/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOLD_BYTES 4096u

/* Both ends of two pipes, and the input; -1: closed. */
struct ends {
    int in, out[2], told[2];
};

static void close_end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void close_all(struct ends *e)
{
    close_end(&e->in);
    for (int i = 0; i < 2; i++) {
        close_end(&e->out[i]);
        close_end(&e->told[i]);
    }
}

static bool fill(int fd, const char *in, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(fd, in, n);
        if (done < 0) return false;
        in += done;
        n -= (size_t)done;
    }
    return lseek(fd, 0, SEEK_SET) == 0;
}

static sac_status open_ends(struct ends *e, const char *in, size_t n, sac_error *err)
{
    *e = (struct ends){-1, {-1, -1}, {-1, -1}};
    e->in = memfd_create("document", MFD_CLOEXEC);
    if (e->in < 0 || !fill(e->in, in, n) || pipe2(e->out, O_CLOEXEC) || pipe2(e->told, O_CLOEXEC))
        return error_set(err, SAC_ERR_IO, "cannot prepare a program's input: %s", strerror(errno));
    return SAC_OK;
}

/* Returns 0 or an errno. Restores default handling of signals that this process ignores. */
static int spawn(pid_t *out, const char *const argv[], const struct ends *e)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t usual;
    extern char **environ;
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGXFSZ);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_adddup2(&files, e->in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, e->out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, e->told[1], STDERR_FILENO);
    posix_spawnattr_setsigdefault(&attr, &usual);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    const int failed =
        posix_spawnp(out, argv[0], &files, &attr, (char *const *)(uintptr_t)argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

static void set_limits(pid_t pid, const struct subprocess_limits *l)
{
    const struct rlimit memory = {l->memory_bytes, l->memory_bytes};
    const struct rlimit seconds = {l->seconds, l->seconds + 1};
    const struct rlimit none = {0, 0};
    (void)prlimit(pid, RLIMIT_AS, &memory, NULL);
    (void)prlimit(pid, RLIMIT_CPU, &seconds, NULL);
    (void)prlimit(pid, RLIMIT_CORE, &none, NULL);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads available bytes; closes the descriptor at its end. */
static void read_some(struct strbuf *out, int *fd, size_t most)
{
    char chunk[65536];
    const ssize_t n = read(*fd, chunk, sizeof chunk);
    if (n > 0)
        strbuf_add(out, chunk, out->n + (size_t)n > most ? most - out->n : (size_t)n);
    else if (n == 0 || errno != EINTR)
        close_end(fd);
}

/* Reads both pipes to their ends. SAC_ERR_FORMAT: a limit is exceeded. */
static sac_status listen(struct subprocess *c, struct ends *e, const struct subprocess_limits *l,
                         const char *name, sac_error *err)
{
    const int64_t end_ms = now_ms() + (int64_t)l->seconds * 1000;
    while (e->out[0] >= 0 || e->told[0] >= 0) {
        struct pollfd fds[2] = {{e->out[0], POLLIN, 0}, {e->told[0], POLLIN, 0}};
        const int64_t left_ms = end_ms - now_ms();
        if (left_ms <= 0)
            return error_set(err, SAC_ERR_FORMAT, "%s took more than %u s", name, l->seconds);
        if (poll(fds, 2, (int)left_ms) < 0) continue; /* interrupted by a signal */
        if (fds[0].revents) read_some(&c->out, &e->out[0], l->output_bytes + 1);
        if (fds[1].revents) read_some(&c->told, &e->told[0], TOLD_BYTES);
        if (c->out.n > l->output_bytes)
            return error_set(err, SAC_ERR_FORMAT, "more than %zu MiB of text",
                             l->output_bytes >> 20);
        if (c->out.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a document");
    }
    return SAC_OK;
}

sac_status subprocess_run(struct subprocess *c, const char *const argv[], const char *in, size_t n,
                          const struct subprocess_limits *limits, sac_error *err)
{
    struct ends e;
    pid_t pid;
    int how = 0;
    sac_status status = open_ends(&e, in, n, err);
    const int failed = status == SAC_OK ? spawn(&pid, argv, &e) : 0;
    if (failed)
        status = error_set(err, failed == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO,
                           "cannot start %s: %s", argv[0], strerror(failed));
    if (status == SAC_OK) {
        set_limits(pid, limits);
        close_end(&e.in);
        close_end(&e.out[1]);
        close_end(&e.told[1]);
        status = listen(c, &e, limits, argv[0], err);
        if (status != SAC_OK) kill(pid, SIGKILL);
        while (waitpid(pid, &how, 0) < 0 && errno == EINTR) continue;
        if (status == SAC_OK && WIFSIGNALED(how))
            status =
                error_set(err, SAC_ERR_FORMAT, "%s was ended by signal %d", argv[0], WTERMSIG(how));
        c->code = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
    }
    close_all(&e);
    strbuf_add(&c->out, "", 0);
    strbuf_add(&c->told, "", 0);
    return status;
}

void subprocess_deinit(struct subprocess *c)
{
    strbuf_deinit(&c->out);
    strbuf_deinit(&c->told);
}
