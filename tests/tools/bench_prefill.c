/* bench_prefill.c: one text computed by several prefill methods: time by stage, cells read, and how
 * far the next-token distributions of the last tokens are from those of dense attention.
 *
 * Prints a row of a Markdown table per method. The first row is dense, the reference of all others.
 * KL is that of a method's distribution from the dense one, in nats, mean over the scored tokens.
 */
#include "saccade.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    const char *model_path, *text_path;
    uint32_t n_tok, n_score;
    sac_engine_params params;
    sac_model *model;
    int32_t *tok;
    float *dense; /* [n_score, n_vocab] log-probabilities */
    uint32_t n_vocab;
};

struct score {
    struct bench *b;
    bool is_dense;
    uint32_t n, n_top1;
    double kl;
};

static _Noreturn void usage(void)
{
    fputs("usage: bench_prefill MODEL.gguf TEXT [--ctx N] [--score N] [--batch N] [--threads N]\n"
          "         [--kv f16|bf16|q8] METHOD...\n",
          stderr);
    exit(2);
}

static void check(sac_status status, const sac_error *err)
{
    if (status == SAC_OK) return;
    fprintf(stderr, "bench_prefill: %s: %s\n", sac_status_name(status), err->msg);
    exit(1);
}

static uint32_t number(const char *word)
{
    char *end;
    const unsigned long v = strtoul(word, &end, 10);
    if (*end || end == word || v > UINT32_MAX) usage();
    return (uint32_t)v;
}

static int32_t *read_text(const struct bench *b, size_t *out_n)
{
    sac_error err = {0};
    int32_t *tok;
    FILE *f = fopen(b->text_path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "bench_prefill: cannot read %s\n", b->text_path);
        exit(1);
    }
    const size_t n = (size_t)ftell(f);
    char *text = malloc(n + 1);
    rewind(f);
    if (!text || fread(text, 1, n, f) != n) exit(1);
    fclose(f);
    check(sac_tokenize(b->model, text, n, 0, &tok, out_n, &err), &err);
    free(text);
    return tok;
}

static void to_log_probabilities(float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - max);
    const float off = (float)(max + log(sum));
    for (uint32_t i = 0; i < n; i++) x[i] -= off;
}

static void score_row(void *user, const sac_row *row)
{
    struct score *s = user;
    const uint32_t n = s->b->n_vocab;
    float *ref = s->b->dense + (size_t)s->n++ * n;
    uint32_t top = 0, top_ref = 0;
    double kl = 0;
    to_log_probabilities(row->logits, n);
    if (s->is_dense) memcpy(ref, row->logits, n * sizeof *ref);
    for (uint32_t i = 0; i < n; i++) {
        kl += exp((double)ref[i]) * ((double)ref[i] - (double)row->logits[i]);
        if (ref[i] > ref[top_ref]) top_ref = i;
        if (row->logits[i] > row->logits[top]) top = i;
    }
    s->kl += kl;
    s->n_top1 += top == top_ref;
}

/* One method from a fresh engine to its row of the table. */
static void run(struct bench *b, const char *method, bool is_dense)
{
    sac_error err = {0};
    sac_engine *e;
    sac_seq seq;
    struct score s = {.b = b, .is_dense = is_dense};
    const uint32_t n_first = b->n_tok - b->n_score;
    sac_engine_params p = b->params;
    p.n_ctx = b->n_tok;
    p.prefill = &method;
    p.n_prefill = 1;
    check(sac_engine_create(&e, b->model, &p, &err), &err);
    check(sac_seq_create(e, &seq, &err), &err);
    check(sac_seq_append(e, seq, b->tok, n_first, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    check(sac_seq_append(e, seq, b->tok + n_first, b->n_score, SAC_ROW_PROMPT, SAC_WANT_ALL, &err),
          &err);
    for (uint32_t n_row = 1; n_row > 0;) check(sac_step(e, score_row, &s, &n_row, &err), &err);
    const sac_engine_stats t = sac_engine_get_stats(e);
    const double total = (double)(t.linear_us + t.attn_us + t.other_us) * 1e-6;
    const double plan = (double)t.plan_us * 1e-6, attn = (double)t.attn_us * 1e-6 - plan;
    printf("| %s | %.1f %% | %.1f %% | ", method, 100 * (double)t.n_cell_read / (double)t.n_cell,
           100 * (double)t.n_cell_skipped / (double)t.n_cell);
    if (t.n_plan_mass) printf("%.3f", t.plan_mass / (double)t.n_plan_mass);
    printf(" | %.2f | %.2f | %.2f | %.2f | %.1f %% | %.4f | %.3f | %.1f %% |\n", total,
           (double)t.linear_us * 1e-6, attn, plan, 100 * plan / total, s.kl / s.n,
           (double)s.n_top1 / s.n,
           t.n_plan ? 100 * (double)t.n_plan_dense / (double)t.n_plan : 100);
    fflush(stdout);
    sac_engine_free(e);
}

static void parse(struct bench *b, int argc, char **argv)
{
    static const struct option longs[] = {{"ctx", 1, NULL, 'c'},   {"score", 1, NULL, 's'},
                                          {"batch", 1, NULL, 'b'}, {"threads", 1, NULL, 't'},
                                          {"kv", 1, NULL, 'k'},    {NULL, 0, NULL, 0}};
    static const char *const types[] = {"f16", "bf16", "q8"};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'c': b->n_tok = number(optarg); break;
        case 's': b->n_score = number(optarg); break;
        case 'b': b->params.n_batch = number(optarg); break;
        case 't': b->params.n_threads = number(optarg); break;
        case 'k':
            b->params.type_k = SAC_KV_Q8 + 1;
            for (int i = 0; i < 3; i++)
                if (strcmp(optarg, types[i]) == 0) b->params.type_k = (sac_kv_type)i;
            if (b->params.type_k > SAC_KV_Q8) usage();
            b->params.type_v = b->params.type_k;
            break;
        default: usage();
        }
    }
    if (optind + 2 > argc) usage();
    b->model_path = argv[optind++];
    b->text_path = argv[optind++];
}

int main(int argc, char **argv)
{
    sac_error err = {0};
    size_t n;
    struct bench b = {.n_tok = 8192, .n_score = 256, .params = sac_engine_params_default()};
    const sac_model_params load = sac_model_params_default();
    parse(&b, argc, argv);
    check(sac_model_load(&b.model, b.model_path, &load, &err), &err);
    b.n_vocab = sac_model_get_info(b.model).n_vocab;
    b.tok = read_text(&b, &n);
    if (n < b.n_tok || b.n_score == 0 || b.n_score > b.n_tok) usage();
    b.dense = malloc((size_t)b.n_score * b.n_vocab * sizeof *b.dense);
    if (!b.dense) return 1;
    puts("| method | cells | of them skipped | mass told | s | linear s | attention s | choice s "
         "| of all | KL | top-1 | dense lists |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|---|");
    run(&b, "dense", true);
    for (; optind < argc; optind++) run(&b, argv[optind], false);
    sac_free(b.tok);
    sac_model_free(b.model);
    free(b.dense);
    return 0;
}
