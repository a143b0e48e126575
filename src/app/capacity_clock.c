/* capacity_clock.c: see the header. The modelled clock is a function of an engine's counters and of
 * its idle time, so its times do not depend on the machine. */
#include "app/capacity.h"

#include "base/workers.h"

#include <math.h>
#include <time.h>

void capacity_clock_use(struct capacity_clock *c, sac_engine *engine)
{
    if (engine) sac_engine_use_clock(engine, capacity_clock_now, c);
    c->engine = engine;
    c->idle_us = 0;
}

/* Microseconds for an amount at a speed in 1e9 per second. */
static double us_of(double amount, double giga_s)
{
    return amount / giga_s * 1e-3;
}

uint64_t capacity_clock_now(void *clock)
{
    const struct capacity_clock *c = clock;
    if (!c->is_model) return clock_us();
    if (!c->engine) return 1;
    const sac_engine_stats s = sac_engine_get_stats(c->engine);
    const sac_tier_stats t = sac_tier_get_stats(c->engine);
    const sac_reads *r = &s.reads;
    const double rows = (double)(r->n_prompt_tok + r->n_decode_tok);
    const double bytes = (double)s.weight_bytes_read + (double)r->kv_bytes_read +
                         (double)r->choose_bytes_read + (double)r->build_bytes_read;
    const double us = us_of(bytes, c->read_gb_s) + us_of(rows * c->flop_per_row, c->gflop_s) +
                      us_of((double)t.bytes_fetched, c->fetch_gb_s);
    return 1 + (uint64_t)ceil(us + c->idle_us);
}

void capacity_clock_wait(struct capacity_clock *c, uint64_t until_us)
{
    const uint64_t now = capacity_clock_now(c);
    if (until_us <= now) return;
    const uint64_t left = until_us - now;
    if (c->is_model) {
        c->idle_us += (double)left;
        return;
    }
    /* A signal ends the wait early; the caller checks the clock again. */
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(left / 1000000),
                                       .tv_nsec = (long)(left % 1000000) * 1000},
                    NULL);
}
