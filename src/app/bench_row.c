/* bench_row.c: the row of a test in `saccade bench`, from the test's counts.
 *
 * Operations are those of the dense model: multiply-adds of the matrices and of every query with
 * every key that it may see, two each, whatever a method omits. The FLOP/s of a row thus tell how
 * fast the same work was done. The limit is the least time that the machine needs for a test:
 * prompt rows are bound by arithmetic, or by one reading of the weights per step; decode rows by
 * the weights and the KV that they read, or by arithmetic. Keys that a prompt's tiles share come
 * from the caches, so the KV bytes of prompts do not count. */
#include "app/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Operations ---- */

struct flop {
    double linear, attn;
};

/* Of `n` rows after `pos0` tokens; `n_logit` of them need logits. */
static struct flop count_flop(const sac_model_info *m, double pos0, double n, double n_logit)
{
    const double n_q = (double)m->n_head * m->head_dim, n_kv = (double)m->n_kv_head * m->head_dim;
    const double layer = (double)m->n_embd * (2 * n_q + 2 * n_kv + 3.0 * m->n_ff);
    const double n_full = (double)m->n_layer - m->n_window_layer;
    const double window = m->window;
    /* Row r sees pos0 + r + 1 keys, or at most the window. */
    const double n_key = n * pos0 + n * (n + 1) / 2;
    const double n_free = fmin(fmax(window - pos0, 0), n);
    const double n_near = n_free * pos0 + n_free * (n_free + 1) / 2 + (n - n_free) * window;
    return (struct flop){
        .linear = 2 * (n * layer * m->n_layer + n_logit * m->n_embd * (double)m->n_vocab),
        .attn = 4 * n_q * (n_full * n_key + m->n_window_layer * n_near),
    };
}

static struct flop prompt_flop(const struct bench_row *row)
{
    const struct bench_test *t = &row->test;
    const struct flop f = count_flop(&row->info, t->depth, t->n_prompt, t->n_prompt ? 1 : 0);
    return (struct flop){f.linear * t->n_seq, f.attn * t->n_seq};
}

static struct flop decode_flop(const struct bench_row *row)
{
    const struct bench_test *t = &row->test;
    const struct flop f =
        count_flop(&row->info, (double)t->depth + t->n_prompt, t->n_gen, t->n_gen);
    return (struct flop){f.linear * t->n_seq, f.attn * t->n_seq};
}

/* ---- Limits ---- */

struct limit {
    double read_s, compute_s;
    const char *peak; /* limit of the linear layers */
};

static struct limit limit_of(const struct bench_row *row, struct flop flop, double bytes, bool wide)
{
    const sac_machine *m = row->machine;
    struct limit l = {.read_s = bytes / (m->read_gb_s * 1e9)};
    const double linear = sac_machine_peak(m, row->isa, true, wide, &l.peak) * 1e9;
    const double attn = sac_machine_peak(m, row->isa, false, wide, NULL) * 1e9;
    l.compute_s = flop.linear / linear + flop.attn / attn;
    return l;
}

/* ---- Statistics ---- */

struct stats {
    double mean, median, min, max, stddev;
};

static int order_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct stats stats_of(const double *value, uint32_t n)
{
    double sorted[BENCH_REPS_MAX] = {0}, sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        sorted[i] = value[i];
        sum += value[i];
    }
    const double mean = sum / n;
    for (uint32_t i = 0; i < n; i++) squares += (value[i] - mean) * (value[i] - mean);
    qsort(sorted, n, sizeof sorted[0], order_double);
    return (struct stats){
        .mean = mean,
        .median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2,
        .min = sorted[0],
        .max = sorted[n - 1],
        .stddev = n > 1 ? sqrt(squares / (n - 1)) : 0,
    };
}

/* Sums over all repetitions, so that rates are totals divided by total time. */
static struct bench_phase sum_phases(const struct bench_phase *p, uint32_t n)
{
    struct bench_phase sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        sum.seconds += p[i].seconds;
        sum.linear_us += p[i].linear_us;
        sum.attn_us += p[i].attn_us;
        sum.other_us += p[i].other_us;
        sum.weight_bytes += p[i].weight_bytes;
        sum.kv_bytes += p[i].kv_bytes;
        sum.n_tok_seen += p[i].n_tok_seen;
        sum.dense_bytes += p[i].dense_bytes;
        sum.n_tok_read += p[i].n_tok_read;
        sum.n_cell += p[i].n_cell;
        sum.n_cell_read += p[i].n_cell_read;
        sum.plan_us += p[i].plan_us;
    }
    return sum;
}

/* ---- The row ---- */

static void name_test(char *out, size_t bytes, const struct bench_row *row)
{
    const struct bench_test *t = &row->test;
    int at = 0;
    if (t->n_prompt) at += snprintf(out, bytes, "pp%u", t->n_prompt);
    if (t->n_gen)
        at += snprintf(out + at, bytes - (size_t)at, "%stg%u", t->n_prompt ? "+" : "", t->n_gen);
    if (t->n_gen && t->n_top != 1)
        at += t->n_top ? snprintf(out + at, bytes - (size_t)at, " top%u", t->n_top)
                       : snprintf(out + at, bytes - (size_t)at, " all");
    if (t->n_seq > 1) at += snprintf(out + at, bytes - (size_t)at, " x%u", t->n_seq);
    if (t->depth)
        snprintf(out + at, bytes - (size_t)at, " @ d%u%s%s", t->depth, row->fill,
                 row->depth_own && t->n_seq > 1 ? " own" : "");
}

/* Statistics over all repetitions of a test. */
struct figures {
    double ts[BENCH_REPS_MAX], ns[BENCH_REPS_MAX];
    struct stats tok_s, time_ns;
    struct bench_phase prompt, decode; /* sums */
    double seconds;                    /* prompt and decode */
    double flop, limit_s;              /* per repetition */
    double median_s, stage_us;         /* per repetition; total */
    const char *limit;
    double weight_gb_s, kv_gb_s, n_step, rss;
    double share_read, share_planned; /* NAN: nothing was to be read, or planned */
    /* Page requests, if there is a KV file below memory; otherwise NAN. */
    double hit_share, bytes_fetched, bytes_wanted, n_read, wait_us;
};

static void count_tier(struct figures *f, const sac_tier_stats *a, const sac_tier_stats *b)
{
    const double n_hit = (double)(b->n_hit - a->n_hit);
    const double n = n_hit + (double)(b->n_fetch - a->n_fetch);
    const bool is_there = b->backend != NULL;
    f->hit_share = is_there && n > 0 ? n_hit / n : (double)NAN;
    const double one = is_there ? 1 : (double)NAN;
    const double n_between = (double)(b->bytes_between - a->bytes_between);
    f->bytes_fetched = one * (double)(b->bytes_fetched - a->bytes_fetched);
    f->bytes_wanted = f->bytes_fetched - n_between; /* without gaps that reads bridged */
    f->n_read = one * (double)(b->n_read - a->n_read);
    f->wait_us = one * (double)(b->wait_us - a->wait_us);
}

static struct figures figures_of(const struct bench_row *row)
{
    const struct bench_test *t = &row->test;
    const struct bench_result *r = row->result;
    const uint32_t n = r->n_rep;
    struct figures f = {0};
    for (uint32_t i = 0; i < n; i++) {
        const double seconds = r->prompt[i].seconds + r->decode[i].seconds;
        f.ns[i] = seconds * 1e9;
        f.ts[i] = t->n_seq * ((double)t->n_prompt + t->n_gen) / seconds;
    }
    f.tok_s = stats_of(f.ts, n);
    f.time_ns = stats_of(f.ns, n);
    f.prompt = sum_phases(r->prompt, n);
    f.decode = sum_phases(r->decode, n);
    f.seconds = f.prompt.seconds + f.decode.seconds;
    const struct flop wide = prompt_flop(row), narrow = decode_flop(row);
    const double decode_bytes = (f.decode.weight_bytes + f.decode.kv_bytes) / n;
    const struct limit prompt = limit_of(row, wide, f.prompt.weight_bytes / n, true),
                       decode = limit_of(row, narrow, decode_bytes, false);
    const struct limit *named = t->n_gen ? &decode : &prompt;
    f.flop = wide.linear + wide.attn + narrow.linear + narrow.attn;
    f.limit_s = fmax(prompt.read_s, prompt.compute_s) + fmax(decode.read_s, decode.compute_s);
    f.limit = named->read_s >= named->compute_s ? "read" : named->peak;
    f.weight_gb_s = (f.prompt.weight_bytes + f.decode.weight_bytes) / f.seconds * 1e-9;
    f.kv_gb_s = (f.prompt.kv_bytes + f.decode.kv_bytes) / f.seconds * 1e-9;
    f.n_step = (double)t->n_gen * n;
    f.median_s = f.time_ns.median * 1e-9;
    f.stage_us = f.seconds * 1e6;
    f.rss = row->peak_rss ? (double)row->peak_rss : (double)NAN;
    const double seen = f.decode.n_tok_seen, n_cell = f.prompt.n_cell;
    f.share_read = seen > 0 ? f.decode.n_tok_read / seen : (double)NAN;
    f.share_planned = n_cell > 0 ? f.prompt.n_cell_read / n_cell : (double)NAN;
    count_tier(&f, &r->tier_before, &r->tier_after);
    return f;
}

struct names {
    char test[64], kv[16], range[64];
};

static struct names names_of(const struct bench_row *row, const struct figures *f)
{
    const sac_kv_type k = row->params.type_k, v = row->params.type_v;
    struct names n;
    name_test(n.test, sizeof n.test, row);
    snprintf(n.kv, sizeof n.kv, k == v ? "%s" : "%s/%s", sac_kv_type_name(k), sac_kv_type_name(v));
    snprintf(n.range, sizeof n.range, "%.2f..%.2f", f->tok_s.min, f->tok_s.max);
    return n;
}

void bench_row_print(struct table_printer *printer, const struct bench_row *row)
{
    const struct bench_test *t = &row->test;
    const struct figures f = figures_of(row);
    const struct names name = names_of(row, &f);
    const struct table_printer_cell cells[] = {
        {"model_filename", NULL, .text = row->model},
        {"model_name", "model", .text = row->info.name},
        {"model_type", NULL, .text = row->info.file_type},
        {"model_size", NULL, .number = (double)row->info.file_bytes},
        {"model_n_params", NULL, .number = (double)row->info.n_params},
        {"n_threads", "threads", .number = row->params.n_threads},
        {"type_k", NULL, .text = sac_kv_type_name(row->params.type_k)},
        {"type_v", NULL, .text = sac_kv_type_name(row->params.type_v)},
        {NULL, "KV", .text = name.kv},
        {"prefill", "prefill", .text = row->prefill},
        {"decode", "decode", .text = row->method},
        {"test", "test", .text = name.test},
        {"n_prompt", .number = t->n_prompt},
        {"n_gen", .number = t->n_gen},
        {"n_depth", .number = t->depth},
        {"n_depths", .number = row->depth_own ? t->n_seq : 1},
        {"n_seq", .number = t->n_seq},
        {"n_top", .number = t->n_top},
        {"n_batch", .number = row->params.n_batch},
        {"median_ts", "tok/s", 2, .number = f.tok_s.median},
        {NULL, "min..max", .text = name.range},
        {"stddev_ts", "stddev", 2, .number = f.tok_s.stddev},
        {"avg_ts", .number = f.tok_s.mean},
        {"min_ts", .number = f.tok_s.min},
        {"max_ts", .number = f.tok_s.max},
        {"avg_ns", .number = f.time_ns.mean},
        {"stddev_ns", .number = f.time_ns.stddev},
        {"ms_per_token", "ms/token", 3, .number = f.median_s * 1e3 / (t->n_prompt + t->n_gen)},
        {"weight_gb_s", "weights GB/s", 2, .number = f.weight_gb_s},
        {"kv_gb_s", "KV GB/s", 2, .number = f.kv_gb_s},
        {"gflop_s", "GFLOP/s", 1, .number = f.flop / f.median_s * 1e-9},
        {"limit", "limit", .text = f.limit},
        {NULL, "% of it", 1, .number = f.limit_s / f.median_s * 100},
        {"share", .number = f.limit_s / f.median_s},
        {NULL, "KV read %", 1, .number = f.share_read * 100},
        {"share_read", .number = f.share_read},
        {NULL, "bytes %", 1, .number = 100 * f.decode.kv_bytes / f.decode.dense_bytes},
        {"bytes_share", .number = f.decode.kv_bytes / f.decode.dense_bytes},
        {"bytes_per_token", .number = f.decode.kv_bytes / (f.n_step * t->n_seq)},
        {"share_planned", .number = f.share_planned},
        {"plan_share", .number = f.prompt.plan_us / f.stage_us},
        {NULL, "KV MiB", 1, .number = (double)row->result->kv_bytes_used / 0x1p20},
        {"kv_bytes", .number = (double)row->result->kv_bytes_used},
        {NULL, "hits %", 1, .number = 100 * f.hit_share},
        {"tier_hit_share", .number = f.hit_share},
        {"tier_bytes_fetched", .number = f.bytes_fetched},
        {"tier_reads", .number = f.n_read},
        {"tier_fetch_gb_s", "fetched GB/s", 2, .number = f.bytes_wanted * 1e-9 / f.seconds},
        {"tier_wait_us", .number = f.wait_us},
        {"load_s", "load s", 2, .number = row->load_s},
        {NULL, "RSS MiB", .number = f.rss / 0x1p20},
        {"peak_rss_bytes", .number = f.rss},
        {"linear_share", .number = (f.prompt.linear_us + f.decode.linear_us) / f.stage_us},
        {"attn_share", .number = (f.prompt.attn_us + f.decode.attn_us) / f.stage_us},
        {"other_share", .number = (f.prompt.other_us + f.decode.other_us) / f.stage_us},
        {"flop", .number = f.flop},
        {"seconds_limit", .number = f.limit_s},
        {"isa", .text = row->isa},
        {"read_gb_s", .number = row->machine->read_gb_s},
        {"samples_ts", .list = f.ts, .n_list = row->result->n_rep},
        {"samples_ns", .list = f.ns, .n_list = row->result->n_rep},
    };
    table_printer_row(printer, cells, sizeof cells / sizeof cells[0]);
}
