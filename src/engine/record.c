/* record.c: see the header. Owns the shadow computation and the public call that switches it on.
 *
 * A job is one decode row, or the rows of a prompt chunk that share an own page, for one KV head.
 * It reads all pages that its rows see, as the plain values of page_read, whatever the method read.
 * For each query it keeps an online softmax (the maximum so far, the sum, and the weighted values
 * relative to it) and the log of each page's sum, from which the masses follow at the end.
 *
 * Precision: products are summed in f32 over BLOCK channels (scores) and over one page (values),
 * everything else in double. The reference is thus about ten times closer to the exact result than
 * the kernels.
 *
 * Up to n_job_max jobs run in parallel; records are delivered in order by the caller's thread. The
 * shadow never writes what a step reads, so logits with and without it have the same bits. */
#include "engine/record.h"

#include "engine/engine.h"
#include "engine/proof.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BLOCK 16u /* channels; divides head_dim, a multiple of 32 */

struct record_job {
    const struct attn_run *run;
    uint32_t row, n_row, pos, kv_head; /* row: index in the batch; pos: position of the first row */
    uint32_t n_page, n_page_read, n_tok_seen, n_tok_read;
    uint64_t k_bytes, v_bytes;
    struct reading_lane lane; /* with the proved mass; 0: nothing was proved */
    float mass, out_err, out_left, out_bound;
    uint32_t *mask;      /* [max_page] bits of the tokens of each page that are read */
    uint32_t *head_mask; /* [group, max_page] the same by query head, if the heads differ */
    /* [group or 1, max_page, PAGE_TOK] log-weights of the tokens in a mask, if they have any */
    float *logw;
    bool by_head, weighed;
    uint32_t *page;   /* [max_page] */
    float *page_mass; /* [max_page] */
    float *tok_mass;  /* [max_page * PAGE_TOK], for a single row */
};
_Static_assert(PAGE_TOK == 32, "a mask has one bit for each token of a page");
#define MASK_ALL UINT32_MAX

/* One worker's memory. A query is one row and one query head of the group; there are at most
 * PAGE_TOK * group of them. */
struct record_work {
    float *k, *k_turned; /* [PAGE_TOK, head_dim], [head_dim, PAGE_TOK] */
    float *v;            /* [PAGE_TOK, head_dim] */
    double *most, *sum;  /* [query] maximum score and softmax denominator */
    double *read;        /* [query] the part of the denominator that was read */
    double *stand;       /* [query] the same, with the weights of the tokens that were read */
    double *acc;         /* [query, head_dim] */
    double *acc_read;    /* the same for the tokens that were read, with their weights */
    double *page_log;    /* [query, max_page] log of a page's sum of exp(score) */
    float *tok_score;    /* [group, max_page * PAGE_TOK] of a single row */
};

static uint32_t group_of(const sac_engine *e)
{
    return e->model->config.n_head / e->model->config.n_kv_head;
}

void record_plan(sac_engine *e, struct arena *a)
{
    struct record *r = &e->record;
    const size_t d = e->model->config.head_dim, max_page = e->pool.max_page;
    /* For a watcher there is only one decode row at a time. */
    const size_t n_row = e->params.record ? PAGE_TOK : 1, n_query = n_row * group_of(e);
    const size_t n_worker = e->params.n_threads;
    if (!e->params.record && !e->params.watch) return;
    const uint32_t n_kv_head = e->model->config.n_kv_head;
    r->n_job_max = 2 * e->params.n_threads > n_kv_head ? 2 * e->params.n_threads : n_kv_head;
    r->job = arena_take(a, r->n_job_max, sizeof *r->job);
    r->work = arena_take(a, n_worker, sizeof *r->work);
    for (size_t i = 0; i < r->n_job_max; i++) {
        uint32_t *mask = arena_take(a, max_page, sizeof *mask);
        uint32_t *head_mask = arena_take(a, group_of(e) * max_page, sizeof *mask);
        float *logw = arena_take(a, group_of(e) * max_page * PAGE_TOK, sizeof *logw);
        uint32_t *page = arena_take(a, max_page, sizeof *page);
        float *page_mass = arena_take(a, max_page, sizeof *page_mass);
        float *tok_mass = arena_take(a, max_page * PAGE_TOK, sizeof *tok_mass);
        if (a->base)
            r->job[i] = (struct record_job){.mask = mask,
                                            .head_mask = head_mask,
                                            .logw = logw,
                                            .page = page,
                                            .page_mass = page_mass,
                                            .tok_mass = tok_mass};
    }
    for (size_t i = 0; i < n_worker; i++) {
        const struct record_work w = {
            .k = arena_take(a, PAGE_TOK * d, sizeof(float)),
            .k_turned = arena_take(a, PAGE_TOK * d, sizeof(float)),
            .v = arena_take(a, PAGE_TOK * d, sizeof(float)),
            .most = arena_take(a, n_query, sizeof(double)),
            .sum = arena_take(a, n_query, sizeof(double)),
            .read = arena_take(a, n_query, sizeof(double)),
            .stand = arena_take(a, n_query, sizeof(double)),
            .acc = arena_take(a, n_query * d, sizeof(double)),
            .acc_read = arena_take(a, n_query * d, sizeof(double)),
            .page_log = arena_take(a, n_query * max_page, sizeof(double)),
            .tok_score = arena_take(a, group_of(e) * max_page * PAGE_TOK, sizeof(float)),
        };
        if (a->base) r->work[i] = w;
    }
}

/* ---- What was read ---- */

/* The first position that one of the rows sees. */
static uint32_t first_seen(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* The single tokens of a list, and their log-weights, if any. */
struct tokens {
    const uint32_t *tok, *ptr;
    const float *tok_logw;
};

static void mark_tokens(uint32_t *mask, float *logw, struct tokens t)
{
    for (uint32_t i = t.ptr[0]; i < t.ptr[1]; i++) {
        mask[t.tok[i] / PAGE_TOK] |= 1u << t.tok[i] % PAGE_TOK;
        if (t.tok_logw) logw[t.tok[i]] = t.tok_logw[i];
    }
}

/* Sets the bits of the tokens in list `list` of a plan, in pages before `own`. */
static void mark_list(uint32_t *mask, float *logw, const struct attn_plan *plan, uint32_t list,
                      uint32_t own)
{
    memset(mask, 0, own * sizeof *mask);
    if (plan->tok_logw) memset(logw, 0, (own + 1) * (size_t)PAGE_TOK * sizeof *logw);
    for (uint32_t i = plan->range_ptr[list]; i < plan->range_ptr[list + 1]; i++)
        for (uint32_t p = plan->range[i].begin; p < plan->range[i].end && p < own; p++)
            mask[p] = MASK_ALL;
    if (plan->tok)
        mark_tokens(mask, logw, (struct tokens){plan->tok, &plan->tok_ptr[list], plan->tok_logw});
}

static void mark_plan(const sac_engine *e, struct record_job *j, uint32_t own)
{
    const struct attn_plan *plan = j->run->plan;
    const uint32_t tile = j->pos / plan->tile_tok - j->run->pos0 / plan->tile_tok;
    const uint32_t lane = tile * e->pool.geom.n_kv_head + j->kv_head;
    j->by_head = plan->by_head;
    j->weighed = plan->tok_logw != NULL;
    if (!j->by_head) {
        mark_list(j->mask, j->logw, plan, lane, own);
        return;
    }
    for (uint32_t i = 0; i < group_of(e); i++) {
        const size_t at = (size_t)i * e->pool.max_page;
        uint32_t *mask = j->head_mask + at;
        mark_list(mask, j->logw + at * PAGE_TOK, plan, lane * group_of(e) + i, own);
        mask[own] = MASK_ALL;
        for (uint32_t p = 0; p < own; p++) j->mask[p] |= mask[p];
    }
}

/* Sets the masks of the pages before the rows' own page, `own`, to what the attention operation
 * reads. */
static void mark(const sac_engine *e, struct record_job *j, uint32_t own, uint32_t first)
{
    const struct attn_run *run = j->run;
    memset(j->mask, 0, own * sizeof *j->mask);
    j->by_head = false;
    j->weighed = run->select_tok && run->select_logw;
    if (j->weighed) memset(j->logw, 0, (own + 1) * (size_t)PAGE_TOK * sizeof *j->logw);
    if (run->select) {
        for (uint32_t i = run->select_ptr[j->kv_head]; i < run->select_ptr[j->kv_head + 1]; i++)
            j->mask[run->select[i]] = MASK_ALL;
        if (run->select_tok)
            mark_tokens(j->mask, j->logw,
                        (struct tokens){run->select_tok, &run->select_tok_ptr[j->kv_head],
                                        run->select_logw});
    } else if (run->plan) {
        mark_plan(e, j, own);
    } else {
        for (uint32_t p = first; p < own; p++) j->mask[p] = MASK_ALL;
    }
}

/* Lists the pages that a job's rows read, and counts the bytes of their cache lines. */
static void list_pages(const sac_engine *e, struct record_job *j, uint32_t window)
{
    const struct page_geom *g = &e->pool.geom;
    const uint32_t own = j->pos / PAGE_TOK, d = g->head_dim;
    const uint32_t n_own_tok = j->pos % PAGE_TOK + j->n_row;
    const uint32_t first = first_seen(j->pos, window) / PAGE_TOK;
    uint32_t n = 0;
    mark(e, j, own, first);
    j->n_tok_seen = (own - first) * PAGE_TOK;
    j->n_tok_read = 0;
    j->mask[own] = MASK_ALL;
    j->k_bytes = j->v_bytes = (uint64_t)n_own_tok * d * 2; /* 16 bit */
    for (uint32_t p = 0; p < own; p++) {
        if (!j->mask[p]) continue;
        j->page[n++] = p;
        j->n_tok_read += (uint32_t)__builtin_popcount(j->mask[p]);
        j->k_bytes += page_lines_keys(&e->attend.lines, j->mask[p]);
        j->v_bytes += page_lines_values(&e->attend.lines, j->mask[p]);
    }
    const uint64_t n_attended = j->lane.attended ? j->lane.meter.bytes[METER_ATTEND] : 0;
    if (n_attended > 0) j->k_bytes = 2 * (uint64_t)n_own_tok * d * 2 + n_attended - j->v_bytes;
    j->page[n++] = own;
    j->n_page_read = n;
    j->n_page = own + 1;
    assert(n_own_tok <= PAGE_TOK);
}

/* Bytes of all jobs of the batch, among which the layer's time is divided. `j` is scratch. */
static uint64_t count_bytes(const sac_engine *e, struct record_job *j, const struct reading *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n_run; i++) {
        j->run = &r->run[i];
        const uint32_t end = j->run->pos0 + j->run->n_row;
        for (j->pos = j->run->pos0; j->pos < end; j->pos += j->n_row) {
            const uint32_t to_border = PAGE_TOK - j->pos % PAGE_TOK;
            j->n_row = end - j->pos < to_border ? end - j->pos : to_border;
            for (j->kv_head = 0; j->kv_head < e->pool.geom.n_kv_head; j->kv_head++) {
                list_pages(e, j, r->window);
                bytes += j->k_bytes + j->v_bytes;
            }
        }
    }
    return bytes;
}

/* ---- The reference ---- */

struct shadow {
    sac_engine *e;
    const struct reading *r;
    uint64_t attend_us, bytes; /* of the whole layer */
};

/* The first n_tok keys and values of a page for a job's KV head; the keys also transposed,
 * [head_dim, PAGE_TOK]. */
static void load_page(const struct shadow *s, const struct record_job *j, struct record_work *w,
                      uint32_t page, uint32_t n_tok)
{
    const struct page_geom *g = &s->e->pool.geom;
    const struct attn_run *run = j->run;
    const uint32_t h = j->kv_head, d = g->head_dim;
    if (page == j->pos / PAGE_TOK) {
        page_read(w->k, w->v, g, attn_own_page(run, g, j->pos, h), PAGE_TAIL, n_tok);
    } else {
        const sac_status status =
            pool_read(&s->e->pool, &run->table[h * run->table_stride + page], 1, w->k, w->v, NULL);
        if (status != SAC_OK)
            __atomic_store_n(&s->e->attend.lost[run - s->r->run], (uint8_t)status,
                             __ATOMIC_RELAXED);
    }
    for (size_t c = 0; c < d; c++)
        for (size_t t = 0; t < PAGE_TOK; t++)
            w->k_turned[c * PAGE_TOK + t] = t < n_tok ? w->k[t * d + c] : 0.0f;
}

static void score_page(double score[PAGE_TOK], const float *q, const float *k_turned, uint32_t d)
{
    for (uint32_t t = 0; t < PAGE_TOK; t++) score[t] = 0;
    for (uint32_t c0 = 0; c0 < d; c0 += BLOCK) {
        float part[PAGE_TOK] = {0};
        for (uint32_t c = c0; c < c0 + BLOCK; c++)
            for (uint32_t t = 0; t < PAGE_TOK; t++) part[t] += q[c] * k_turned[c * PAGE_TOK + t];
        for (uint32_t t = 0; t < PAGE_TOK; t++) score[t] += (double)part[t];
    }
}

/* Tokens of a page that a query sees. */
struct seen {
    uint32_t lo, hi;
    uint32_t mask;     /* of these, the tokens that the method has read */
    const float *logw; /* [PAGE_TOK] the log-weights with which they were read, or NULL */
};

static void add_scaled(float *sum, float by, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) sum[i] += by * x[i];
}

/* Adds the loaded page to query i; `score` holds the unscaled products. Returns the log of the
 * page's softmax sum. */
static double take_page(const struct config *c, const struct record_work *w, uint32_t i,
                        double score[PAGE_TOK], struct seen seen)
{
    const uint32_t d = c->head_dim;
    float weight[PAGE_TOK], part[HEAD_DIM_MAX], part_read[HEAD_DIM_MAX];
    double most = -INFINITY, sum = 0, read = 0, stand = 0;
    for (uint32_t t = seen.lo; t < seen.hi; t++) {
        score[t] *= (double)c->attn_scale;
        if (c->attn_softcap > 0)
            score[t] = (double)c->attn_softcap * tanh(score[t] / (double)c->attn_softcap);
        if (score[t] > most) most = score[t];
    }
    memset(part, 0, d * sizeof *part);
    memset(part_read, 0, d * sizeof *part_read);
    for (uint32_t t = seen.lo; t < seen.hi; t++) {
        weight[t] = expf((float)(score[t] - most));
        sum += (double)weight[t];
        const float of_read = seen.mask >> t & 1 ? weight[t] : 0;
        const float as_read = of_read * (seen.logw ? expf(seen.logw[t]) : 1);
        read += (double)of_read;
        stand += (double)as_read;
        const float *v = w->v + (size_t)t * d;
        add_scaled(part, weight[t], v, d);
        if (as_read > 0) add_scaled(part_read, as_read, v, d);
    }
    double *acc = w->acc + (size_t)i * d, *acc_read = w->acc_read + (size_t)i * d;
    const double top = most > w->most[i] ? most : w->most[i];
    const double keep = exp(w->most[i] - top), add = exp(most - top);
    for (uint32_t k = 0; k < d; k++) {
        acc[k] = acc[k] * keep + add * (double)part[k];
        acc_read[k] = acc_read[k] * keep + add * (double)part_read[k];
    }
    w->sum[i] = w->sum[i] * keep + add * sum;
    w->read[i] = w->read[i] * keep + add * read;
    w->stand[i] = w->stand[i] * keep + add * stand;
    w->most[i] = top;
    return most + log(sum);
}

/* Stores a page's scores for one query; tokens that it does not see have no mass. */
static void keep_scores(struct record_work *w, size_t page_i, const double score[PAGE_TOK],
                        struct seen seen)
{
    float *to = w->tok_score + page_i * PAGE_TOK;
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        to[t] = t >= seen.lo && t < seen.hi ? (float)score[t] : -INFINITY;
}

/* The query, rotated for the keys of a page. */
static const float *meet_page(const struct shadow *s, const struct record_job *j, uint32_t page,
                              float *turned, const float *q)
{
    const struct attn_run *run = j->run;
    const uint32_t i = segment_of(run->segment, run->n_segment, page, 0);
    if (i == run->n_segment) return q;
    segment_turn(turned, q, s->e->model->config.head_dim, &run->segment[i], s->e->shape.rope, 1);
    return turned;
}

/* All queries of a job against one page. */
static void shadow_page(const struct shadow *s, const struct record_job *j, struct record_work *w,
                        uint32_t page)
{
    const sac_engine *e = s->e;
    const struct config *c = &e->model->config;
    const uint32_t group = group_of(e), d = c->head_dim, max_page = e->pool.max_page;
    const size_t stride = (size_t)(c->n_head + 2 * c->n_kv_head) * d;
    const uint32_t page_pos = page * PAGE_TOK, n_seen = j->pos + j->n_row - page_pos;
    load_page(s, j, w, page, n_seen < PAGE_TOK ? n_seen : PAGE_TOK);
    for (uint32_t r = 0; r < j->n_row; r++) {
        const uint32_t pos = j->pos + r, from = first_seen(pos, s->r->window);
        const struct seen seen = {.lo = from > page_pos ? from - page_pos : 0,
                                  .hi = pos - page_pos < PAGE_TOK ? pos - page_pos + 1 : PAGE_TOK,
                                  .mask = j->mask[page]};
        for (uint32_t g = 0; g < group; g++) {
            const uint32_t i = r * group + g;
            float turned[HEAD_DIM_MAX];
            const float *q = meet_page(s, j, page, turned,
                                       e->scratch.qkv + (j->row + r) * stride +
                                           (size_t)(j->kv_head * group + g) * d);
            const size_t at = (j->by_head ? g : 0) * (size_t)max_page + page;
            struct seen of_head = seen;
            if (j->by_head) of_head.mask = j->head_mask[at];
            if (j->weighed) of_head.logw = j->logw + at * PAGE_TOK;
            double score[PAGE_TOK], *page_log = &w->page_log[(size_t)i * max_page + page];
            *page_log = -INFINITY;
            if (seen.lo >= seen.hi)
                continue; /* outside this row's window, but inside that of the first row */
            score_page(score, q, w->k_turned, d);
            *page_log = take_page(c, w, i, score, of_head);
            if (j->n_row == 1) keep_scores(w, (size_t)g * max_page + page, score, seen);
        }
    }
}

/* The exact effect of the omitted tokens on the output, and the proved bound of it. */
static void compare_left(struct record_job *j, const struct record_work *w, uint32_t n_query,
                         uint32_t d)
{
    double off = 0, norm = 0, bound = 0;
    for (uint32_t i = 0; i < n_query; i++) {
        double own = 0;
        for (size_t k = (size_t)i * d; k < (size_t)(i + 1) * d; k++) {
            const double is = w->acc_read[k] / w->stand[i], want = w->acc[k] / w->sum[i];
            off += (is - want) * (is - want);
            own += is * is;
        }
        norm += own;
        bound += proof_part(&j->lane, own);
    }
    j->out_left = (float)proof_relative(off, norm);
    j->out_bound = (float)(j->lane.mass_proved > 0 ? proof_relative(bound, norm) : 0);
}

/* The mass of each token from page `first` on, for a job with one row. */
static void share_tokens(const sac_engine *e, struct record_job *j, const struct record_work *w,
                         uint32_t first)
{
    const uint32_t group = group_of(e);
    const size_t n_tok = (size_t)e->pool.max_page * PAGE_TOK;
    memset(j->tok_mass, 0, (size_t)j->n_page * PAGE_TOK * sizeof *j->tok_mass);
    for (uint32_t g = 0; g < group; g++) {
        const float *score = w->tok_score + g * n_tok, most = (float)w->most[g];
        const float part = (float)(1 / (w->sum[g] * group));
        for (size_t t = (size_t)first * PAGE_TOK; t < (size_t)j->n_page * PAGE_TOK; t++)
            j->tok_mass[t] += part * expf(score[t] - most);
    }
}

/* Computes the masses, and the distance of the output from the reference. */
static void compare(const sac_engine *e, struct record_job *j, const struct record_work *w,
                    uint32_t first)
{
    const struct config *c = &e->model->config;
    const uint32_t group = group_of(e), d = c->head_dim, n_query = j->n_row * group;
    double off = 0, norm = 0;
    for (uint32_t p = first; p < j->n_page; p++) {
        double mass = 0;
        for (uint32_t i = 0; i < n_query; i++)
            mass += exp(w->page_log[(size_t)i * e->pool.max_page + p] - w->most[i]) / w->sum[i];
        j->page_mass[p] = (float)(mass / n_query);
    }
    if (j->n_row == 1) share_tokens(e, j, w, first);
    for (uint32_t i = 0; i < n_query; i++) {
        const float *out = e->scratch.attn + (j->row + i / group) * (size_t)c->n_head * d +
                           (size_t)(j->kv_head * group + i % group) * d;
        for (uint32_t k = 0; k < d; k++) {
            const double want = w->acc[(size_t)i * d + k] / w->sum[i], is = (double)out[k];
            off += (is - want) * (is - want);
            norm += want * want;
        }
    }
    j->out_err = (float)(norm > 0 ? sqrt(off / norm) : off > 0 ? INFINITY : 0);
    double read = 0;
    for (uint32_t i = 0; i < n_query; i++) read += w->read[i] / w->sum[i];
    j->mass = (float)(read / n_query);
    compare_left(j, w, n_query, d);
}

static void run_job(void *arg, uint32_t job_i, uint32_t worker_i)
{
    const struct shadow *s = arg;
    struct record_job *j = &s->e->record.job[job_i];
    struct record_work *w = &s->e->record.work[worker_i];
    const size_t d = s->e->model->config.head_dim, n_query = (size_t)j->n_row * group_of(s->e);
    list_pages(s->e, j, s->r->window);
    for (size_t i = 0; i < n_query; i++) w->most[i] = -INFINITY;
    memset(w->sum, 0, n_query * sizeof *w->sum);
    memset(w->read, 0, n_query * sizeof *w->read);
    memset(w->stand, 0, n_query * sizeof *w->stand);
    memset(w->acc, 0, n_query * d * sizeof *w->acc);
    memset(w->acc_read, 0, n_query * d * sizeof *w->acc_read);
    const uint32_t first = first_seen(j->pos, s->r->window) / PAGE_TOK;
    memset(j->page_mass, 0, first * sizeof *j->page_mass);
    for (uint32_t p = first; p < j->n_page; p++) shadow_page(s, j, w, p);
    compare(s->e, j, w, first);
}

/* ---- Records ---- */

/* The sequence of run `i` if it has a reader of its own; otherwise NULL. A sequence with freed
 * pages has no records, because these cannot be read again. */
static const struct seq *watched(const sac_engine *e, const struct reading *r, uint32_t i)
{
    const struct seq *s = &e->seqs[e->batch.seq_i[r->run[i].row0]];
    return i < r->n_decode && s->on_read && !s->has_gaps ? s : NULL;
}

bool record_is_wanted(const sac_engine *e, const struct reading *r)
{
    if (!e->record.job) return false;
    if (e->record.fn) return true;
    for (uint32_t i = 0; i < r->n_decode; i++)
        if (watched(e, r, i)) return true;
    return false;
}

static void hand_out(const sac_engine *e, const sac_read_record *record)
{
    const struct seq *s = &e->seqs[record->seq];
    if (e->record.fn) e->record.fn(e->record.user, record);
    if (record->kind == SAC_ROW_DECODE && s->on_read) s->on_read(s->read_user, record);
}

/* Runs the jobs that are set up, and delivers their records. */
static void flush(struct shadow *s, uint32_t n_job)
{
    sac_engine *e = s->e;
    const struct config *c = &e->model->config;
    const struct reading *r = s->r;
    const size_t out_stride = (size_t)c->n_head * c->head_dim;
    const uint32_t n_select = r->n_decode * c->n_kv_head;
    workers_for(e->workers, n_job, run_job, s);
    for (uint32_t i = 0; i < n_job; i++) {
        const struct record_job *j = &e->record.job[i];
        const bool decode = j->run->kind == ROW_DECODE;
        const double share = (double)(j->k_bytes + j->v_bytes) / (double)s->bytes;
        hand_out(e, &(sac_read_record){
                        .seq = e->batch.seq_i[j->row],
                        .kind = decode ? SAC_ROW_DECODE : SAC_ROW_PROMPT,
                        .pos = j->pos,
                        .n_row = j->n_row,
                        .layer = r->layer,
                        .kv_head = j->kv_head,
                        .n_page = j->n_page,
                        .n_page_read = j->n_page_read,
                        .n_tok_seen = j->n_tok_seen,
                        .n_tok_read = j->n_tok_read,
                        .page = j->page,
                        .page_mass = j->page_mass,
                        .tok_mass = j->n_row == 1 ? j->tok_mass : NULL,
                        .mass = j->mass,
                        .mass_proved = j->lane.mass_proved,
                        .out_left = j->out_left,
                        .out_bound = j->out_bound,
                        .out_err = j->out_err,
                        .k_bytes = j->k_bytes,
                        .v_bytes = j->v_bytes,
                        .side_bytes =
                            j->lane.meter.bytes[METER_CHOOSE] + j->lane.meter.bytes[METER_BUILD],
                        .select_us = decode ? (float)r->choose_us / (float)n_select : 0,
                        .attend_us = (float)(share * (double)s->attend_us),
                        .out = e->scratch.attn + j->row * out_stride +
                               (size_t)j->kv_head * group_of(e) * c->head_dim,
                        .out_stride = out_stride,
                        .n_query = group_of(e),
                    });
    }
}

void record_layer(sac_engine *e, const struct reading *r, uint64_t attend_us)
{
    const uint64_t start = clock_us();
    struct record *rec = &e->record;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    assert(rec->job && rec->work);
    struct shadow s = {
        .e = e, .r = r, .attend_us = attend_us, .bytes = count_bytes(e, rec->job, r)};
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_run; i++) {
        const struct attn_run *run = &r->run[i];
        if (!rec->fn && !watched(e, r, i)) continue;
        for (uint32_t done = 0, n_row; done < run->n_row; done += n_row) {
            const uint32_t pos = run->pos0 + done, to_border = PAGE_TOK - pos % PAGE_TOK;
            n_row = run->n_row - done < to_border ? run->n_row - done : to_border;
            for (uint32_t h = 0; h < n_kv_head; h++) {
                struct record_job *j = &rec->job[n++];
                j->run = run;
                j->row = run->row0 + done;
                j->n_row = n_row;
                j->pos = pos;
                j->kv_head = h;
                j->lane = r->lane && i < r->n_decode ? r->lane[i * n_kv_head + h]
                                                     : (struct reading_lane){0};
                if (n < rec->n_job_max) continue;
                flush(&s, n);
                n = 0;
            }
        }
    }
    if (n) flush(&s, n);
    rec->spent_us += clock_us() - start;
}

sac_status sac_engine_set_recorder(sac_engine *e, sac_read_fn fn, void *user, sac_error *err)
{
    if (fn && !e->params.record)
        return error_set(err, SAC_ERR_ARG, "the engine was created without `record`");
    e->record.fn = fn;
    e->record.user = user;
    return SAC_OK;
}
