/* logits.c: from the last layer to logits. Rows are gathered, normalised and multiplied by the
 * output matrix, always by narrow kernels, which round less than wide ones: no later layer averages
 * the rounding out, and a prompt needs few such rows.
 *
 * A row that needs only its k largest logits (sac_seq_use_top) is screened. model/screen.h stores a
 * short form of the matrix, which gives an estimate of every logit and a bound of its error. Then
 *  1. the k groups of tokens with the largest estimates are computed exactly; the k-th largest of
 *     their maxima is a threshold that k tokens reach,
 *  2. all other groups are computed in which some token may reach the threshold,
 *  3. the remaining logits become -INFINITY.
 * Tokens that a mask excludes are ignored in this.
 *
 * Every logit returned is bit for bit the one of the full projection, so screening can be switched
 * at any row. If many groups are left in step 2, as with few parameters and a flat distribution,
 * the next rows are computed in full.
 *
 * A device computes all logits, but copies only the largest back for rows that need a few. */
#include "engine/logits.h"

#include "engine/engine.h"
#include "engine/layer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define SPAN      256u  /* groups that a worker takes at a time */
#define PAUSE     32u   /* rows computed in full after one for which screening did not pay; */
#define PAUSE_MAX 1024u /* doubled each time, up to this */

static const struct screen *screen_of(const sac_engine *e)
{
    return &e->weights->screen;
}

void logits_plan(sac_engine *e, struct arena *a)
{
    const struct config *c = &e->model->config;
    struct logits *l = &e->logits;
    const size_t n_row = e->batch.n_row_max < LOGITS_ROWS ? e->batch.n_row_max : LOGITS_ROWS;
    const size_t n_group = screen_of(e)->w.n_group;
    l->stride = (size_t)e->weights->output.n_group * WEIGHT_GROUP;
    l->x = arena_take_tensor(a, n_row * c->n_embd, sizeof *l->x);
    l->y = arena_take_tensor(a, n_row * l->stride, sizeof *l->y);
    l->out = e->backend.is_host ? l->y : arena_take(a, n_row * l->stride, sizeof *l->y);
    if (!e->backend.is_host) {
        l->top = arena_take_tensor(a, n_row * LOGITS_TOP, sizeof *l->top);
        l->top_spare = arena_take_tensor(a, n_row * OP_TOP_ROOM_MAX, sizeof *l->top_spare);
        l->top_out = arena_take(a, n_row * LOGITS_TOP, sizeof *l->top_out);
        l->top_tok = arena_take(a, LOGITS_TOP, sizeof *l->top_tok);
        l->row = arena_take(a, n_row, sizeof *l->row);
    }
    l->most = arena_take(a, n_group, sizeof *l->most);
    l->is_exact = arena_take(a, n_group, sizeof *l->is_exact);
    l->list = arena_take(a, n_group, sizeof *l->list);
    l->spare = arena_take(a, n_group, sizeof *l->spare);
    l->value = arena_take(a, n_group, sizeof *l->value);
}

/* ---- Projection ---- */

/* y [n_row, stride] = W x; with n_list > 0 only the groups of l->list. */
static void project(sac_engine *e, const struct weight *w, const float *x, float *y, uint32_t n_row,
                    uint32_t n_list)
{
    const uint32_t n_embd = e->model->config.n_embd;
    struct op_linear op = {
        .x = x,
        .x_stride = n_embd,
        .n_row = n_row,
        .n_in = n_embd,
        .kind = ROW_DECODE,
        .epilogue = LINEAR_STORE,
        .n_part = 1,
        .part = {{w, NULL, y, e->logits.stride}},
        .group = n_list ? e->logits.list : NULL,
        .n_group = n_list,
    };
    const uint64_t start = clock_us();
    layer_linear(e, &op);
    e->stats.linear_us += clock_us() - start;
    if (w != &e->weights->output) return;
    const uint64_t n_computed = n_list ? (uint64_t)n_list * WEIGHT_GROUP : w->n_out;
    e->stats.n_logit_computed += n_row * n_computed;
}

/* ---- Screening one row ---- */

struct screening {
    sac_engine *e;
    const float *x;
    float *y;
    const uint64_t *mask; /* tokens that may be selected; NULL: all */
    struct screen_norms norms;
    float bar;
};

/* WEIGHT_GROUP divides 64, so the bits of a group are in one word. */
static void mask_group(const struct screening *s, uint32_t g)
{
    const uint32_t first = g * WEIGHT_GROUP;
    if (!s->mask) return;
    const uint64_t bits = s->mask[first / 64] >> first % 64;
    for (uint32_t i = 0; i < WEIGHT_GROUP; i++)
        if (!(bits >> i & 1)) s->y[first + i] = -INFINITY;
}

static float most_of(const float *y)
{
    float most = y[0];
    for (uint32_t i = 1; i < WEIGHT_GROUP; i++) most = y[i] > most ? y[i] : most;
    return most;
}

static void find_most(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct screening *s = arg;
    struct logits *l = &s->e->logits;
    (void)worker_i;
    for (uint32_t g = begin; g < end; g++) {
        mask_group(s, g);
        l->most[g] = most_of(s->y + (size_t)g * WEIGHT_GROUP);
    }
    memset(l->is_exact + begin, 0, end - begin);
}

/* Marks the groups that are not exact yet and in which a token may reach the threshold. */
static void find_open(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct screening *s = arg;
    const struct screen *screen = screen_of(s->e);
    struct logits *l = &s->e->logits;
    (void)worker_i;
    for (uint32_t g = begin; g < end; g++) {
        l->spare[g] = 0;
        if (l->is_exact[g] || l->most[g] == -INFINITY) continue;
        if (l->most[g] + screen->left_max[g] * s->norms.all < s->bar) continue;
        l->spare[g] =
            screen_may_reach(screen, g, &s->norms, s->y + (size_t)g * WEIGHT_GROUP, s->bar);
    }
}

static void drop_rest(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct screening *s = arg;
    (void)worker_i;
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t i = 0; !s->e->logits.is_exact[g] && i < WEIGHT_GROUP; i++)
            s->y[g * WEIGHT_GROUP + i] = -INFINITY;
}

static struct op_cut best_of(const sac_engine *e, const float *value, uint32_t n, uint32_t k)
{
    return e->ops.best(
        &(struct op_best){.value = value, .n = n, .target = k, .spare = e->logits.spare});
}

/* Computes the groups of the list exactly. */
static void compute_list(const struct screening *s, uint32_t n)
{
    struct logits *l = &s->e->logits;
    assert(n <= screen_of(s->e)->w.n_group);
    if (n) project(s->e, &s->e->weights->output, s->x, s->y, 1, n);
    for (uint32_t i = 0; i < n; i++) {
        mask_group(s, l->list[i]);
        l->is_exact[l->list[i]] = true;
    }
}

/* Computes the k groups with the largest estimates, and those equal to the k-th, and sets the
 * threshold; without k groups that the mask allows, there is none. */
static void compute_best(struct screening *s, uint32_t k)
{
    struct logits *l = &s->e->logits;
    const uint32_t n_group = screen_of(s->e)->w.n_group;
    const uint32_t key = best_of(s->e, l->most, n_group, k).key;
    uint32_t n = 0;
    for (uint32_t g = 0; g < n_group; g++)
        if (op_best_key(l->most[g]) >= key && l->most[g] > -INFINITY) l->list[n++] = g;
    compute_list(s, n);
    for (uint32_t i = 0; i < n; i++)
        l->value[i] = most_of(s->y + (size_t)l->list[i] * WEIGHT_GROUP);
    s->bar = n < k ? -INFINITY : op_best_value(best_of(s->e, l->value, n, k).key);
}

/* `y` holds estimates and receives logits; false: screening would be as much work as computing all
 * logits. */
static bool screen_row(sac_engine *e, const float *x, float *y, const struct seq *seq)
{
    struct logits *l = &e->logits;
    struct screening s = {.e = e, .x = x, .y = y, .mask = seq->mask};
    assert(seq->n_top > 0);
    const uint32_t n_group = screen_of(e)->w.n_group;
    if (!screen_find_norms(&s.norms, screen_of(e), x)) return false;
    for (size_t i = e->model->config.n_vocab; i < l->stride; i++) y[i] = -INFINITY;
    workers_for_span(e->workers, n_group, SPAN, find_most, &s);
    compute_best(&s, seq->n_top);
    workers_for_span(e->workers, n_group, SPAN, find_open, &s);
    uint32_t n = 0;
    for (uint32_t g = 0; g < n_group; g++)
        if (l->spare[g]) l->list[n++] = g;
    if (n > n_group / 3) return false;
    compute_list(&s, n);
    workers_for_span(e->workers, n_group, SPAN, drop_rest, &s);
    return true;
}

/* ---- Rows ---- */

/* Whether a row's logits are screened: it needs few of them, and no later step (such as a softcap)
 * can make different logits equal. */
static bool is_screened(const sac_engine *e, uint32_t n_top)
{
    return n_top > 0 && n_top < screen_of(e)->w.n_group / 16 && e->logits.pause == 0 &&
           e->model->config.final_softcap <= 0;
}

static void set_pause(struct logits *l, bool pays)
{
    const uint32_t next = l->last_pause ? 2 * l->last_pause : PAUSE;
    l->last_pause = pays ? 0 : next < PAUSE_MAX ? next : PAUSE_MAX;
    l->pause = l->last_pause;
}

/* Computes the logits of `n` rows of one kind, which are in l->x from row r0 on. */
static void compute_rows(sac_engine *e, const uint32_t *rows, uint32_t r0, uint32_t n,
                         bool screened)
{
    const struct weights *w = e->weights;
    const uint32_t n_embd = e->model->config.n_embd;
    struct logits *l = &e->logits;
    float *x = l->x + (size_t)r0 * n_embd, *y = l->y + r0 * l->stride;
    e->stats.n_logit += (uint64_t)n * w->output.n_out;
    if (!screened) {
        l->pause -= l->pause < n ? l->pause : n;
        project(e, &w->output, x, y, n, 0);
        return;
    }
    project(e, &w->screen.w, x, y, n, 0);
    for (uint32_t i = 0; i < n; i++, x += n_embd, y += l->stride) {
        const bool pays = screen_row(e, x, y, &e->seqs[e->batch.seq_i[rows[r0 + i]]]);
        set_pause(l, pays);
        if (!pays) project(e, &w->output, x, y, 1, 0);
    }
}

static void softcap(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++) x[i] = cap * tanhf(x[i] / cap);
}

static void normalise(sac_engine *e, const uint32_t *rows, uint32_t n)
{
    const uint32_t n_embd = e->model->config.n_embd;
    struct logits *l = &e->logits;
    for (uint32_t i = 0, end; i < n; i = end) { /* neighbouring rows of the same kind together */
        for (end = i + 1; end < n && rows[end] == rows[end - 1] + 1;) end++;
        backend_copy(&e->backend, l->x + (size_t)i * n_embd,
                     e->scratch.x + (size_t)rows[i] * n_embd,
                     (size_t)(end - i) * n_embd * sizeof *l->x);
    }
    e->ops.rmsnorm(e->workers, &(struct op_rmsnorm){.x = l->x,
                                                    .y = l->x,
                                                    .x_stride = n_embd,
                                                    .y_stride = n_embd,
                                                    .n_row = n,
                                                    .n_group = 1,
                                                    .width = n_embd,
                                                    .w = e->weights->output_norm,
                                                    .eps = e->model->config.norm_eps});
}

static sac_status wait_one(sac_engine *e, sac_error *err)
{
    const sac_status status = place_wait(e, err);
    e->runs_on = false;
    if (status != SAC_OK) {
        prefill_device_drop(e);
        return status;
    }
    decode_device_count(e);
    prefill_device_count(e);
    return SAC_OK;
}

/* Waits for the step. A device's selections are counted before any row is reported. */
static sac_status wait_step(sac_engine *e, sac_error *err)
{
    sac_status first = SAC_OK;
    for (uint32_t i = 0; i < e->tp.n; i++) {
        sac_error why;
        const sac_status status = wait_one(e->tp.of[i], &why);
        if (status != SAC_OK && first == SAC_OK) first = error_set(err, status, "%s", why.msg);
    }
    tensor_parallel_collect(e);
    return first;
}

void logits_settle(sac_engine *e)
{
    sac_error err; /* a device that fails here fails in the next step, too */
    if (e->runs_on) (void)wait_step(e, &err);
}

/* Whether the next step may be enqueued while a device computes this one: only for prompts that
 * continue, without rows whose logits are wanted, and if nothing measures the step's time. */
static bool may_run_on(const sac_engine *e)
{
    const struct batch *b = &e->batch;
    if (e->backend.is_host || e->pool.offload || e->watch || e->params.tbt_target_ms > 0 ||
        b->n_decode > 0)
        return false;
    for (uint32_t i = 0; i < e->tp.n; i++)
        if (!prefill_device_has_room(e->tp.of[i])) return false;
    for (uint32_t i = 0; i < b->n_run; i++) {
        const struct seq *s = &e->seqs[b->run[i].seq_i];
        if (s->n_done == s->n_all) return false;
    }
    for (uint32_t r = 0; r < b->n_row; r++)
        if (b->want[r]) return false;
    return true;
}

/* ---- From a device ---- */

static uint32_t count_ruled_out(const uint64_t *mask, uint32_t n_vocab)
{
    uint32_t n = 0;
    for (uint32_t i = 0; mask && i < (n_vocab + 63) / 64; i++)
        n += (uint32_t)__builtin_popcountll(mask[i]);
    return mask ? n_vocab - n : 0;
}

/* How many of a row's largest logits are copied from the device, because no others are wanted; 0:
 * all. Masked tokens may be among the largest, so as many more are copied as tokens are masked:
 * few, if these are the tokens that end a text, but nearly all with a grammar. */
static uint32_t top_of(const sac_engine *e, uint32_t row)
{
    const struct seq *s = &e->seqs[e->batch.seq_i[row]];
    const struct config *c = &e->model->config;
    if (e->backend.is_host || s->n_top == 0 || c->final_softcap > 0) return 0;
    const uint64_t n = (uint64_t)s->n_top + count_ruled_out(s->mask, c->n_vocab);
    const bool fits = n <= LOGITS_TOP && n <= c->n_vocab &&
                      op_top_room(c->n_vocab, (uint32_t)n) <= OP_TOP_ROOM_MAX;
    return fits ? (uint32_t)n : 0;
}

/* Copies rows from the device; those that need the same number of logits together. */
static void bring_rows(sac_engine *e, const uint32_t *rows, uint32_t n)
{
    struct logits *l = &e->logits;
    for (uint32_t r = 0, end; r < n; r = end) {
        const uint32_t k = top_of(e, rows[r]);
        for (end = r; end < n && top_of(e, rows[end]) == k; end++) {
            l->row[end].n_top = k;
            l->row[end].top_at = r * LOGITS_TOP + (end - r) * k;
        }
        if (k == 0) {
            backend_down(&e->backend, l->out + r * l->stride, l->y + r * l->stride,
                         (end - r) * l->stride * sizeof *l->y);
            continue;
        }
        struct op_top_item *top = l->top + (size_t)r * LOGITS_TOP;
        e->ops.top(e->workers, &(struct op_top){.x = l->y + r * l->stride,
                                                .stride = l->stride,
                                                .n_row = end - r,
                                                .n = e->model->config.n_vocab,
                                                .k = k,
                                                .spare = l->top_spare + (size_t)r * OP_TOP_ROOM_MAX,
                                                .out = top});
        backend_down(&e->backend, l->top_out + (size_t)r * LOGITS_TOP, top,
                     (size_t)(end - r) * k * sizeof *top);
    }
}

/* The tokens of row i whose logits were copied, ascending. */
static const int32_t *name_top(const struct logits *l, uint32_t i)
{
    const struct logits_row *r = &l->row[i];
    const struct op_top_item *top = l->top_out + r->top_at;
    for (uint32_t j = 0, k; j < r->n_top; j++) {
        for (k = j; k > 0 && l->top_tok[k - 1] > (int32_t)top[j].id; k--)
            l->top_tok[k] = l->top_tok[k - 1];
        l->top_tok[k] = (int32_t)top[j].id;
    }
    return l->top_tok;
}

/* Writes the copied largest logits of row i into a row of -INFINITY; with `put` false, removes
 * them. */
static void put_top(struct logits *l, uint32_t i, bool put)
{
    struct logits_row *r = &l->row[i];
    const struct op_top_item *top = l->top_out + r->top_at;
    float *y = l->out + i * l->stride;
    for (size_t j = 0; r->n_top && !r->is_blank && j < l->stride; j++) y[j] = -INFINITY;
    r->is_blank = r->n_top > 0;
    for (uint32_t j = 0; j < r->n_top; j++) y[top[j].id] = put ? top[j].value : -INFINITY;
}

/* Enqueues the copy of the rows' logits to l->out, which is complete after the next wait. */
static void queue_block(sac_engine *e, const uint32_t *rows, uint32_t n)
{
    const struct batch *b = &e->batch;
    assert(n > 0 && n <= LOGITS_ROWS);
    place_enter(e, place_of_output(e));
    normalise(e, rows, n);
    for (uint32_t r0 = 0, end; r0 < n; r0 = end) {
        const bool screened = is_screened(e, e->seqs[b->seq_i[rows[r0]]].n_top);
        for (end = r0 + 1; end < n; end++)
            if (is_screened(e, e->seqs[b->seq_i[rows[end]]].n_top) != screened) break;
        compute_rows(e, rows, r0, end - r0, screened);
    }
    if (!e->backend.is_host) bring_rows(e, rows, n);
    place_enter(e, 0); /* a callback may do anything that is allowed between steps */
}

void logits_queue(sac_engine *e)
{
    uint32_t rows[LOGITS_ROWS];
    for (uint32_t r = 0; r < e->batch.n_row; r++) rows[r] = r;
    queue_block(e, rows, e->batch.n_row);
}

bool logits_comes_so(const sac_engine *e, uint32_t row)
{
    return e->logits.row[row].n_top == top_of(e, row);
}

static sac_status run_states(sac_engine *e, const uint32_t *rows, uint32_t n, sac_row_fn on_row,
                             void *user, sac_error *err)
{
    const struct batch *b = &e->batch;
    assert(n > 0 && n <= LOGITS_ROWS && e->place[place_of_output(e)].backend.is_host);
    place_enter(e, place_of_output(e));
    normalise(e, rows, n);
    place_enter(e, 0);
    TRY(wait_step(e, err));
    for (uint32_t i = 0; i < n; i++)
        on_row(user, &(sac_row){.seq = b->seq_i[rows[i]],
                                .pos = b->pos[rows[i]],
                                .tok = b->tok[rows[i]],
                                .state = e->logits.x + (size_t)i * e->model->config.n_embd});
    return SAC_OK;
}

static sac_status run_logits(sac_engine *e, const uint32_t *rows, uint32_t n, sac_row_fn on_row,
                             void *user, sac_error *err)
{
    const struct config *c = &e->model->config;
    const struct batch *b = &e->batch;
    struct logits *l = &e->logits;
    const bool is_host = e->place[place_of_output(e)].backend.is_host;
    if (!e->ahead.is_taken) queue_block(e, rows, n);
    ahead_describe(e);
    TRY(wait_step(e, err));
    for (uint32_t i = 0; i < n; i++) {
        float *y = l->out + i * l->stride;
        if (!is_host) put_top(l, i, true);
        if (c->final_softcap > 0) softcap(y, c->n_vocab, c->final_softcap);
        const uint32_t n_top = is_host ? 0 : l->row[i].n_top;
        on_row(user, &(sac_row){.seq = b->seq_i[rows[i]],
                                .pos = b->pos[rows[i]],
                                .tok = b->tok[rows[i]],
                                .logits = y,
                                .top = n_top ? name_top(l, i) : NULL,
                                .n_top = n_top});
        if (!is_host) put_top(l, i, false);
    }
    return SAC_OK;
}

/* Computes and reports rows that want the same: logits, or hidden states. */
static sac_status run_block(sac_engine *e, const uint32_t *rows, uint32_t n, sac_row_fn on_row,
                            void *user, sac_error *err)
{
    const bool states = e->batch.want[rows[0]] == TOK_STATE;
    return (states ? run_states : run_logits)(e, rows, n, on_row, user, err);
}

sac_status logits_run(sac_engine *e, sac_row_fn on_row, void *user, sac_error *err)
{
    const struct batch *b = &e->batch;
    uint32_t rows[LOGITS_ROWS], n = 0;
    e->runs_on = may_run_on(e);
    if (e->runs_on) return SAC_OK;
    if (!on_row) return wait_step(e, err);
    /* Hidden states are being copied. */
    if (e->n_place > 1 && place_of_output(e) == 0) TRY(wait_step(e, err));
    for (uint32_t r = 0; r <= b->n_row; r++) {
        const uint8_t want = r < b->n_row ? b->want[r] : 0;
        if (n == LOGITS_ROWS || (n && (r == b->n_row || (want && want != b->want[rows[0]])))) {
            TRY(run_block(e, rows, n, on_row, user, err));
            n = 0;
        }
        if (want) rows[n++] = r;
    }
    return wait_step(e, err);
}
