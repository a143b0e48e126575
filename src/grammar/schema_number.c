/* schema_number.c: see the header.
 *
 * Integers have at most 16 digits, so a model cannot generate digits forever. Numbers between
 * bounds are written without an exponent, with at most 15 significant digits: decimals of this
 * length keep their order when they become doubles, so a text that is less than a bound is also
 * less as a number.
 *
 * Fractions between bounds: the text is compared with a bound digit by digit. While all digits
 * equal the bound's, the text is tight; the first different digit decides, and the rest is free. */
#include "grammar/schema_number.h"

#include "base/strbuf.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 16u
#define WHOLE_MAX  9999999999999999 /* the largest integer with DIGITS_MAX digits */
#define EXACT_MAX  0x1p53
#define DECIMAL    15u /* significant digits that a double preserves */

/* ---- Digits ---- */

static void digit_range(struct strbuf *out, char lo, char hi)
{
    if (lo == hi)
        strbuf_addf(out, "\"%c\" ", lo);
    else
        strbuf_addf(out, "[%c-%c] ", lo, hi);
}

static void any_digits(struct strbuf *out, size_t min, size_t max)
{
    if (max == 0) return;
    strbuf_adds(out, "[0-9]");
    schema_writer_repeat(out, (double)min, (double)max);
}

static bool all_are(const char *digits, char c)
{
    for (; *digits; digits++)
        if (*digits != c) return false;
    return true;
}

/* Integers from lo to hi, which have the same number of digits; recursion is as deep as that. */
static void same_length(struct strbuf *out, const char *lo, const char *hi)
{
    const size_t n = strlen(lo);
    char end[DIGITS_MAX + 1];
    assert(n == strlen(hi) && n <= DIGITS_MAX);
    if (n == 0) return;
    if (all_are(lo, '0') && all_are(hi, '9')) {
        any_digits(out, n, n);
        return;
    }
    if (lo[0] == hi[0]) {
        digit_range(out, lo[0], lo[0]);
        same_length(out, lo + 1, hi + 1);
        return;
    }
    memset(end, '9', n - 1);
    end[n - 1] = '\0';
    strbuf_adds(out, "(");
    digit_range(out, lo[0], lo[0]);
    same_length(out, lo + 1, end);
    if (lo[0] + 1 < hi[0]) {
        strbuf_adds(out, "| ");
        digit_range(out, (char)(lo[0] + 1), (char)(hi[0] - 1));
        any_digits(out, n - 1, n - 1);
    }
    memset(end, '0', n - 1);
    strbuf_adds(out, "| ");
    digit_range(out, hi[0], hi[0]);
    same_length(out, end, hi + 1);
    strbuf_adds(out, ") ");
}

/* Integers from lo to hi, not negative, without leading zeros. */
static void whole_range(struct strbuf *out, int64_t lo, int64_t hi)
{
    assert(lo >= 0 && lo <= hi && hi <= WHOLE_MAX);
    strbuf_adds(out, "(");
    for (int64_t begin = lo, end = 9; begin <= hi; begin = end + 1) {
        char first[24], last[24];
        while (end < begin) end = end * 10 + 9;
        if (begin > lo) strbuf_adds(out, "| ");
        snprintf(first, sizeof first, "%" PRId64, begin);
        snprintf(last, sizeof last, "%" PRId64, end < hi ? end : hi);
        same_length(out, first, last);
    }
    strbuf_adds(out, ") ");
}

/* ---- Bounds ---- */

struct bounds {
    double lo, hi;         /* infinite: no bound */
    bool lo_open, hi_open; /* the bound is excluded */
};

static sac_status read_bound(struct schema_writer *w, const cJSON *schema, const char *keyword,
                             double *out)
{
    const cJSON *const item = schema_writer_get(schema, keyword);
    if (!item) return SAC_OK;
    if (!cJSON_IsNumber(item))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'%s' is not a number", keyword);
    *out = item->valuedouble;
    return SAC_OK;
}

static sac_status read_bounds(struct schema_writer *w, const cJSON *schema, struct bounds *b)
{
    double above = -INFINITY, below = INFINITY;
    *b = (struct bounds){.lo = -INFINITY, .hi = INFINITY};
    TRY(read_bound(w, schema, "minimum", &b->lo));
    TRY(read_bound(w, schema, "maximum", &b->hi));
    TRY(read_bound(w, schema, "exclusiveMinimum", &above));
    TRY(read_bound(w, schema, "exclusiveMaximum", &below));
    if (above >= b->lo && above > -INFINITY) {
        b->lo = above;
        b->lo_open = true;
    }
    if (below <= b->hi && below < INFINITY) {
        b->hi = below;
        b->hi_open = true;
    }
    if (b->lo > b->hi || (b->lo == b->hi && (b->lo_open || b->hi_open)))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "no number lies between the bounds");
    return SAC_OK;
}

static sac_status check_multiple(struct schema_writer *w, const cJSON *schema, bool whole)
{
    const cJSON *const multiple = schema_writer_get(schema, "multipleOf");
    if (!multiple || (whole && cJSON_IsNumber(multiple) && multiple->valuedouble == 1))
        return SAC_OK;
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'multipleOf' is not supported%s",
                                whole ? " but for 1" : "");
}

/* ---- Integers ---- */

/* Converts a bound to an integer within the supported range. */
static sac_status whole_bound(struct schema_writer *w, double x, int64_t *out)
{
    if (x > (double)WHOLE_MAX || x < -(double)WHOLE_MAX) {
        *out = x > 0 ? WHOLE_MAX : -WHOLE_MAX;
        return SAC_OK;
    }
    if (fabs(x) > EXACT_MAX)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "a bound beyond 2^53 is not exact as a JSON number");
    *out = (int64_t)x;
    return SAC_OK;
}

sac_status schema_number_write_integer(struct schema_writer *w, const cJSON *schema,
                                       struct strbuf *body)
{
    struct bounds b;
    int64_t lo = 0, hi = 0;
    TRY(check_multiple(w, schema, true));
    TRY(read_bounds(w, schema, &b));
    if (b.lo == -INFINITY && b.hi == INFINITY) {
        schema_writer_shared(w, body, SCHEMA_INTEGER);
        return SAC_OK;
    }
    const double least = b.lo_open ? floor(b.lo) + 1 : ceil(b.lo);
    const double most = b.hi_open ? ceil(b.hi) - 1 : floor(b.hi);
    TRY(whole_bound(w, least, &lo));
    TRY(whole_bound(w, most, &hi));
    if (lo > hi || least > (double)WHOLE_MAX || most < -(double)WHOLE_MAX)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "no integer of %u digits lies between the bounds", DIGITS_MAX);
    strbuf_adds(body, "(");
    if (lo < 0) {
        strbuf_adds(body, "\"-\" ");
        whole_range(body, hi < 0 ? -hi : 1, -lo);
    }
    if (lo < 0 && hi >= 0) strbuf_adds(body, "| ");
    if (hi >= 0) whole_range(body, lo > 0 ? lo : 0, hi);
    strbuf_adds(body, ") ");
    return SAC_OK;
}

/* ---- Numbers ---- */

/* A non-negative bound in decimal. */
struct decimal {
    int64_t whole;
    char digit[DECIMAL + 8]; /* of the fraction, without trailing zeros */
    bool open;               /* the bound is excluded */
};

struct fraction {
    const char *lo, *hi; /* remaining digits of the bounds that are still tight; NULL: free */
    bool lo_open, hi_open;
    size_t left; /* digits that may still be written */
};

static sac_status read_decimal(struct schema_writer *w, double x, bool open, struct decimal *out)
{
    char text[64];
    *out = (struct decimal){.open = open};
    if (x >= 1e12)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "a bound of 1e12 or more for a 'number'");
    /* The shortest decimal that denotes this double. */
    for (int digits = 0; digits <= 12; digits++) {
        snprintf(text, sizeof text, "%.*f", digits, x);
        if (strtod(text, NULL) != x) continue;
        char *const point = strchr(text, '.');
        const size_t n = point ? strlen(point + 1) : 0;
        out->whole = strtoll(text, NULL, 10);
        if (n > 0) memcpy(out->digit, point + 1, n);
        for (size_t i = n; i > 0 && out->digit[i - 1] == '0'; i--) out->digit[i - 1] = '\0';
        if (n + (point ? (size_t)(point - text) : strlen(text)) <= DECIMAL) return SAC_OK;
        break;
    }
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                "a bound of a 'number' with more than 12 decimals or %u digits",
                                DECIMAL);
}

/* Whether the fraction may end here. */
static bool may_end(const struct fraction *f)
{
    if (f->lo && (!all_are(f->lo, '0') || f->lo_open)) return false;
    return !f->hi || !all_are(f->hi, '0') || !f->hi_open;
}

static char next_digit(const char *digits)
{
    return digits && *digits ? *digits : '0';
}

/* Writes the digits from here on, at least one, for each bound that is still tight; false, with
 * nothing written: none is possible. Recursion is as deep as the bounds have digits. */
static bool write_fraction(struct strbuf *out, struct fraction f)
{
    if (f.left == 0) return false;
    if (f.lo && all_are(f.lo, '0') && !f.lo_open) f.lo = NULL;
    if (!f.lo && !f.hi) {
        any_digits(out, 1, f.left);
        return true;
    }
    const char lo = f.lo ? next_digit(f.lo) : '0', hi = f.hi ? next_digit(f.hi) : '9';
    bool any = false;
    if (lo > hi) return false;
    strbuf_adds(out, "(");
    for (char d = lo; d <= hi; d++) {
        const bool at_lo = f.lo && d == lo, at_hi = f.hi && d == hi;
        char last = d;
        if (!at_lo && !at_hi) last = f.hi ? (char)(hi - 1) : hi;
        const struct fraction next = {.lo = at_lo ? f.lo + (*f.lo != 0) : NULL,
                                      .hi = at_hi ? f.hi + (*f.hi != 0) : NULL,
                                      .lo_open = f.lo_open,
                                      .hi_open = f.hi_open,
                                      .left = f.left - 1};
        struct strbuf more = {0};
        const bool goes_on = write_fraction(&more, next), ends = may_end(&next);
        if (goes_on || ends) {
            if (any) strbuf_adds(out, "| ");
            digit_range(out, d, last);
            if (goes_on) strbuf_addf(out, "(%s)%s", more.data, ends ? "? " : " ");
            any = true;
        }
        out->failed |= more.failed;
        strbuf_deinit(&more);
        d = last;
    }
    if (!any) strbuf_adds(out, "\"\" ");
    strbuf_adds(out, ") ");
    return any;
}

/* One alternative: numbers with this integer part and a fraction between the bounds. */
static void write_tight(struct strbuf *out, int64_t whole, const struct decimal *lo,
                        const struct decimal *hi, bool *any)
{
    char text[24];
    struct strbuf part = {0};
    const int n = snprintf(text, sizeof text, "%" PRId64, whole);
    const struct fraction f = {.lo = lo ? lo->digit : NULL,
                               .hi = hi ? hi->digit : NULL,
                               .lo_open = lo && lo->open,
                               .hi_open = hi && hi->open,
                               .left = DECIMAL - (size_t)n};
    const bool goes_on = write_fraction(&part, f), ends = may_end(&f);
    if (goes_on || ends) {
        strbuf_addf(out, "%s\"%s\" ", *any ? "| " : "", text);
        if (goes_on) strbuf_addf(out, "(\".\" %s)%s", part.data, ends ? "? " : " ");
        *any = true;
    }
    out->failed |= part.failed;
    strbuf_deinit(&part);
}

/* Integer parts from lo to hi, with any fraction that a double preserves next to the longest. */
static void write_free(struct strbuf *out, int64_t lo, int64_t hi, bool *any)
{
    char text[24];
    if (lo > hi) return;
    const size_t left = DECIMAL - (size_t)snprintf(text, sizeof text, "%" PRId64, hi);
    strbuf_adds(out, *any ? "| " : "");
    whole_range(out, lo, hi);
    if (left > 0) strbuf_addf(out, "(\".\" [0-9]{1,%zu})? ", left);
    *any = true;
}

/* Non-negative numbers from lo to hi (NULL: no bound). */
static void write_between(struct strbuf *out, const struct decimal *lo, const struct decimal *hi,
                          bool *any)
{
    const int64_t short_max = 999999999, long_max = 999999999999999;
    if (hi && lo->whole == hi->whole) {
        write_tight(out, lo->whole, lo, hi, any);
        return;
    }
    write_tight(out, lo->whole, lo, NULL, any);
    if (hi) {
        write_free(out, lo->whole + 1, hi->whole - 1, any);
        write_tight(out, hi->whole, NULL, hi, any);
    } else {
        write_free(out, lo->whole + 1, short_max, any);
        write_free(out, lo->whole > short_max ? lo->whole + 1 : short_max + 1, long_max, any);
    }
}

sac_status schema_number_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    struct bounds b;
    struct decimal lo = {0}, hi = {0};
    struct strbuf negative = {0}, positive = {0};
    bool any_negative = false, any_positive = false;
    TRY(check_multiple(w, schema, false));
    TRY(read_bounds(w, schema, &b));
    if (b.lo == -INFINITY && b.hi == INFINITY) {
        schema_writer_shared(w, body, SCHEMA_NUMBER);
        return SAC_OK;
    }
    if (b.lo < 0) {
        /* Negated: the upper bound, or zero, becomes the lower one. */
        const double near = b.hi < 0 ? -b.hi : 0, far = -b.lo;
        TRY(read_decimal(w, near, b.hi <= 0 && b.hi_open, &lo));
        if (far < INFINITY) TRY(read_decimal(w, far, b.lo_open, &hi));
        write_between(&negative, &lo, far < INFINITY ? &hi : NULL, &any_negative);
    }
    if (b.hi > 0 || (b.hi == 0 && !b.hi_open)) {
        const double near = b.lo > 0 ? b.lo : 0;
        sac_status status = read_decimal(w, near, b.lo >= 0 && b.lo_open, &lo);
        if (status == SAC_OK && b.hi < INFINITY) status = read_decimal(w, b.hi, b.hi_open, &hi);
        if (status == SAC_OK)
            write_between(&positive, &lo, b.hi < INFINITY ? &hi : NULL, &any_positive);
        if (status != SAC_OK) strbuf_deinit(&negative);
        TRY(status);
    }
    if (any_negative) strbuf_addf(body, "\"-\" (%s) ", negative.data);
    if (any_negative && any_positive) strbuf_adds(body, "| ");
    if (any_positive) strbuf_addf(body, "(%s) ", positive.data);
    body->failed |= negative.failed || positive.failed;
    strbuf_deinit(&negative);
    strbuf_deinit(&positive);
    if (any_negative || any_positive) return SAC_OK;
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                "no number of %u digits lies between the bounds", DECIMAL);
}
