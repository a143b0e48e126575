/* bench_prefill.c: one text computed by several prefill methods: time by stage, cells read, and how
 * far the next-token distributions are from those of dense attention.
 *
 * A prompt is `ctx` rows of the method and behind them `tail` rows that are dense whatever the
 * method; both are queued at once, so a method that treats the last rows of a prompt apart finds
 * them in the tail. Behind it 32 decode rows read everything. Three places are scored:
 *   middle  rows of the method, N_RUN short runs spread over the prompt: what its answers lose
 *   last    the last rows of the prompt: those of the tail, which lose what the keys and values
 *           before them have lost. With --tail 0 rows of the method, by its own rules
 *   behind  the decode rows, the same for what follows a prompt
 * Cells and seconds are of the method's rows alone; the logits of the middle rows are in them.
 *
 * Prints a row of a Markdown table (or CSV) per method. The first row is dense, the reference of
 * all others. KL is that of a method's distribution from the dense one, in nats, mean over the
 * scored tokens; its standard error is taken over the runs. */
#include "saccade.h"

#include "score_rows.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_RUN    64u /* of middle rows */
#define N_BEHIND 32u
#define APART    512u /* last rows of a prompt, of which methods by default treat some apart */

enum { MIDDLE, LAST, BEHIND, PLACES };
static const char *const place_names[PLACES] = {"middle", "last", "behind"};

struct bench {
    const char *model_path, *text_path;
    uint32_t n_ctx, n_tail, n_score; /* rows of the method, behind them; scored of either */
    bool csv;
    sac_engine_params params;
    sac_model *model;
    int32_t *tok;
    float *dense; /* [2 * n_score + N_BEHIND, n_vocab] log-probabilities */
    uint32_t n_vocab;
};

struct score {
    struct bench *b;
    bool is_dense;
    uint32_t n, n_of[PLACES], n_top1[PLACES];
    double kl[PLACES], kl_run[N_RUN];
};

static _Noreturn void usage(void)
{
    fputs(
        "usage: bench_prefill MODEL.gguf TEXT [--ctx N] [--tail N] [--score N] [--batch N]\n"
        "         [--threads N] [--kv f16|bf16|q8] [--csv] METHOD...\n"
        "--score, a multiple of 64: rows in the middle and as many last ones. Rows of --ctx begin\n"
        "to be scored where methods begin to choose, and with a --tail are whole chunks.\n",
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
    const struct bench *b = s->b;
    const uint32_t n = b->n_vocab, n_prompt = b->n_ctx + b->n_tail;
    const int place = row->pos >= n_prompt                ? BEHIND
                      : row->pos >= n_prompt - b->n_score ? LAST
                                                          : MIDDLE;
    float *ref = b->dense + (size_t)s->n++ * n;
    uint32_t top = 0, top_ref = 0;
    double kl = 0;
    to_log_probabilities(row->logits, n);
    if (s->is_dense) memcpy(ref, row->logits, n * sizeof *ref);
    for (uint32_t i = 0; i < n; i++) {
        kl += exp((double)ref[i]) * ((double)ref[i] - (double)row->logits[i]);
        if (ref[i] > ref[top_ref]) top_ref = i;
        if (row->logits[i] > row->logits[top]) top = i;
    }
    if (place == MIDDLE) s->kl_run[s->n_of[MIDDLE] * N_RUN / b->n_score] += kl;
    s->kl[place] += kl;
    s->n_top1[place] += top == top_ref;
    s->n_of[place]++;
}

/* Standard error of the mean KL of the middle rows, which runs of neighbours make up. */
static double middle_error(const struct score *s)
{
    const double mean = s->kl[MIDDLE] / N_RUN;
    double sum = 0;
    for (uint32_t i = 0; i < N_RUN; i++) sum += (s->kl_run[i] - mean) * (s->kl_run[i] - mean);
    return sqrt(sum / (N_RUN - 1) / N_RUN) * N_RUN / s->n_of[MIDDLE];
}

/* Queues tokens up to position `end`, and with them their scores if wanted. */
static void queue(const struct bench *b, sac_engine *e, sac_seq seq, uint32_t *pos, uint32_t end,
                  sac_want want)
{
    sac_error err = {0};
    const uint32_t n_prompt = b->n_ctx + b->n_tail;
    const sac_row_kind kind = *pos < n_prompt ? SAC_ROW_PROMPT : SAC_ROW_DECODE;
    check(sac_seq_append(e, seq, b->tok + *pos, end - *pos, kind, want, &err), &err);
    *pos = end;
}

static void queue_all(const struct bench *b, sac_engine *e, sac_seq seq)
{
    const uint32_t n_row = b->n_score / N_RUN, n_prompt = b->n_ctx + b->n_tail;
    const uint32_t end = b->n_tail < APART ? n_prompt - APART : b->n_ctx;
    uint32_t pos = 0;
    for (uint32_t i = 0; i < N_RUN; i++) {
        const uint32_t at = score_run_begin(b->params.sparse_min_ctx, end, N_RUN, n_row, i);
        queue(b, e, seq, &pos, at, SAC_WANT_NONE);
        queue(b, e, seq, &pos, at + n_row, SAC_WANT_ALL);
    }
    queue(b, e, seq, &pos, n_prompt - b->n_score, SAC_WANT_NONE);
    queue(b, e, seq, &pos, n_prompt, SAC_WANT_ALL);
    queue(b, e, seq, &pos, n_prompt + N_BEHIND, SAC_WANT_ALL);
}

static void print_row(const char *method, const struct score *s, const sac_engine_stats *t)
{
    const struct bench *b = s->b;
    const double total = (double)(t->linear_us + t->attn_us + t->other_us) * 1e-6;
    const double plan = (double)t->plan_us * 1e-6, attn = (double)t->attn_us * 1e-6 - plan;
    const double cells = 100 * (double)t->reads.n_cell_read / (double)t->reads.n_cell;
    const double skipped = 100 * (double)t->n_cell_skipped / (double)t->reads.n_cell;
    const double mass =
        t->reads.n_plan_mass ? t->reads.plan_mass / (double)t->reads.n_plan_mass : NAN;
    const double dense =
        t->reads.n_plan ? 100 * (double)t->reads.n_plan_dense / (double)t->reads.n_plan : 100;
    printf(b->csv ? "\"%s\",%u,%u,%.3f" : "| `%s` | %u | %u | %.1f %%", method, b->n_ctx, b->n_tail,
           cells);
    for (int i = 0; i < PLACES; i++) {
        printf(b->csv ? ",%.6f,%.4f" : " | %.4f, %.1f %%", s->kl[i] / s->n_of[i],
               (b->csv ? 1 : 100) * (double)s->n_top1[i] / s->n_of[i]);
        if (i == MIDDLE) printf(b->csv ? ",%.6f" : " | %.4f", middle_error(s));
    }
    printf(b->csv ? ",%.3f,%.3f,%.3f,%.3f,%.4f,%.3f,%.3f\n"
                  : " | %.2f | %.2f | %.2f | %.2f | %.3f | %.1f %% | %.1f %% |\n",
           total, (double)t->linear_us * 1e-6, attn, plan, mass, skipped, dense);
    fflush(stdout);
}

static void print_head(const struct bench *b)
{
    if (b->csv) {
        printf("method,ctx,tail,cells");
        for (int i = 0; i < PLACES; i++)
            printf(",kl_%s,top1_%s%s", place_names[i], place_names[i],
                   i == MIDDLE ? ",kl_middle_error" : "");
        puts(",s,linear_s,attention_s,choice_s,mass_told,skipped,dense_lists");
        return;
    }
    puts("| method | rows | tail | cells | KL, top-1 middle | error of KL | KL, top-1 last "
         "| KL, top-1 behind | s | linear s | attention s | choice s | mass told "
         "| of cells skipped | dense lists |\n"
         "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
}

/* One method from a fresh engine to its row of the table. */
static void run(struct bench *b, const char *method, bool is_dense)
{
    const char *const methods[] = {method, "dense"};
    const uint32_t n_all = b->n_ctx + b->n_tail + N_BEHIND;
    sac_error err = {0};
    sac_engine *e;
    sac_seq seq;
    struct score s = {.b = b, .is_dense = is_dense};
    sac_engine_params p = b->params;
    p.n_ctx = n_all;
    p.prefill = methods;
    p.n_prefill = 2;
    check(sac_engine_create(&e, b->model, &p, &err), &err);
    check(sac_seq_create(e, &seq, &err), &err);
    queue_all(b, e, seq);
    while (sac_seq_length(e, seq, NULL) < b->n_ctx)
        check(sac_step(e, score_row, &s, NULL, &err), &err);
    const sac_engine_stats t = sac_engine_get_stats(e);
    check(sac_seq_use_prefill(e, seq, 1, &err), &err);
    while (sac_seq_length(e, seq, NULL) < n_all)
        check(sac_step(e, score_row, &s, NULL, &err), &err);
    if (s.n != 2 * b->n_score + N_BEHIND) {
        fprintf(stderr, "bench_prefill: %s: scored %u rows\n", method, s.n);
        exit(1);
    }
    print_row(method, &s, &t);
    sac_engine_free(e);
}

static void parse(struct bench *b, int argc, char **argv)
{
    static const struct option longs[] = {{"ctx", 1, NULL, 'c'},   {"score", 1, NULL, 's'},
                                          {"batch", 1, NULL, 'b'}, {"threads", 1, NULL, 't'},
                                          {"kv", 1, NULL, 'k'},    {"tail", 1, NULL, 'l'},
                                          {"csv", 0, NULL, 'v'},   {NULL, 0, NULL, 0}};
    static const char *const types[] = {"f16", "bf16", "q8"};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'c': b->n_ctx = number(optarg); break;
        case 'l': b->n_tail = number(optarg); break;
        case 'v': b->csv = true; break;
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

/* What can be scored, and given to a method, of a text of n tokens. */
static bool fits(const struct bench *b, size_t n)
{
    const uint32_t batch = b->params.n_batch, chunk = batch > 64 ? batch / 64 * 64 : batch;
    const uint64_t n_prompt = (uint64_t)b->n_ctx + b->n_tail;
    const uint64_t n_apart = b->n_tail < APART ? APART : b->n_tail;
    if (b->n_score == 0 || b->n_score % N_RUN || b->n_score > n_apart || chunk == 0) return false;
    if (n_prompt < (uint64_t)b->params.sparse_min_ctx + b->n_score + n_apart) return false;
    if (b->n_tail && (b->n_tail < b->n_score || b->n_ctx % chunk)) return false;
    return n_prompt + N_BEHIND <= n;
}

int main(int argc, char **argv)
{
    sac_error err = {0};
    size_t n;
    struct bench b = {
        .n_ctx = 8192, .n_tail = 256, .n_score = 256, .params = sac_engine_params_default()};
    const sac_model_params load = sac_model_params_default();
    parse(&b, argc, argv);
    check(sac_model_load(&b.model, b.model_path, &load, &err), &err);
    b.n_vocab = sac_model_get_info(b.model).n_vocab;
    b.tok = read_text(&b, &n);
    if (!fits(&b, n)) usage();
    b.dense = malloc((2 * (size_t)b.n_score + N_BEHIND) * b.n_vocab * sizeof *b.dense);
    if (!b.dense) return 1;
    print_head(&b);
    run(&b, "dense", true);
    for (; optind < argc; optind++) run(&b, argv[optind], false);
    sac_free(b.tok);
    sac_model_free(b.model);
    free(b.dense);
    return 0;
}
