/* logits_dump.c: token ids in, logits of all positions out, through the public header only, so that
 * scripts can compare the engine with other implementations and with itself.
 *
 * Ids are decimal numbers on standard input, whatever stands between them. Standard output gets
 * float32 [n_tok, n_vocab] in order of position. The op table is chosen by SAC_CPU as always. */
#include "saccade.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *model;
    sac_model_params load;
    sac_engine_params engine;
    sac_row_kind kind;
};

struct output {
    uint32_t n_vocab, n_done;
    bool failed;
};

static _Noreturn void usage(void)
{
    fputs("usage: logits_dump MODEL [--kind prompt|decode] [--chunk ROWS] [--threads N] [--ctx N]\n"
          "         [--kv f16|bf16|q8] [--device NAME] [--rope none|linear|yarn]\n"
          "         [--rope-scale X] [--rope-base X] [--yarn-orig-ctx N] <ids >logits\n",
          stderr);
    exit(2);
}

/* The index of `word` in `names`, which ends with NULL. */
static int choice(const char *word, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i;
    fprintf(stderr, "logits_dump: what is '%s'?\n", word);
    usage();
}

static uint32_t number(const char *word)
{
    char *end;
    const unsigned long v = strtoul(word, &end, 10);
    if (*end || end == word || v > UINT32_MAX) usage();
    return (uint32_t)v;
}

static struct options parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"kind", 1, NULL, 'k'},          {"chunk", 1, NULL, 'b'},      {"threads", 1, NULL, 't'},
        {"ctx", 1, NULL, 'c'},           {"kv", 1, NULL, 'v'},         {"rope", 1, NULL, 'r'},
        {"device", 1, NULL, 'd'},        {"rope-scale", 1, NULL, 's'}, {"rope-base", 1, NULL, 'f'},
        {"yarn-orig-ctx", 1, NULL, 'o'}, {NULL, 0, NULL, 0},
    };
    static const char *const kinds[] = {"prompt", "decode", NULL};
    static const char *const kv_types[] = {"f16", "bf16", "q8", NULL};
    static const char *const ropes[] = {"model", "none", "linear", "yarn", NULL};
    struct options o = {.load = sac_model_params_default(), .engine = sac_engine_params_default()};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'k': o.kind = (sac_row_kind)choice(optarg, kinds); break;
        case 'b': o.engine.n_batch = number(optarg); break;
        case 't': o.engine.n_threads = number(optarg); break;
        case 'c': o.engine.n_ctx = number(optarg); break;
        case 'v':
            o.engine.type_k = (sac_kv_type)choice(optarg, kv_types);
            o.engine.type_v = o.engine.type_k;
            break;
        case 'd': o.engine.device = optarg; break;
        case 'r': o.load.rope = (sac_rope_scaling)choice(optarg, ropes); break;
        case 's': o.load.rope_scale = strtof(optarg, NULL); break;
        case 'f': o.load.rope_freq_base = strtof(optarg, NULL); break;
        case 'o': o.load.yarn_orig_ctx = number(optarg); break;
        default: usage();
        }
    }
    if (optind + 1 != argc) usage();
    o.model = argv[optind];
    return o;
}

static int32_t *read_ids(FILE *in, size_t *out_n)
{
    size_t n = 0, capacity = 0;
    int32_t *ids = NULL;
    long id = -1;
    for (int c = 0; c != EOF;) {
        c = getc(in);
        if (isdigit(c)) {
            id = (id < 0 ? 0 : id * 10) + (c - '0');
        } else if (id >= 0) {
            if (n == capacity) {
                capacity = capacity ? 2 * capacity : 1024;
                int32_t *grown = realloc(ids, capacity * sizeof *ids);
                if (!grown) abort();
                ids = grown;
            }
            ids[n++] = (int32_t)id;
            id = -1;
        }
    }
    *out_n = n;
    return ids;
}

static void write_row(void *user, const sac_row *row)
{
    struct output *out = user;
    /* Rows come in order of position, or the file would be a lie. */
    if (row->pos != out->n_done++) out->failed = true;
    if (fwrite(row->logits, sizeof(float), out->n_vocab, stdout) != out->n_vocab)
        out->failed = true;
}

static sac_status run(const struct options *o, const int32_t *ids, size_t n, sac_error *err)
{
    sac_model *model = NULL;
    sac_engine *engine = NULL;
    sac_seq seq = SAC_SEQ_NONE;
    struct output out = {0};
    sac_status status = sac_model_load(&model, o->model, &o->load, err);
    if (status == SAC_OK) status = sac_engine_create(&engine, model, &o->engine, err);
    if (status == SAC_OK) status = sac_seq_create(engine, &seq, err);
    if (status == SAC_OK) {
        out.n_vocab = sac_model_get_info(model).n_vocab;
        status = sac_seq_append(engine, seq, ids, n, o->kind, SAC_WANT_ALL, err);
    }
    for (uint32_t n_row = 1; status == SAC_OK && n_row > 0;) {
        status = sac_step(engine, write_row, &out, &n_row, err);
    }
    if (status == SAC_OK && (fflush(stdout) != 0 || out.failed || out.n_done != n)) {
        snprintf(err->msg, sizeof err->msg, "wrote %u of %zu rows", out.n_done, n);
        status = SAC_ERR_IO;
    }
    sac_engine_free(engine);
    sac_model_free(model);
    return status;
}

int main(int argc, char **argv)
{
    const struct options o = parse(argc, argv);
    size_t n = 0;
    int32_t *ids = read_ids(stdin, &n);
    if (n == 0) usage();
    sac_error err = {0};
    const sac_status status = run(&o, ids, n, &err);
    if (status != SAC_OK)
        fprintf(stderr, "logits_dump: %s: %s\n", sac_status_name(status), err.msg);
    free(ids);
    return status == SAC_OK ? 0 : 1;
}
