/* special.c: finds special tokens in a text. The result is that of searching for each token, from
 * the longest to the shortest, from left to right in the text left over by the previous ones; it is
 * found in one pass over the text.
 *
 * Each position at which tokens start becomes a candidate with its longest token. Candidates are
 * taken from a heap, longest first, leftmost of equal ones. A candidate whose start is covered by a
 * placed token is dropped; one that is covered further right is inserted again with the longest of
 * its tokens that fits. Placed bytes are marked in a bitmap. Without overlaps, which is usual, no
 * heap is needed. */
#include "model/special.h"

#include "base/mem.h"
#include "model/heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const struct special *s, uint32_t i, size_t *out_n)
{
    return strtab_get(&s->vocab->text, s->id[i], out_n);
}

static int compare_texts(const void *a, const void *b, void *vocab)
{
    const struct vocab *const v = vocab;
    size_t n, m;
    const char *const s = strtab_get(&v->text, *(const uint32_t *)a, &n);
    const char *const t = strtab_get(&v->text, *(const uint32_t *)b, &m);
    const int order = memcmp(s, t, n < m ? n : m);
    return order ? order : n < m ? -1 : n > m;
}

/* Whether a token is included; tokens without text are not. */
static bool is_wanted(const struct vocab *v, uint32_t id, unsigned with, unsigned without)
{
    size_t n;
    strtab_get(&v->text, id, &n);
    return n > 0 && (v->kind[id] & with) && !(v->kind[id] & without);
}

static void fill_filter(struct special *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        size_t n;
        const uint8_t *const t = (const uint8_t *)text_of(s, i, &n);
        uint64_t *const row = s->start + 4 * (size_t)t[0];
        if (n == 1) {
            memset(row, 0xff, 4 * sizeof *row);
        } else {
            row[t[1] / 64] |= (uint64_t)1 << (t[1] % 64);
        }
    }
}

/* Whether some text starts with bytes b and c, or consists of b alone. */
static inline bool may_start(const struct special *s, uint8_t b, uint8_t c)
{
    return s->start[4 * (size_t)b + c / 64] >> (c % 64) & 1;
}

sac_status special_init(struct special *s, const struct vocab *v, unsigned with, unsigned without,
                        sac_error *err)
{
    s->vocab = v;
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_tok; i++) n += is_wanted(v, i, with, without);
    s->id = mem_alloc(n * sizeof *s->id);
    if (!s->id) return error_set(err, SAC_ERR_MEMORY, "no memory for %u special tokens", n);
    for (uint32_t i = 0; i < v->n_tok; i++) {
        if (is_wanted(v, i, with, without)) s->id[s->n++] = i;
    }
    qsort_r(s->id, s->n, sizeof *s->id, compare_texts, (void *)(uintptr_t)v);
    for (uint32_t i = s->n; i-- > 0;) {
        size_t n_text;
        const uint8_t b = (uint8_t)*text_of(s, i, &n_text);
        s->first[b] = i + 1; /* 0 still means: none */
    }
    s->first[256] = s->n;
    fill_filter(s);
    for (uint32_t b = 256; b-- > 0;) s->first[b] = s->first[b] ? s->first[b] - 1 : s->first[b + 1];
    return SAC_OK;
}

void special_deinit(struct special *s)
{
    mem_free(s->id);
    *s = (struct special){0};
}

/* The first of texts [lo, hi), which agree in their first `depth` bytes, whose next byte is at
 * least `b`. Texts that end at `depth` come first. */
static uint32_t lower_bound(const struct special *s, uint32_t lo, uint32_t hi, size_t depth, int b)
{
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        size_t n;
        const char *const t = text_of(s, mid, &n);
        if ((n > depth ? (int)(uint8_t)t[depth] : -1) < b) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token of at most `n` bytes at the start of `text`; its length, 0 if there is none. */
static size_t longest_at(const struct special *s, const char *text, size_t n, int32_t *out_tok)
{
    size_t best = 0;
    if (n == 0) return 0;
    const uint8_t b = (uint8_t)text[0];
    uint32_t lo = s->first[b], hi = s->first[b + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        size_t n_text;
        text_of(s, lo, &n_text);
        if (n_text == depth) {
            best = depth;
            *out_tok = (int32_t)s->id[lo];
        }
        if (depth == n) break;
        const int next = (uint8_t)text[depth];
        lo = lower_bound(s, lo, hi, depth, next);
        hi = lower_bound(s, lo, hi, depth, next + 1);
    }
    return best;
}

bool special_meets(const struct special *s, const char *text, size_t n)
{
    assert(n > 0);
    const uint8_t b = (uint8_t)text[0];
    uint32_t lo = s->first[b], hi = s->first[b + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        size_t n_text;
        text_of(s, lo, &n_text);
        if (n_text == depth || depth == n) return true;
        const int next = (uint8_t)text[depth];
        lo = lower_bound(s, lo, hi, depth, next);
        hi = lower_bound(s, lo, hi, depth, next + 1);
    }
    return false;
}

static bool add_part(struct special_parts *p, int32_t tok, size_t at, size_t n)
{
    if (n == 0) return true;
    if (p->n == p->capacity) {
        const size_t capacity = 2 * p->capacity + 16;
        struct special_part *const grown = mem_realloc(p->part, capacity * sizeof *grown);
        if (!grown) return false;
        p->part = grown;
        p->capacity = capacity;
    }
    p->part[p->n++] = (struct special_part){tok, (uint32_t)at, (uint32_t)n};
    return true;
}

/* Lists every position at which a token starts, with its longest; `*out_overlap`: whether two of
 * these overlap. */
static bool find_candidates(const struct special *s, const char *text, size_t n,
                            struct special_parts *out, bool *out_overlap)
{
    size_t end = 0;
    *out_overlap = false;
    for (size_t at = 0; at < n; at++) {
        const uint8_t b = (uint8_t)text[at], c = at + 1 < n ? (uint8_t)text[at + 1] : 0;
        if (!may_start(s, b, c)) continue;
        int32_t tok = VOCAB_NO_TOKEN;
        const size_t n_tok = longest_at(s, text + at, n - at, &tok);
        if (n_tok == 0) continue;
        if (!add_part(out, tok, at, n_tok)) return false;
        *out_overlap |= at < end;
        if (at + n_tok > end) end = at + n_tok;
    }
    return true;
}

/* The first marked bit of [at, at + n), or at + n. */
static size_t first_marked(const uint64_t *bit, size_t at, size_t n)
{
    for (size_t i = at; i < at + n;) {
        const uint64_t w = bit[i / 64] >> (i % 64);
        if (w) {
            const size_t found = i + (size_t)__builtin_ctzll(w);
            return found < at + n ? found : at + n;
        }
        i += 64 - i % 64;
    }
    return at + n;
}

static uint64_t place_key(size_t at, size_t n)
{
    return (uint64_t)(UINT32_MAX - (uint32_t)n) << 32 | (uint32_t)at;
}

static int compare_places(const void *a, const void *b)
{
    const uint32_t x = ((const struct special_part *)a)->at,
                   y = ((const struct special_part *)b)->at;
    return x < y ? -1 : x > y;
}

/* Replaces the candidates by those that are placed, in the order of the text. */
static bool resolve(const struct special *s, const char *text, size_t n, struct special_parts *p)
{
    struct heap heap = {0};
    uint64_t *const bit = mem_calloc(n / 64 + 1, sizeof *bit);
    for (size_t i = 0; i < p->n; i++)
        heap_push(&heap, (struct heap_item){place_key(p->part[i].at, p->part[i].n),
                                            (uint32_t)p->part[i].tok});
    p->n = 0;
    while (bit && heap.n && !heap.failed) {
        const struct heap_item top = heap_pop(&heap);
        const size_t at = (uint32_t)top.key, n_tok = UINT32_MAX - (uint32_t)(top.key >> 32);
        const size_t n_free = first_marked(bit, at, n_tok) - at;
        if (n_free < n_tok) {
            int32_t tok = VOCAB_NO_TOKEN;
            const size_t shorter = longest_at(s, text + at, n_free, &tok);
            if (shorter)
                heap_push(&heap, (struct heap_item){place_key(at, shorter), (uint32_t)tok});
            continue;
        }
        for (size_t i = at; i < at + n_tok; i++) bit[i / 64] |= (uint64_t)1 << (i % 64);
        /* There is room: no more are placed than there were candidates. */
        p->part[p->n++] = (struct special_part){(int32_t)top.value, (uint32_t)at, (uint32_t)n_tok};
    }
    const bool ok = bit && !heap.failed;
    if (ok) qsort(p->part, p->n, sizeof *p->part, compare_places);
    mem_free(bit);
    heap_deinit(&heap);
    return ok;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Where text continues after a token that ends at `at`, before the next part at `next`. */
static size_t text_behind(const struct special *s, const struct special_part *tok, const char *text,
                          size_t next)
{
    size_t at = (size_t)tok->at + tok->n;
    if (s->vocab->kind[tok->tok] & VOCAB_STRIPS)
        while (at < next && is_space(text[at])) at++;
    return at;
}

sac_status special_cut(const struct special *s, const char *text, size_t n,
                       struct special_parts *out, sac_error *err)
{
    assert(n <= INT32_MAX);
    struct special_parts found = {0};
    bool overlap;
    bool ok = find_candidates(s, text, n, &found, &overlap);
    if (ok && overlap) ok = resolve(s, text, n, &found);
    size_t at = 0;
    for (size_t i = 0; ok && i < found.n; i++) {
        const struct special_part *const tok = &found.part[i];
        ok = add_part(out, VOCAB_NO_TOKEN, at, tok->at - at) &&
             add_part(out, tok->tok, tok->at, tok->n);
        at = text_behind(s, tok, text, i + 1 < found.n ? found.part[i + 1].at : n);
    }
    if (ok) ok = add_part(out, VOCAB_NO_TOKEN, at, n - at);
    mem_free(found.part);
    return ok ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "no memory to find special tokens");
}
