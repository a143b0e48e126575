/* bench_decode.c: what decode methods cost on a real text, end to end, not a test.
 *
 *     bench_decode MODEL TEXT TOKENS f16|q8 PREFILL METHOD...
 *
 * The first TOKENS tokens of TEXT are computed once, by PREFILL; each METHOD then decodes the
 * tokens that follow on a fork of its own, in turns of one step, so that noise of the machine falls
 * on all of them. "short" is `full` on a context of one page. Medians of STEPS steps; KL: mean, to
 * the first METHOD. */
#include "base/mem.h"
#include "base/workers.h"
#include "saccade.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 64, SHORT = 32 };

struct track {
    const char *name;
    sac_seq seq;
    uint32_t n_tok;
    double ms[STEPS], attn_us[STEPS], select_us[STEPS];
    double n_seen, n_read, kv_bytes, side_bytes;
    double kl;
    int n_same; /* steps whose likeliest token is the first method's */
};

/* Logits of a step: the first method's and another's. */
struct judge {
    float *first, *other; /* [n_vocab] */
    size_t n_vocab;
    struct track *track;
    bool is_first;
};

static void must(sac_status status, const sac_error *err)
{
    if (status == SAC_OK) return;
    fprintf(stderr, "bench_decode: %s\n", err->msg);
    exit(1);
}

static size_t best_of(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double log_sum_exp(const float *x, size_t n)
{
    const double top = (double)x[best_of(x, n)];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

static void keep_row(void *user, const sac_row *row)
{
    const struct judge *j = user;
    memcpy(j->is_first ? j->first : j->other, row->logits, j->n_vocab * sizeof *j->first);
}

static void compare(const struct judge *j)
{
    const double a = log_sum_exp(j->first, j->n_vocab), b = log_sum_exp(j->other, j->n_vocab);
    for (size_t i = 0; i < j->n_vocab; i++) {
        const double p = (double)j->first[i] - a, q = (double)j->other[i] - b;
        j->track->kl += exp(p) * (p - q);
    }
    j->track->n_same += best_of(j->first, j->n_vocab) == best_of(j->other, j->n_vocab);
}

static char *read_file(const char *path, size_t *out_n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "bench_decode: cannot read %s\n", path);
        exit(1);
    }
    const long n = ftell(f);
    char *text = mem_alloc((size_t)n);
    rewind(f);
    *out_n = fread(text, 1, (size_t)n, f);
    fclose(f);
    return text;
}

static void run_all(sac_engine *e, struct judge *j)
{
    sac_error err;
    uint32_t n = 1;
    while (n) must(sac_step(e, j ? keep_row : NULL, j, &n, &err), &err);
}

static void append(sac_engine *e, sac_seq seq, const int32_t *tok, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, seq, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static void step(sac_engine *e, struct judge *j, const int32_t *tok, int i)
{
    struct track *t = j->track;
    const sac_engine_stats a = sac_engine_get_stats(e);
    append(e, t->seq, tok + t->n_tok++, 1, SAC_ROW_DECODE);
    const uint64_t start = clock_us();
    run_all(e, j);
    t->ms[i] = (double)(clock_us() - start) * 1e-3;
    const sac_engine_stats b = sac_engine_get_stats(e);
    t->attn_us[i] = (double)(b.attn_us - a.attn_us);
    t->select_us[i] = (double)(b.select_us - a.select_us);
    t->n_seen += (double)(b.reads.n_tok_seen - a.reads.n_tok_seen);
    t->n_read += (double)(b.reads.n_tok_read - a.reads.n_tok_read);
    t->kv_bytes += (double)(b.reads.kv_bytes_read - a.reads.kv_bytes_read);
    t->side_bytes += (double)(b.reads.choose_bytes_read - a.reads.choose_bytes_read +
                              b.reads.build_bytes_read - a.reads.build_bytes_read);
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x)
{
    qsort(x, STEPS, sizeof *x, rising);
    return x[STEPS / 2];
}

static void print_head(const char *model, char **argv)
{
    printf("%s, %s tokens of %s, %s\n\n| method | tok/s | ms/token | attention us/layer | of it "
           "choosing us | KV read %% | KV MB/token | side MB/token | KL | top-1 %% |\n"
           "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
           model, argv[3], argv[2], argv[4]);
}

static void print(struct track *t, uint32_t n_layer)
{
    const double ms = median(t->ms), attn = median(t->attn_us) / n_layer;
    const double select = median(t->select_us) / n_layer;
    printf("| %s | %.1f | %.2f | %.0f | %.0f | %.1f | %.2f | %.2f | %.5f | %.1f |\n", t->name,
           1000 / ms, ms, attn, select, t->n_seen > 0 ? 100 * t->n_read / t->n_seen : 100.0,
           t->kv_bytes / STEPS * 1e-6, t->side_bytes / STEPS * 1e-6, t->kl / STEPS,
           100.0 * t->n_same / STEPS);
}

int main(int argc, char **argv)
{
    if (argc < 7 || argc - 6 > (int)SAC_METHODS_MAX) {
        fprintf(stderr, "usage: bench_decode MODEL TEXT TOKENS f16|q8 PREFILL METHOD...\n");
        return 2;
    }
    const uint32_t n_tok = (uint32_t)atoi(argv[3]), n_method = (uint32_t)(argc - 6);
    const char *spec[SAC_METHODS_MAX + 1];
    static struct track track[SAC_METHODS_MAX + 1];
    sac_error err;
    sac_model *model;
    sac_engine *e;
    size_t n_text, n_have;
    int32_t *tok;
    const sac_model_params mp = sac_model_params_default();
    must(sac_model_load(&model, argv[1], &mp, &err), &err);
    char *text = read_file(argv[2], &n_text);
    must(sac_tokenize(model, text, n_text, SAC_TOK_ADD_SPECIAL, &tok, &n_have, &err), &err);
    if (n_have < (size_t)n_tok + STEPS) {
        fprintf(stderr, "bench_decode: %s has %zu tokens\n", argv[2], n_have);
        return 1;
    }
    for (uint32_t i = 0; i < n_method; i++) spec[i] = argv[6 + i];
    spec[n_method] = "full";
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = n_tok + STEPS + 64;
    p.n_seq_max = n_method + 2;
    p.n_kv_tok = p.n_ctx + (n_method + 2) * 256;
    p.type_k = p.type_v = strcmp(argv[4], "q8") == 0 ? SAC_KV_Q8 : SAC_KV_F16;
    p.prefill = (const char *const *)&argv[5];
    p.n_prefill = 1;
    p.decode = spec;
    p.n_decode = n_method + 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    for (uint32_t i = 0; i <= n_method; i++) {
        const bool is_short = i == n_method;
        track[i].name = is_short ? "full, short" : spec[i];
        track[i].n_tok = is_short ? SHORT : n_tok;
        if (i == 0 || is_short) {
            must(sac_seq_create(e, &track[i].seq, &err), &err);
            append(e, track[i].seq, tok, track[i].n_tok, SAC_ROW_PROMPT);
            run_all(e, NULL);
        } else {
            must(sac_seq_fork(e, track[0].seq, &track[i].seq, &err), &err);
        }
        must(sac_seq_use_decode(e, track[i].seq, i, &err), &err);
    }
    struct judge judge = {.n_vocab = sac_model_get_info(model).n_vocab};
    judge.first = mem_alloc(judge.n_vocab * sizeof *judge.first);
    judge.other = mem_alloc(judge.n_vocab * sizeof *judge.other);
    for (int i = 0; i < STEPS; i++)
        for (uint32_t m = 0; m <= n_method; m++) {
            judge.is_first = m == 0;
            judge.track = &track[m];
            step(e, &judge, tok, i);
            if (m > 0 && m < n_method) compare(&judge);
        }
    print_head(sac_model_get_info(model).name, argv);
    for (uint32_t m = 0; m <= n_method; m++) print(&track[m], sac_model_get_info(model).n_layer);
    sac_engine_free(e);
    sac_free(tok);
    mem_free(text);
    mem_free(judge.first);
    mem_free(judge.other);
    sac_model_free(model);
    return 0;
}
