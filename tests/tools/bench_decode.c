/* bench_decode.c: what decode methods cost on a real text, end to end, not a test.
 *
 *     bench_decode MODEL TEXT TOKENS f16|q8 METHOD...
 *
 * The first TOKENS tokens of TEXT are computed once; each METHOD then decodes the tokens that
 * follow on a fork of its own, in turns of one step, so that noise of the machine falls on all of
 * them. "short" is `full` on a context of one page. Medians of STEPS steps. */
#include "base/mem.h"
#include "base/workers.h"
#include "saccade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 40, SHORT = 32 };

struct track {
    const char *name;
    sac_seq seq;
    uint32_t n_tok;
    double ms[STEPS], attn_us[STEPS], select_us[STEPS];
    double n_seen, n_read, kv_bytes, side_bytes;
};

static void must(sac_status status, const sac_error *err)
{
    if (status == SAC_OK) return;
    fprintf(stderr, "bench_decode: %s\n", err->msg);
    exit(1);
}

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
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

static void run_all(sac_engine *e)
{
    sac_error err;
    uint32_t n = 1;
    while (n) must(sac_step(e, ignore_row, NULL, &n, &err), &err);
}

static void append(sac_engine *e, sac_seq seq, const int32_t *tok, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, seq, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static void step(sac_engine *e, struct track *t, const int32_t *tok, int i)
{
    const sac_engine_stats a = sac_engine_get_stats(e);
    append(e, t->seq, tok + t->n_tok++, 1, SAC_ROW_DECODE);
    const uint64_t start = clock_us();
    run_all(e);
    t->ms[i] = (double)(clock_us() - start) * 1e-3;
    const sac_engine_stats b = sac_engine_get_stats(e);
    t->attn_us[i] = (double)(b.attn_us - a.attn_us);
    t->select_us[i] = (double)(b.select_us - a.select_us);
    t->n_seen += (double)(b.n_tok_seen - a.n_tok_seen);
    t->n_read += (double)(b.n_tok_read - a.n_tok_read);
    t->kv_bytes += (double)(b.kv_bytes_read - a.kv_bytes_read);
    t->side_bytes += (double)(b.side_bytes_read - a.side_bytes_read);
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

static void print(struct track *t, uint32_t n_layer)
{
    const double ms = median(t->ms), attn = median(t->attn_us) / n_layer;
    const double select = median(t->select_us) / n_layer;
    printf("| %s | %.1f | %.2f | %.0f | %.0f | %.1f | %.2f | %.2f |\n", t->name, 1000 / ms, ms,
           attn, select, t->n_seen > 0 ? 100 * t->n_read / t->n_seen : 100.0,
           t->kv_bytes / STEPS * 1e-6, t->side_bytes / STEPS * 1e-6);
}

int main(int argc, char **argv)
{
    if (argc < 6 || argc - 5 > (int)SAC_METHODS_MAX) {
        fprintf(stderr, "usage: bench_decode MODEL TEXT TOKENS f16|q8 METHOD...\n");
        return 2;
    }
    const uint32_t n_tok = (uint32_t)atoi(argv[3]), n_method = (uint32_t)(argc - 5);
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
    for (uint32_t i = 0; i < n_method; i++) spec[i] = argv[5 + i];
    spec[n_method] = "full";
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = n_tok + STEPS + 64;
    p.n_seq_max = n_method + 2;
    p.n_kv_tok = p.n_ctx + (n_method + 2) * 256;
    p.type_k = p.type_v = strcmp(argv[4], "q8") == 0 ? SAC_KV_Q8 : SAC_KV_F16;
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
            run_all(e);
        } else {
            must(sac_seq_fork(e, track[0].seq, &track[i].seq, &err), &err);
        }
        must(sac_seq_use_decode(e, track[i].seq, i, &err), &err);
    }
    for (int i = 0; i < STEPS; i++)
        for (uint32_t m = 0; m <= n_method; m++) step(e, &track[m], tok, i);
    printf(
        "%s, %u tokens of %s, %s\n\n| method | tok/s | ms/token | attention us/layer | of it "
        "choosing us | KV read %% | KV MB/token | side MB/token |\n|---|---:|---:|---:|---:|---:|"
        "---:|---:|\n",
        sac_model_get_info(model).name, n_tok, argv[2], argv[4]);
    for (uint32_t m = 0; m <= n_method; m++) print(&track[m], sac_model_get_info(model).n_layer);
    sac_engine_free(e);
    sac_free(tok);
    mem_free(text);
    sac_model_free(model);
    return 0;
}
