/* attn.c: the attention slots, and attention of single rows: which worker reduces which chunk, and
 * the merge. Many rows are in attn_wide.c.
 *
 * Invariants (attn.h says why they matter):
 *  1. Chunk boundaries are multiples of chunk_pages in the list of pages. For a dense list these
 *     are positions, so a selection of all pages gives the bits of dense attention. Lists with
 *     single tokens have shorter chunks, whose length depends on the list alone.
 *  2. An item writes only its own partial results.
 *  3. Segments do not split items: a run without segments takes the same path as if segments did
 *     not exist.
 *  4. With a pager, pages are acquired for one chunk at a time and read only until they are
 *     released. The computation and its order are the same as without one.
 *
 * It contains no arithmetic on keys or values except the final merge. */
#include "ops/cpu/attn_call.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* keys * head_dim of a chunk: 7 us of f16 at one core's bandwidth */
#define CHUNK_CHANNELS   65536u
#define LIST_CHUNKS      16u  /* chunks of a list with single tokens: one for each of 16 workers */
#define LIST_CHUNK_LEAST 4u   /* minimum pages of such a chunk */
#define CHUNKS_AHEAD     2u   /* chunks whose pages a pager prefetches */
#define CHUNK_SLOTS_MIN  256u /* minimum number of partial results, for many short rows */

/* ---- NARROW ---- */

static uint32_t chunk_pages(uint32_t head_dim)
{
    uint32_t n = 1;
    while (n * 2 < ATTN_CHUNK_MAX && n * 2 * PAGE_TOK * head_dim <= CHUNK_CHANNELS) n *= 2;
    return n;
}

static uint32_t lane_page_count(const struct attn_run *run, uint32_t h)
{
    if (run->attended && run->attended[h]) return 0;
    return run->select ? run->select_ptr[h + 1] - run->select_ptr[h] : run->pos0 / PAGE_TOK;
}

static uint32_t lane_tok_count(const struct attn_run *run, uint32_t h)
{
    assert(!run->select_tok || run->select);
    if (run->attended && run->attended[h]) return 0;
    return run->select_tok ? run->select_tok_ptr[h + 1] - run->select_tok_ptr[h] : 0;
}

/* Length of a lane's list: pages, then single tokens in groups of PAGE_TOK. */
static uint32_t lane_list_count(const struct attn_run *run, uint32_t h)
{
    return lane_page_count(run, h) + (lane_tok_count(run, h) + PAGE_TOK - 1) / PAGE_TOK;
}

/* List entries of a chunk, which depend on the list alone. Without single tokens it is the same
 * number as for a list of all pages. */
static uint32_t lane_chunk_pages(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t most = chunk_pages(op->geom->head_dim);
    uint32_t n = LIST_CHUNK_LEAST;
    if (lane_tok_count(run, h) == 0) return most;
    while (n < most && n * LIST_CHUNKS < lane_list_count(run, h)) n *= 2;
    return min_u32(n, most);
}

static uint32_t lane_list_page(const struct attn_run *run, uint32_t h, uint32_t i)
{
    return run->select ? run->select[run->select_ptr[h] + i] : i;
}

/* Index of the first page of the list with a visible token (binary search). */
static uint32_t lane_list_first(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t page = first_visible(op, run->pos0) / PAGE_TOK;
    uint32_t lo = 0, hi = lane_page_count(run, h);
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (lane_list_page(run, h, mid) < page)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static uint32_t lane_chunk_count(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t per_chunk = lane_chunk_pages(op, run, h);
    const uint32_t first = lane_list_first(op, run, h) / per_chunk;
    return lane_list_count(run, h) / per_chunk - first + 1; /* the list ends with the own page */
}

static size_t partial_floats(uint32_t head_dim, uint32_t group)
{
    return align_line((size_t)group * (head_dim + 2) * sizeof(float)) / sizeof(float);
}

static uint32_t slot_count(uint32_t head_dim, uint32_t n_kv_head, uint32_t n_tok_max)
{
    const uint32_t lane_max = max_u32(n_tok_max / PAGE_TOK / chunk_pages(head_dim), LIST_CHUNKS);
    return (lane_max + 2) * n_kv_head + CHUNK_SLOTS_MIN;
}

/* Page i of a lane's list. Positions from `visible` on are visible. */
static inline struct attn_page lane_page(const struct op_attn *op, const struct attn_run *run,
                                         uint32_t h, uint32_t i, uint32_t visible)
{
    const uint32_t page = lane_list_page(run, h, i), at = page * PAGE_TOK;
    assert(page < run->pos0 / PAGE_TOK);
    struct attn_page p = sealed_page(op, run, h, page);
    p.begin = visible > at ? visible - at : 0;
    return p;
}

/* A gathered page of the lane's single tokens from number `from` on. */
static struct attn_page lane_tokens(const struct op_attn *op, const struct attn_run *run,
                                    uint32_t h, uint32_t from, uint32_t visible)
{
    const uint32_t first = run->select_tok_ptr[h] + from;
    struct attn_page p =
        gathered_page(op, run, h, run->select_tok + first, lane_tok_count(run, h) - from);
    assert(p.tok[p.end - 1] / PAGE_TOK < run->pos0 / PAGE_TOK);
    if (run->select_logw) p.logw = run->select_logw + first;
    while (p.begin < p.end && p.tok[p.begin] < visible) p.begin++;
    return p;
}

/* Entries [begin, end) of a lane's list that form a chunk. The last chunk ends with the own
 * page. */
struct chunk_span {
    uint32_t begin, end;
};

static struct chunk_span chunk_span(const struct op_attn *op, const struct attn_run *run,
                                    uint32_t h, uint32_t chunk_i)
{
    const uint32_t per_chunk = lane_chunk_pages(op, run, h);
    const uint32_t first = lane_list_first(op, run, h);
    const uint32_t begin = (first / per_chunk + chunk_i) * per_chunk;
    return (struct chunk_span){max_u32(begin, first), begin + per_chunk};
}

/* Lists the sealed pages that a chunk reads, each once; returns their number. */
static uint32_t chunk_ids(const struct op_attn *op, const struct attn_run *run, uint32_t h,
                          uint32_t chunk_i, page_id id[ATTN_TAKE_TOKENS])
{
    const struct chunk_span span = chunk_span(op, run, h, chunk_i);
    const uint32_t n_page = lane_page_count(run, h), n_tok = lane_tok_count(run, h);
    const page_id *table = run->table + h * run->table_stride;
    uint32_t n = 0, i = span.begin;
    for (; i < min_u32(span.end, n_page); i++) id[n++] = table[lane_list_page(run, h, i)];
    if (i >= span.end || n_tok == 0) return n;
    const uint32_t first = (i - n_page) * PAGE_TOK;
    const uint32_t end = min_u32((span.end - n_page) * PAGE_TOK, n_tok);
    return n + name_token_pages(table, run->select_tok + run->select_tok_ptr[h] + first,
                                end > first ? end - first : 0, id + n);
}

/* Names the pages of the next chunks to the pager: the worker will most likely reduce them next. */
static void chunk_ahead(const struct attn_call *c, uint32_t lane, uint32_t chunk_i)
{
    const struct attn_pager *pager = c->op->pager;
    const uint32_t n_kv_head = c->op->geom->n_kv_head;
    const uint32_t n_chunk = c->lane_item[lane + 1] - c->lane_item[lane];
    page_id id[ATTN_TAKE_TOKENS];
    for (uint32_t i = chunk_i + 1; i <= chunk_i + CHUNKS_AHEAD && i < n_chunk; i++) {
        const struct attn_run *run = &c->op->run[lane / n_kv_head];
        pager->ahead(pager->user, id, chunk_ids(c->op, run, lane % n_kv_head, i, id));
    }
}

/* Sets the pages of a chunk. `at` [ATTN_CHUNK_MAX]: their page indices, except for gathered
 * pages. */
static void chunk_set_pages(struct attn_chunk *chunk, const struct attn_run *run, uint32_t h,
                            uint32_t chunk_i, uint32_t *at)
{
    const struct op_attn *op = chunk->op;
    const uint32_t n_list = lane_list_count(run, h), n_page = lane_page_count(run, h);
    const struct chunk_span span = chunk_span(op, run, h, chunk_i);
    const uint32_t visible = first_visible(op, run->pos0), end = span.end;
    uint32_t i = span.begin;
    for (; i < min_u32(end, n_page); i++) {
        at[chunk->n_page] = lane_list_page(run, h, i);
        chunk->page[chunk->n_page++] = lane_page(op, run, h, i, visible);
    }
    for (; i < min_u32(end, n_list); i++)
        chunk->page[chunk->n_page++] = lane_tokens(op, run, h, (i - n_page) * PAGE_TOK, visible);
    for (i = end; i < min_u32(end + ATTN_AHEAD, n_page) && !op->pager; i++)
        chunk->ahead[i - end] = lane_page(op, run, h, i, visible).bytes;
    if (end <= n_list) return;
    struct attn_page own = own_page(op, run, h, run->pos0);
    const uint32_t page = run->pos0 / PAGE_TOK, tok = page * PAGE_TOK;
    own.begin = visible > tok ? visible - tok : 0;
    at[chunk->n_page] = page;
    chunk->page[chunk->n_page++] = own;
}

/* Merges the partial result of other keys into `sum`, by the rule of the online softmax. */
static void merge_part(struct attn_chunk *sum, const struct attn_chunk *part, uint32_t d)
{
    for (uint32_t g = 0; g < sum->group; g++) {
        const float m = fmaxf(sum->m[g], part->m[g]);
        if (m == -INFINITY && part->l[g] == 0) continue; /* no keys on either side */
        const float old = exp2f(sum->m[g] - m), new = exp2f(part->m[g] - m);
        float *acc = sum->acc + (size_t)g * d;
        const float *add = part->acc + (size_t)g * d;
        for (uint32_t x = 0; x < d; x++) acc[x] = old * acc[x] + new *add[x];
        sum->l[g] = old * sum->l[g] + new * part->l[g];
        sum->m[g] = m;
    }
}

/* Restricts a page of a chunk to page indices [first, end); false: nothing is left. `at` is the
 * page's index, unless it is gathered. */
static bool clip_page(struct attn_page *p, uint32_t at, uint32_t first, uint32_t end)
{
    if (!p->tok) return at >= first && at < end;
    while (p->begin < p->end && p->tok[p->begin] / PAGE_TOK < first) p->begin++;
    while (p->begin < p->end && p->tok[p->end - 1] / PAGE_TOK >= end) p->end--;
    return p->begin < p->end;
}

/* Reduces a chunk of a run with segments: for each segment the pages in it, with queries rotated
 * for it. `at` holds the page indices of the chunk. The worker's memory for rotated queries also
 * holds the partial result. */
static void narrow_segments(const struct attn_call *c, const struct attn_run *run,
                            const struct attn_chunk *chunk, const uint32_t *at)
{
    const uint32_t d = chunk->op->geom->head_dim, group = chunk->group;
    float *rotated = (float *)(void *)((uint8_t *)chunk->mem + c->rotated_at);
    float *partial = rotated + align_line(group * (size_t)d * sizeof(float)) / sizeof(float);
    struct attn_chunk sum = *chunk;
    memset(sum.acc, 0, group * (size_t)d * sizeof *sum.acc);
    for (uint32_t g = 0; g < group; g++) sum.m[g] = -INFINITY, sum.l[g] = 0;
    for (uint32_t i = 0, first = 0, end; i <= run->n_segment; i++, first = end) {
        struct attn_chunk part = {.op = chunk->op,
                                  .q = rotated,
                                  .group = group,
                                  .m = partial + group * (size_t)d,
                                  .l = partial + group * ((size_t)d + 1),
                                  .acc = partial,
                                  .mem = chunk->mem};
        end = i < run->n_segment ? run->segment[i].end : PAGE_NONE;
        for (uint32_t j = 0; j < chunk->n_page; j++) {
            part.page[part.n_page] = chunk->page[j];
            part.n_page += clip_page(&part.page[part.n_page], at[j], first, end);
        }
        if (part.n_page == 0) continue;
        const bool rotates = i < run->n_segment && run->segment[i].cos;
        for (uint32_t g = 0; g < group && rotates; g++)
            segment_turn(rotated + (size_t)g * d, chunk->q + (size_t)g * d, d, &run->segment[i],
                         chunk->op->rope, 1);
        if (!rotates) part.q = chunk->q;
        c->k->narrow(&part);
        merge_part(&sum, &part, d);
    }
}

/* Reduces a chunk whose pages are in memory. */
static void narrow_chunk(const struct attn_call *c, struct attn_chunk *chunk, uint32_t lane,
                         uint32_t chunk_i)
{
    const uint32_t n_kv_head = c->op->geom->n_kv_head;
    const struct attn_run *run = &c->op->run[lane / n_kv_head];
    uint32_t at[ATTN_CHUNK_MAX];
    chunk_set_pages(chunk, run, lane % n_kv_head, chunk_i, at);
    if (run->n_segment)
        narrow_segments(c, run, chunk, at);
    else
        c->k->narrow(chunk);
}

/* The same with a pager. If it cannot provide the pages, the chunk counts as having no keys. */
static void narrow_paged(const struct attn_call *c, struct attn_chunk *chunk, uint32_t lane,
                         uint32_t chunk_i)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    page_id id[ATTN_TAKE_TOKENS];
    const uint32_t n = chunk_ids(op, &op->run[lane / n_kv_head], lane % n_kv_head, chunk_i, id);
    chunk_ahead(c, lane, chunk_i);
    if (take_pages(op, id, n)) {
        narrow_chunk(c, chunk, lane, chunk_i);
        give_pages(op, id, n);
        return;
    }
    memset(chunk->acc, 0, chunk->group * (size_t)op->geom->head_dim * sizeof *chunk->acc);
    for (uint32_t g = 0; g < chunk->group; g++) chunk->m[g] = -INFINITY, chunk->l[g] = 0;
}

/* Reduces one chunk; returns its lane. */
static uint32_t narrow_item(const struct attn_call *c, uint32_t item_i, uint32_t worker_i)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    const uint32_t item = c->lane_item[c->lane0] + item_i;
    uint32_t lo = c->lane0, hi = c->lane1; /* invariant: lane_item[lo] <= item < lane_item[hi] */
    while (hi - lo > 1) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (c->lane_item[mid] <= item)
            lo = mid;
        else
            hi = mid;
    }
    const struct attn_run *run = &op->run[lo / n_kv_head];
    const uint32_t h = lo % n_kv_head;
    float *partial = c->partial + item_i * c->partial_floats;
    struct attn_chunk chunk = {.op = op,
                               .q = op->q + run->row0 * op->q_stride +
                                    (size_t)h * c->group * op->geom->head_dim,
                               .group = c->group,
                               .m = partial + c->group * (size_t)op->geom->head_dim,
                               .l = partial + c->group * ((size_t)op->geom->head_dim + 1),
                               .acc = partial,
                               .mem = c->worker_mem + worker_i * c->worker_bytes};
    (op->pager ? narrow_paged : narrow_chunk)(c, &chunk, lo, item - c->lane_item[lo]);
    return lo;
}

/* Merges the chunks of one lane, in order. */
static void narrow_merge(const struct attn_call *c, uint32_t lane)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head, d = op->geom->head_dim;
    const uint32_t n = c->lane_item[lane + 1] - c->lane_item[lane];
    const float *first =
        c->partial + (c->lane_item[lane] - c->lane_item[c->lane0]) * c->partial_floats;
    const struct attn_run *run = &op->run[lane / n_kv_head];
    const size_t head0 = (size_t)(lane % n_kv_head) * c->group;
    for (uint32_t g = 0; g < c->group; g++) {
        float *out = op->out + run->row0 * op->out_stride + (head0 + g) * d;
        float m = -INFINITY, l = 0;
        const size_t m_at = (size_t)c->group * d + g, l_at = m_at + c->group;
        for (uint32_t j = 0; j < n; j++) m = fmaxf(m, first[j * c->partial_floats + m_at]);
        memset(out, 0, d * sizeof *out);
        for (uint32_t j = 0; j < n; j++) {
            const float *p = first + j * c->partial_floats;
            const float *acc = p + (size_t)g * d;
            const float weight = exp2f(p[m_at] - m);
            l += weight * p[l_at];
            for (uint32_t x = 0; x < d; x++) out[x] += weight * acc[x];
        }
        const float inv = 1.0f / l;
        for (uint32_t x = 0; x < d; x++) out[x] *= inv;
        if (op->lse) op->lse[run->row0 * op->n_head + head0 + g] = (m + log2f(l)) * (float)M_LN2;
    }
}

/* Reduces consecutive chunks, so that each can prefetch the next one's pages. The worker that
 * finishes the last chunk of a lane merges the partial results, all of which are complete then. */
static void narrow_items(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct attn_call *c = arg;
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t lane = narrow_item(c, i, worker_i);
        if (__atomic_sub_fetch(&c->lane_left[lane], 1, __ATOMIC_ACQ_REL) == 0)
            narrow_merge(c, lane);
    }
}

/* Computes all decode runs, as many lanes at a time as there is room for partial results. */
static void narrow_runs(struct workers *pool, struct attn_call *c, uint32_t n_slot)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head, n_lane = op->n_run * n_kv_head;
    c->lane_item[0] = 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        const struct attn_run *run = &op->run[i / n_kv_head];
        assert(run->kind != ROW_DECODE || run->n_row == 1);
        const uint32_t n = run->kind == ROW_DECODE ? lane_chunk_count(op, run, i % n_kv_head) : 0;
        c->lane_left[i] = n;
        c->lane_item[i + 1] = c->lane_item[i] + n;
    }
    for (c->lane0 = 0; c->lane0 < n_lane; c->lane0 = c->lane1) {
        const uint32_t item0 = c->lane_item[c->lane0];
        c->lane1 = c->lane0 + 1;
        assert(c->lane_item[c->lane1] - item0 <= n_slot);
        while (c->lane1 < n_lane && c->lane_item[c->lane1 + 1] - item0 <= n_slot) c->lane1++;
        workers_for_span(pool, c->lane_item[c->lane1] - item0, 1, narrow_items, c);
    }
}

/* ---- The slots ---- */

/* Bytes of a worker's memory. *out_rotated_at: offset of the rotated queries of a tile, or of a row
 * with a partial result. */
static size_t worker_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group,
                           size_t *out_rotated_at)
{
    uint32_t n_q;
    const size_t wide = attn_wide_bytes(k, g, group, &n_q), narrow = k->narrow_bytes(g, group);
    *out_rotated_at = align_line(wide > narrow ? wide : narrow);
    return *out_rotated_at + align_line((size_t)n_q * g->head_dim * sizeof(float));
}

static size_t unit_bytes(uint32_t n)
{
    return align_line(n * sizeof(struct attn_unit)) + align_line(n);
}

/* Layout of the scratch: lane_item and lane_left; the memory of each worker; partial results, which
 * units and the sums of stretches replace after the decode runs. */
size_t attn_execute_scratch(const struct attn_kernel *k, uint32_t n_worker,
                            const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                            uint32_t n_tok_max)
{
    const uint32_t group = n_head / geom->n_kv_head, d = geom->head_dim;
    const size_t lanes = (2 * (size_t)n_row * geom->n_kv_head + 1) * sizeof(uint32_t);
    const size_t partial =
        partial_floats(d, group) * sizeof(float) * slot_count(d, geom->n_kv_head, n_tok_max);
    const size_t wide = unit_bytes(attn_unit_count(n_worker, n_row, n_head)) +
                        attn_slot_count(n_worker) * attn_sums_bytes(k, geom, group);
    size_t rotated_at;
    return align_line(lanes) + (partial > wide ? partial : wide) +
           n_worker * worker_bytes(k, geom, group, &rotated_at);
}

static uint32_t row_count(const struct op_attn *op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n_run; i++) n += op->run[i].n_row;
    return n;
}

static void place_units(struct attn_call *c, uint32_t n_worker, uint8_t *at, size_t bytes)
{
    const uint32_t n = attn_unit_count(n_worker, row_count(c->op), c->op->n_head);
    c->unit = (struct attn_unit *)(void *)at;
    c->octave = at + align_line(n * sizeof *c->unit);
    c->sums = at + unit_bytes(n);
    c->sums_bytes = attn_sums_bytes(c->k, c->op->geom, c->group);
    c->n_slot = attn_slot_count(n_worker);
    assert(unit_bytes(n) + c->n_slot * c->sums_bytes <= bytes);
    (void)bytes;
}

void attn_execute(struct workers *pool, const struct op_attn *op, const struct attn_kernel *k)
{
    const struct page_geom *g = op->geom;
    assert(op->n_head % g->n_kv_head == 0 && (uintptr_t)op->scratch % 64 == 0);
    uint8_t *mem = op->scratch;
    struct attn_call c = {.op = op, .k = k, .group = op->n_head / g->n_kv_head};
    c.worker_bytes = worker_bytes(k, g, c.group, &c.rotated_at);
    c.partial_floats = partial_floats(g->head_dim, c.group);
    const size_t n_lane = (size_t)op->n_run * g->n_kv_head;
    c.lane_item = (uint32_t *)(void *)mem;
    c.lane_left = c.lane_item + n_lane + 1;
    const size_t lanes = align_line((2 * n_lane + 1) * sizeof(uint32_t));
    const size_t workers = workers_count(pool) * c.worker_bytes;
    assert(lanes + workers < op->scratch_bytes);
    const size_t rest = op->scratch_bytes - lanes - workers;
    c.worker_mem = mem + lanes;
    c.partial = (float *)(void *)(mem + lanes + workers);
    const size_t slots = rest / (c.partial_floats * sizeof(float));
    narrow_runs(pool, &c, slots < UINT32_MAX ? (uint32_t)slots : UINT32_MAX);
    place_units(&c, workers_count(pool), mem + lanes + workers, rest);
    attn_wide_runs(pool, &c);
}

struct seal_call {
    const struct op_seal *op;
    attn_seal_fn seal_q8;
};

static void seal_page(void *arg, uint32_t i, uint32_t worker_i)
{
    (void)worker_i;
    const struct seal_call *c = arg;
    const struct page_geom *g = c->op->geom;
    if (g->type_k == SAC_KV_Q8) {
        c->seal_q8(g, c->op->tail[i], c->op->sealed[i]);
        return;
    }
    const size_t half = (size_t)PAGE_TOK * g->head_dim * 2;
    memcpy(c->op->sealed[i] + g->k, c->op->tail[i], half);
    memcpy(c->op->sealed[i] + g->v, c->op->tail[i] + g->tail_v, half);
}

void attn_seal(struct workers *pool, const struct op_seal *op, attn_seal_fn seal_q8)
{
    struct seal_call c = {.op = op, .seal_q8 = seal_q8};
    workers_for(pool, op->n_page, seal_page, &c);
}
