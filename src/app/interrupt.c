/* interrupt.c: see the header. A signal handler gets no argument from us, so the flags of the two
 * signals are the program's mutable globals. */
#include "app/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pending, resized;

static void on_sigint(int sig)
{
    (void)sig;
    pending = pending ? 2 : 1;
}

void interrupt_install(void)
{
    /* Without SA_RESTART, so that Ctrl-C ends a blocking read at the prompt. */
    const struct sigaction action = {.sa_handler = on_sigint};
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_pending(void)
{
    return pending != 0;
}

bool interrupt_insists(void)
{
    return pending > 1;
}

void interrupt_clear(void)
{
    pending = 0;
}

static void on_sigwinch(int sig)
{
    (void)sig;
    resized = 1;
}

void interrupt_watch_window(void)
{
    const struct sigaction action = {.sa_handler = on_sigwinch, .sa_flags = SA_RESTART};
    sigaction(SIGWINCH, &action, NULL);
}

bool interrupt_take_resize(void)
{
    const bool was = resized != 0;
    resized = 0;
    return was;
}

bool interrupt_wait_input(int fd)
{
    /* The signal is unblocked only inside ppoll, so none is lost between the check and the wait. */
    sigset_t mask, before;
    struct pollfd input = {.fd = fd, .events = POLLIN};
    int n = 0;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGWINCH);
    sigprocmask(SIG_BLOCK, &mask, &before);
    while (!pending && !resized && n == 0) {
        n = ppoll(&input, 1, NULL, &before);
        if (n < 0 && errno == EINTR) n = 0;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return !pending;
}
