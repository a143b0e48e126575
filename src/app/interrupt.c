/* interrupt.c: see the header. A signal handler has no argument of ours, so its flag is the one
 * mutable global of the program. */
#include "app/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pending;

static void on_sigint(int sig)
{
    (void)sig;
    pending = 1;
}

void interrupt_install(void)
{
    /* No SA_RESTART: a line that is being read at the prompt must end. */
    const struct sigaction action = {.sa_handler = on_sigint};
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_pending(void)
{
    return pending != 0;
}

void interrupt_clear(void)
{
    pending = 0;
}
