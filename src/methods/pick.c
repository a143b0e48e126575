/* pick.c: marks, selection of the best of many scores by counting bits, exact logits. See the
 * header.
 *
 * The threshold of a selection is found without sorting. Values become integer keys of the same
 * order, which are counted in bins by their highest bits; then the keys in the bin that contains
 * the threshold are counted by their next bits, and so on. */
#include "methods/pick.h"

#include "methods/meter.h"
#include "ops/page_lines.h"

#include <assert.h>
#include <string.h>

#define BIN_BITS 11u
#define N_BIN    (1u << BIN_BITS)

void pick_range(struct method_pick *out, const struct method_lane *l, uint32_t begin, uint32_t end)
{
    end = min_u32(end, pick_page_count(l) * PAGE_TOK);
    while (begin < end) {
        const uint32_t page = begin / PAGE_TOK, first = begin % PAGE_TOK;
        const uint32_t last = min_u32(end - page * PAGE_TOK, PAGE_TOK);
        const uint32_t below_last = last == PAGE_TOK ? UINT32_MAX : (1u << last) - 1;
        out->mask[page] |= below_last & ~((1u << first) - 1);
        begin = (page + 1) * PAGE_TOK;
    }
}

void pick_ends(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
               uint32_t n_recent)
{
    pick_range(out, l, 0, n_sink);
    if (n_recent > 0)
        pick_range(out, l, l->pos + 1 > n_recent ? l->pos + 1 - n_recent : 0, l->pos + 1);
}

void pick_end_pages(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
                    uint32_t n_recent)
{
    const uint32_t n_page = pick_page_count(l);
    const uint32_t sink = min_u32(pick_whole_pages(n_sink), n_page);
    const uint32_t recent = min_u32(pick_whole_pages(n_recent), n_page);
    pick_range(out, l, 0, sink * PAGE_TOK);
    pick_range(out, l, (n_page - recent) * PAGE_TOK, n_page * PAGE_TOK);
}

/* Bits of a page's tokens [begin, end), positions of the sequence. */
static uint32_t page_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK, lo = max_u32(begin, first) - first;
    const uint32_t hi = min_u32(end > first ? end - first : 0, PAGE_TOK);
    return lo < hi ? UINT32_MAX >> (PAGE_TOK - hi) & ~0u << lo : 0;
}

void pick_kept(struct method_pick *out, const uint32_t *mask, uint32_t n_page, uint32_t begin,
               uint32_t end)
{
    for (uint32_t i = 0; i < n_page; i++) {
        pick_bits(out, i, mask[i] & page_bits(i, begin, end));
        out->mask[i] |= mask[i];
    }
}

/* ---- The best of many ---- */

struct bins {
    uint32_t n[N_BIN];
    double sum[N_BIN];
};

/* A histogram, by `bits` bits of the sort keys from bit `shift` on, of the items whose higher bits
 * equal `prefix`. */
static void count_bins(struct bins *b, const float *value, uint32_t n, uint32_t prefix,
                       uint32_t shift, uint32_t bits)
{
    const uint32_t above = shift + bits;
    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = pick_key(value[i]);
        if (above < 32 && key >> above != prefix) continue;
        const uint32_t bin = key >> shift & ((1u << bits) - 1);
        b->n[bin]++;
        b->sum[bin] += (double)value[i];
    }
}

/* The threshold at which the items from the largest down reach `target`: a number of items, or
 * (by_sum) a sum of their values. */
static struct pick_cut find_cut(const float *value, uint32_t n, double target, bool by_sum)
{
    static const uint32_t shift[] = {21, 10, 0}, bits[] = {11, 11, 10};
    struct bins b;
    uint32_t prefix = 0, bin = 0;
    for (int pass = 0; pass < 3; pass++) {
        count_bins(&b, value, n, prefix, shift[pass], bits[pass]);
        uint32_t lowest = bin = (1u << bits[pass]) - 1;
        /* Goes down to the bin that reaches the target; rounding may leave the sum below it. */
        for (;; bin--) {
            if (b.n[bin] > 0) {
                const double weight = by_sum ? b.sum[bin] : b.n[bin];
                lowest = bin;
                if (weight >= target) break;
                target -= weight;
            }
            if (bin == 0) {
                target = by_sum ? b.sum[lowest] : b.n[lowest];
                bin = lowest;
                break;
            }
        }
        prefix = prefix << bits[pass] | bin;
    }
    const uint32_t n_tie = b.n[bin];
    const double each = by_sum && n_tie ? b.sum[bin] / n_tie : 1;
    const double need = each > 0 ? ceil(target / each) : n_tie;
    return (struct pick_cut){.key = prefix, .n_tie = need < n_tie ? (uint32_t)need : n_tie};
}

struct pick_cut pick_best(const float *value, uint32_t n, uint32_t k)
{
    if (k == 0 || n == 0) return (struct pick_cut){.key = UINT32_MAX};
    return find_cut(value, n, min_u32(k, n), false);
}

struct pick_cut pick_share(const float *value, uint32_t n, double share)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)value[i];
    if (share <= 0 || n == 0) return (struct pick_cut){.key = UINT32_MAX};
    return find_cut(value, n, share * sum, true);
}

void pick_tokens(struct method_pick *out, const struct method_lane *l, float *value,
                 uint32_t *spare, uint32_t n)
{
    const uint32_t n_page = pick_page_count(l);
    uint32_t n_marked = 0;
    for (uint32_t p = 0; p < n_page; p++)
        for (uint32_t left = out->mask[p]; left; left &= left - 1, n_marked++)
            value[p * PAGE_TOK + (uint32_t)__builtin_ctz(left)] = -1;
    assert(n_marked <= n_page * PAGE_TOK);
    n = min_u32(n, n_page * PAGE_TOK - n_marked);
    if (n == 0) return;
    const struct op_cut cut = l->ops->best(
        &(struct op_best){.value = value, .n = n_page * PAGE_TOK, .target = n, .spare = spare});
    l->ops->mark(
        &(struct op_mark){.value = value, .cut = cut, .n_page = n_page, .mask = out->mask});
    out->n_chosen += n;
}

/* ---- Keys ---- */

/* Rotates the keys of n_page pages from `page` on, so that unrotated queries meet them. */
static void turn_keys(float *k, const struct method_lane *l, uint32_t page, uint32_t n_page)
{
    const uint32_t d = l->shape->geom->head_dim;
    if (l->n_segment == 0) return;
    for (uint32_t p = page, i = 0; p < page + n_page; p++) {
        i = segment_of(l->segment, l->n_segment, p, i);
        if (i == l->n_segment) return;
        for (uint32_t t = 0; t < PAGE_TOK; t++, k += d)
            segment_turn(k, k, d, &l->segment[i], l->shape->rope, -1);
    }
}

bool pick_hold(const struct method_lane *l, uint32_t page, uint32_t n_page)
{
    assert(page + n_page <= l->n_sealed);
    const sac_status status = tier_acquire(l->tier, l->page + page, n_page);
    if (status != SAC_OK) __atomic_store_n(l->lost, (uint8_t)status, __ATOMIC_RELAXED);
    return tier_holds(status);
}

void pick_let(const struct method_lane *l, uint32_t page, uint32_t n_page)
{
    tier_release(l->tier, l->page + page, n_page);
}

/* Reads keys and values (either may be NULL) of pages that need not be held; zeros if a page cannot
 * be read. */
static void read_pages(float *k, float *v, const struct method_lane *l, uint32_t page,
                       uint32_t n_page)
{
    const struct page_geom *g = l->shape->geom;
    const size_t n = (size_t)n_page * PAGE_TOK * g->head_dim;
    assert(n_page == 1 || !v);
    if (!pick_hold(l, page, n_page)) {
        if (k) memset(k, 0, n * sizeof *k);
        if (v) memset(v, 0, n * sizeof *v);
        return;
    }
    if (k)
        l->ops->keys(&(struct op_keys){
            .geom = g, .frames = l->frames, .page = l->page + page, .n_page = n_page, .out = k});
    if (v) page_read(NULL, v, g, page_frame(g, l->frames, l->page[page]), PAGE_SEALED, PAGE_TOK);
    pick_let(l, page, n_page);
}

void pick_keys(float *k, const struct method_lane *l, uint32_t page)
{
    meter_bytes(l, page_all_keys(l->shape->geom));
    read_pages(k, NULL, l, page, 1);
    turn_keys(k, l, page, 1);
}

const float *pick_query(float *room, const struct method_lane *l, uint32_t page, uint32_t *end)
{
    const uint32_t i = segment_of(l->segment, l->n_segment, page, 0), d = l->shape->geom->head_dim;
    *end = i < l->n_segment ? l->segment[i].end : PAGE_NONE;
    assert(*end > page); /* the caller's loop advances */
    if (i == l->n_segment || !l->segment[i].cos) return l->q;
    for (uint32_t g = 0; g < l->shape->group; g++)
        segment_turn(room + (size_t)g * d, l->q + (size_t)g * d, d, &l->segment[i], l->shape->rope,
                     1);
    return room;
}

void pick_values(float *v, const struct method_lane *l, uint32_t page)
{
    meter_bytes(l, page_all_values(l->shape->geom));
    read_pages(NULL, v, l, page, 1);
}

void pick_keys_values(float *k, float *v, const struct method_lane *l, uint32_t page)
{
    const struct page_geom *g = l->shape->geom;
    meter_bytes(l, page_all_keys(g) + page_all_values(g));
    read_pages(k, v, l, page, 1);
    turn_keys(k, l, page, 1);
}

uint32_t pick_own(float *k, float *v, const struct method_lane *l)
{
    const uint32_t n_tok = l->pos % PAGE_TOK + 1;
    pick_own_rows(k, v, l, 0, n_tok);
    return n_tok;
}

void pick_own_rows(float *k, float *v, const struct method_lane *l, uint32_t first, uint32_t n)
{
    const struct page_geom *g = l->shape->geom;
    const size_t n_byte = (size_t)n * g->head_dim * 2;
    const uint8_t *at = l->own + (size_t)first * g->head_dim * 2;
    assert(first + n <= l->pos % PAGE_TOK + 1);
    meter_read(l, at, n_byte);
    if (v) meter_read(l, at + g->tail_v, n_byte);
    page_read(k, v, g, at, PAGE_TAIL, n); /* as if these were its first tokens */
}

/* pick_some_keys for the own page, whose keys have 16 bits whatever the type of the cache. */
static void own_keys(float *k, const struct method_lane *l, uint32_t tok)
{
    const struct page_geom *g = l->shape->geom;
    const struct page_geom tail = {.head_dim = g->head_dim,
                                   .type_k = g->type_k == SAC_KV_BF16 ? SAC_KV_BF16 : SAC_KV_F16};
    const page_id page = 0;
    meter_bytes(l, page_some_keys(&tail, tok));
    l->ops->keys(&(struct op_keys){.geom = &tail,
                                   .frames = {.base = l->own},
                                   .page = &page,
                                   .n_page = 1,
                                   .tok = &tok,
                                   .out = k});
}

/* Prefetches some rows of a part of a page. */
static void fetch_rows(const uint8_t *part, size_t row_bytes, uint32_t tok)
{
    for (uint32_t left = tok; left; left &= left - 1) {
        const uint8_t *row = part + (size_t)__builtin_ctz(left) * row_bytes;
        for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(row + i);
    }
}

void pick_fetch_keys(const struct method_lane *l, uint32_t page, uint32_t tok)
{
    const struct page_geom *g = l->shape->geom;
    const size_t d = g->head_dim;
    if (l->tier || page >= pick_page_count(l) || l->page[page] == PAGE_NONE) return;
    const uint8_t *bytes = page_frame(g, l->frames, l->page[page]);
    if (g->type_k != SAC_KV_Q8) {
        fetch_rows(bytes + g->k, 2 * d, tok);
        return;
    }
    fetch_rows(bytes + g->k_hi2, d / 4, tok);
    fetch_rows(bytes + g->k_low, d * 3 / 4, tok);
}

uint32_t pick_some_keys(float *k, const struct method_lane *l, uint32_t page, uint32_t tok)
{
    const struct page_geom *g = l->shape->geom;
    const size_t d = g->head_dim;
    const uint32_t n = (uint32_t)__builtin_popcount(tok);
    if (page == pick_page_count(l)) {
        assert(tok <= UINT32_MAX >> (PAGE_TOK - 1 - l->pos % PAGE_TOK));
        own_keys(k, l, tok);
        return n;
    }
    meter_bytes(l, page_some_keys(g, tok));
    if (!pick_hold(l, page, 1)) {
        memset(k, 0, n * d * sizeof *k);
        return n;
    }
    l->ops->keys(&(struct op_keys){.geom = g,
                                   .frames = l->frames,
                                   .page = l->page + page,
                                   .n_page = 1,
                                   .tok = &tok,
                                   .out = k});
    pick_let(l, page, 1);
    const uint32_t i = segment_of(l->segment, l->n_segment, page, 0);
    for (uint32_t t = 0; t < n && i < l->n_segment; t++, k += d)
        segment_turn(k, k, (uint32_t)d, &l->segment[i], l->shape->rope, -1);
    return n;
}

const uint8_t *pick_side(const struct method_lane *l, uint32_t page, size_t n)
{
    assert(page < l->n_sealed && l->page[page] != PAGE_NONE && n <= l->side_stride);
    const uint8_t *side = l->side + l->page[page] * l->side_stride;
    meter_read(l, side, n);
    return side;
}

void pick_span(float *k, const struct method_lane *l, uint32_t first, uint32_t end)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t page0 = first / PAGE_TOK, n_full = min_u32(end / PAGE_TOK, l->n_sealed) - page0;
    const uint32_t left = end - first - n_full * PAGE_TOK;
    float *rest = k + (size_t)n_full * PAGE_TOK * g->head_dim;
    assert(first % PAGE_TOK == 0 && end <= l->pos + l->n_row);
    meter_bytes(l, n_full * page_all_keys(g));
    for (uint32_t i = 0, n; i < n_full; i += n) {
        n = min_u32(n_full - i, DISK_RUN);
        read_pages(k + (size_t)i * PAGE_TOK * g->head_dim, NULL, l, page0 + i, n);
    }
    turn_keys(k, l, page0, n_full);
    if (left > 0 && page0 + n_full < l->n_sealed) {
        pick_keys(rest, l, page0 + n_full);
    } else if (left > 0) {
        meter_read(l, l->own, left * (size_t)g->head_dim * 2);
        page_read(rest, NULL, g, l->own, PAGE_TAIL, left);
    }
}

bool pick_centre(float *centre, float *k, const struct method_lane *l)
{
    const uint32_t d = l->shape->geom->head_dim;
    if (l->n_sealed == 0) return false;
    pick_keys(k, l, 0);
    memcpy(centre, k + (PAGE_TOK - 1) * (size_t)d, d * sizeof *centre);
    return true;
}

void pick_group_logits(float *out, size_t stride, const struct method_lane *l, const float *k,
                       uint32_t n_tok)
{
    const uint32_t d = l->shape->geom->head_dim;
    l->ops->dots(&(struct op_dots){.a = l->q,
                                   .b = k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = l->shape->group,
                                   .n_b = n_tok,
                                   .width = d,
                                   .out = out,
                                   .out_stride = stride});
    for (uint32_t g = 0; g < l->shape->group; g++, out += stride) {
        for (uint32_t i = 0; i < n_tok; i++) out[i] *= l->scale;
        for (uint32_t i = 0; i < n_tok && l->softcap > 0; i++)
            out[i] = l->softcap * tanhf(out[i] / l->softcap);
    }
}

struct op_lane_logits pick_lane_logits(float *score, size_t stride, const struct method_lane *l)
{
    assert(pick_page_count(l) <= l->n_sealed);
    meter_bytes(l, pick_page_count(l) * page_all_keys(l->shape->geom));
    return (struct op_lane_logits){.keys = {.geom = l->shape->geom,
                                            .frames = l->frames,
                                            .page = l->page,
                                            .n_page = pick_page_count(l)},
                                   .group = l->shape->group,
                                   .q = l->q,
                                   .segment = l->segment,
                                   .n_segment = l->n_segment,
                                   .rope = l->shape->rope,
                                   .scale = l->scale,
                                   .softcap = l->softcap,
                                   .out = score,
                                   .out_stride = stride};
}

void pick_all_logits(float *score, size_t stride, const struct method_lane *l)
{
    const struct op_lane_logits op = pick_lane_logits(score, stride, l);
    const uint32_t n = op.keys.n_page;
    if (!pick_hold(l, 0, n)) {
        for (uint32_t g = 0; g < op.group; g++)
            memset(score + g * stride, 0, (size_t)n * PAGE_TOK * sizeof *score);
        return;
    }
    l->ops->lanes.logits(NULL, l->ops, &op, 1);
    pick_let(l, 0, n);
}
