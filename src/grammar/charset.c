/* charset.c: see the header. Ranges are split where the length of the UTF-8 sequence changes and
 * where a range does not fill the 64 values of a continuation byte, so that each piece is a product
 * of byte ranges. */
#include "grammar/charset.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>

#define SURROGATE_LO 0xd800u
#define SURROGATE_HI 0xdfffu

void charset_add(struct charset *set, uint32_t lo, uint32_t hi)
{
    assert(lo <= hi && hi <= CHARSET_LAST);
    if (set->failed) return;
    if (set->n == set->room) {
        const size_t room = set->room ? 2 * set->room : 8;
        struct charset_range *grown = mem_realloc(set->range, room * sizeof *grown);
        if (!grown) {
            set->failed = true;
            return;
        }
        set->range = grown;
        set->room = room;
    }
    set->range[set->n++] = (struct charset_range){lo, hi};
}

void charset_add_all(struct charset *set, const struct charset *other)
{
    for (size_t i = 0; i < other->n; i++) charset_add(set, other->range[i].lo, other->range[i].hi);
    set->failed |= other->failed;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct charset_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void join(struct charset *set)
{
    size_t n = 0;
    if (set->n > 0) qsort(set->range, set->n, sizeof *set->range, compare_ranges);
    for (size_t i = 0; i < set->n; i++) {
        const struct charset_range r = set->range[i];
        if (n > 0 && r.lo <= set->range[n - 1].hi + 1) {
            if (r.hi > set->range[n - 1].hi) set->range[n - 1].hi = r.hi;
        } else {
            set->range[n++] = r;
        }
    }
    set->n = n;
}

/* Replaces a normalised set by its complement. */
static void complement(struct charset *set)
{
    struct charset out = {0};
    uint32_t next = 0;
    for (size_t i = 0; i < set->n; i++) {
        if (set->range[i].lo > next) charset_add(&out, next, set->range[i].lo - 1);
        next = set->range[i].hi + 1;
    }
    if (next <= CHARSET_LAST) charset_add(&out, next, CHARSET_LAST);
    out.failed |= set->failed;
    charset_deinit(set);
    *set = out;
}

void charset_normalise(struct charset *set)
{
    /* Normalising removes surrogates, so they are in the complement. */
    join(set);
    complement(set);
    charset_add(set, SURROGATE_LO, SURROGATE_HI);
    join(set);
    complement(set);
}

void charset_invert(struct charset *set)
{
    complement(set);
    charset_normalise(set);
}

void charset_intersect(struct charset *set, const struct charset *keep)
{
    struct charset out = {0};
    for (size_t i = 0, k = 0; i < set->n && k < keep->n;) {
        const struct charset_range a = set->range[i], b = keep->range[k];
        const uint32_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi;
        if (lo <= hi) charset_add(&out, lo, hi);
        if (a.hi < b.hi)
            i++;
        else
            k++;
    }
    out.failed |= set->failed || keep->failed;
    charset_deinit(set);
    *set = out;
}

bool charset_has(const struct charset *set, uint32_t cp)
{
    for (size_t i = 0; i < set->n && set->range[i].lo <= cp; i++)
        if (cp <= set->range[i].hi) return true;
    return false;
}

void charset_deinit(struct charset *set)
{
    mem_free(set->range);
    *set = (struct charset){0};
}

size_t charset_put(char out[CHARSET_UTF8_MAX], uint32_t cp)
{
    assert(cp <= CHARSET_LAST && !(cp >= SURROGATE_LO && cp <= SURROGATE_HI));
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    const size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    if (n == 1) {
        out[0] = (char)cp;
        return 1;
    }
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80u | (cp & 0x3fu));
    out[0] = (char)(lead[n] | cp);
    return n;
}

size_t charset_get(const char *s, size_t n, uint32_t *out_cp)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0) return 0;
    const uint8_t b = (uint8_t)s[0];
    const size_t len = b < 0x80 ? 1 : b < 0xc0 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf8 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    uint32_t cp = len == 1 ? b : b & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (((uint8_t)s[i] & 0xc0u) != 0x80u) return 0;
        cp = cp << 6 | ((uint8_t)s[i] & 0x3fu);
    }
    if (cp < least[len] || cp > CHARSET_LAST || (cp >= SURROGATE_LO && cp <= SURROGATE_HI))
        return 0;
    *out_cp = cp;
    return len;
}

/* Whether the encodings of lo to hi are a product of byte ranges; otherwise the range must be split
 * after `*out_cut`. */
static bool is_product(uint32_t lo, uint32_t hi, uint32_t *out_cut)
{
    static const uint32_t last_of_length[] = {0x7f, 0x7ff, 0xffff};
    for (size_t i = 0; i < 3; i++) {
        *out_cut = last_of_length[i];
        if (lo <= *out_cut && *out_cut < hi) return false;
    }
    for (uint32_t i = 1; i <= 3; i++) {
        const uint32_t mask = (1u << 6 * i) - 1;
        if (hi < 0x80 || (lo & ~mask) == (hi & ~mask)) continue;
        *out_cut = lo | mask;
        if (lo & mask) return false;
        *out_cut = (hi & ~mask) - 1;
        if ((hi & mask) != mask) return false;
    }
    return true;
}

size_t charset_split(struct charset_bytes out[CHARSET_SPLIT_MAX], struct charset_range range)
{
    /* A stack of the ends of ranges that are still to be split, the nearest on top. */
    uint32_t end[CHARSET_SPLIT_MAX], lo = range.lo, cut;
    size_t n = 0, n_end = 0;
    end[n_end++] = range.hi;
    while (n_end > 0) {
        const uint32_t hi = end[n_end - 1];
        if (!is_product(lo, hi, &cut)) {
            assert(n_end < CHARSET_SPLIT_MAX && cut < hi);
            end[n_end++] = cut;
            continue;
        }
        char a[CHARSET_UTF8_MAX], b[CHARSET_UTF8_MAX];
        assert(n < CHARSET_SPLIT_MAX);
        struct charset_bytes *const piece = &out[n++];
        piece->n = (uint8_t)charset_put(a, lo);
        charset_put(b, hi);
        for (size_t i = 0; i < piece->n; i++) {
            piece->lo[i] = (uint8_t)a[i];
            piece->hi[i] = (uint8_t)b[i];
        }
        lo = hi + 1;
        n_end--;
    }
    return n;
}
