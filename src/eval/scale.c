/* scale.c: see the header. Ticks are computed as integer multiples of a step and never by adding
 * the step up, so that 0.3 is 0.3. */
#include "eval/scale.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* The step, 1, 2 or 5 times a power of ten, that divides `span` into about n_want parts. */
static double linear_step(double span, unsigned n_want)
{
    const double raw = span / n_want, power = pow(10, floor(log10(raw)));
    const double lead = raw / power;
    return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

static double base_of(const struct scale *s)
{
    return s->form == SCALE_LOG2 ? 2 : 10;
}

/* The floor of the exponent, where rounding errors below a whole number do not count. */
static double floor_exp(double base, double v)
{
    return floor(log(v) / log(base) + 1e-9);
}

static double ceil_exp(double base, double v)
{
    return ceil(log(v) / log(base) - 1e-9);
}

void scale_round(struct scale *s, unsigned n_want)
{
    assert(isfinite(s->lo) && isfinite(s->hi) && s->lo <= s->hi);
    if (s->form != SCALE_LINEAR) {
        assert(s->lo > 0);
        const double base = base_of(s);
        const bool narrow = s->form == SCALE_LOG10 && s->hi < 100 * s->lo;
        const double lo = pow(base, floor_exp(base, s->lo)), hi = pow(base, ceil_exp(base, s->hi));
        const double over = s->lo / lo * (1 + 1e-9), under = hi / s->hi * (1 + 1e-9);
        s->lo = lo * (!narrow || over < 2 ? 1 : over < 5 ? 2 : 5);
        s->hi = hi / (!narrow || under < 2 ? 1 : under < 5 ? 2 : 5);
        if (s->hi <= s->lo) s->hi = s->lo * base;
        return;
    }
    if (s->hi <= s->lo) s->hi = s->lo + (s->lo != 0 ? fabs(s->lo) * 0.1 : 1);
    const double step = linear_step(s->hi - s->lo, n_want);
    s->lo = step * floor(s->lo / step + 1e-9);
    s->hi = step * ceil(s->hi / step - 1e-9);
}

double scale_at(const struct scale *s, double value)
{
    double share;
    if (s->form == SCALE_LINEAR)
        share = (value - s->lo) / (s->hi - s->lo);
    else
        share = log(value / s->lo) / log(s->hi / s->lo);
    return s->at_lo + share * (s->at_hi - s->at_lo);
}

static size_t linear_ticks(const struct scale *s, unsigned n_want, double *tick)
{
    const double step = linear_step(s->hi - s->lo, n_want);
    const double first = ceil(s->lo / step - 1e-9), last = floor(s->hi / step + 1e-9);
    size_t n = 0;
    for (double i = first; i <= last && n < SCALE_MAX_TICK; i += 1) tick[n++] = i * step;
    return n;
}

static size_t log_ticks(const struct scale *s, unsigned n_want, double *tick)
{
    const double base = base_of(s);
    const double first = ceil_exp(base, s->lo), last = floor_exp(base, s->hi);
    const double every = fmax(1, ceil((last - first) / n_want));
    const bool between = s->form == SCALE_LOG10 && s->hi <= 1000 * s->lo;
    size_t n = 0;
    for (double e = first - 1; e <= last && n < SCALE_MAX_TICK; e += between ? 1 : every) {
        if (!between && e < first) e = first;
        for (int lead = 1; lead <= (between ? 5 : 1); lead = lead == 1 ? 2 : lead == 2 ? 5 : 6) {
            const double v = lead * pow(base, e);
            if (v >= s->lo * (1 - 1e-9) && v <= s->hi * (1 + 1e-9) && n < SCALE_MAX_TICK)
                tick[n++] = v;
        }
    }
    return n;
}

size_t scale_ticks(const struct scale *s, unsigned n_want, double tick[SCALE_MAX_TICK])
{
    assert(n_want > 0 && s->hi > s->lo);
    return s->form == SCALE_LINEAR ? linear_ticks(s, n_want, tick) : log_ticks(s, n_want, tick);
}

/* At most four significant digits and no trailing zeros; very small and very large values as
 * "2e-5". */
static void plain_label(double v, const char *unit, char buf[32])
{
    if (v == 0 || (fabs(v) >= 0.999e-3 && fabs(v) < 1e5)) {
        snprintf(buf, 32, "%.4g%s", v, unit);
        return;
    }
    const double exponent = floor(log10(fabs(v)) + 1e-9);
    snprintf(buf, 32, "%.3ge%.0f%s", v / pow(10, exponent), exponent, unit);
}

void scale_label(const struct scale *s, double value, char buf[32])
{
    const double v = fabs(value) < 1e-12 * (s->hi - s->lo) ? 0 : value; /* no "-0" */
    switch (s->unit) {
    case SCALE_PERCENT: plain_label(100 * v, " %", buf); return;
    case SCALE_MS:
        if (v >= 1000)
            plain_label(v / 1000, " s", buf);
        else
            plain_label(v, v == 0 ? "" : " ms", buf);
        return;
    case SCALE_TOKENS:
        if (v >= 1024 && fmod(v, 1024) == 0) {
            const bool mega = fmod(v, 1024 * 1024) == 0;
            snprintf(buf, 32, "%.0f%s", v / (mega ? 1024 * 1024 : 1024), mega ? "M" : "K");
            return;
        }
        snprintf(buf, 32, "%.0f", v);
        return;
    case SCALE_PLAIN: break;
    }
    plain_label(v, "", buf);
}
