/* bench_mask.c: what a grammar costs per token: time of a mask over a model's vocabulary.
 *
 * usage: bench_mask MODEL [SCHEMA]
 * Texts at random run through the schema's grammar, tokens chosen from its masks. Prints the
 * median, mean and worst time of a mask, of the step over a token, and of the beginning, for the
 * first text, which meets everything for the first time, and for those behind it. */
#include "base/strbuf.h"
#include "base/workers.h"
#include "grammar/constraint.h"

#include "saccade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TEXT 20
#define N_TOK  400

static const char typical[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":60},\"age\":{"
    "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\"},\"tags\":{"
    "\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5},\"address\":{\"type\":"
    "\"object\",\"properties\":{\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\"},"
    "\"kind\":{\"enum\":[\"home\",\"work\",\"other\"]}},\"required\":[\"street\",\"city\"]},"
    "\"notes\":{\"type\":\"string\"}},\"required\":[\"name\",\"age\",\"tags\",\"address\"]}";

struct times {
    double *us; /* [n] */
    size_t n, room;
};

static uint64_t rng_state = 1;

static uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void note(struct times *t, double us)
{
    if (t->n < t->room) t->us[t->n++] = us;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_times(const char *name, struct times *t)
{
    double sum = 0;
    if (t->n == 0) return;
    qsort(t->us, t->n, sizeof *t->us, compare);
    for (size_t i = 0; i < t->n; i++) sum += t->us[i];
    printf("%-28s %7zu  median %8.1f  mean %8.1f  p99 %8.1f  worst %8.1f us\n", name, t->n,
           t->us[t->n / 2], sum / (double)t->n, t->us[t->n * 99 / 100], t->us[t->n - 1]);
}

static int32_t choose(const uint64_t *mask, uint32_t n_tok)
{
    /* From a place at random on, the next that is allowed: about as likely for all. */
    const uint32_t start = (uint32_t)(rng() % n_tok);
    for (uint32_t i = 0; i < n_tok; i++) {
        const uint32_t tok = (start + i) % n_tok;
        if (mask[tok / 64] >> tok % 64 & 1) return (int32_t)tok;
    }
    return -1;
}

static void run_text(struct machine *m, struct times *mask_times, struct times *step_times)
{
    struct constraint *c;
    sac_error err;
    if (constraint_create(&c, m, &err) != SAC_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    const sac_guide guide = constraint_guide(c);
    for (int i = 0; i < N_TOK; i++) {
        const uint64_t begin = clock_us();
        const uint64_t *const mask = guide.mask(guide.user);
        note(mask_times, (double)(clock_us() - begin));
        const int32_t tok = choose(mask, m->trie->n_tok);
        if (tok < 0) break;
        const uint64_t stepped = clock_us();
        guide.chosen(guide.user, tok);
        note(step_times, (double)(clock_us() - stepped));
    }
    constraint_free(c);
}

int main(int argc, char **argv)
{
    static double room[4][N_TEXT * N_TOK];
    struct times first = {room[0], 0, N_TOK}, mask = {room[1], 0, N_TEXT * N_TOK};
    struct times step_first = {room[2], 0, N_TOK}, step = {room[3], 0, N_TEXT * N_TOK};
    sac_model_params params = sac_model_params_default();
    struct program *program;
    struct machine *machine;
    struct trie *trie;
    sac_model *model;
    sac_error err;
    const char *const schema = argc > 2 ? argv[2] : typical;
    if (argc < 2) return 2;
    if (sac_model_load(&model, argv[1], &params, &err) != SAC_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    uint64_t begin = clock_us();
    sac_status status = trie_of_model(&trie, model, &err);
    const double trie_ms = (double)(clock_us() - begin) * 1e-3;
    begin = clock_us();
    if (status == SAC_OK)
        status = constraint_compile(&program, CONSTRAINT_SCHEMA, schema, strlen(schema), &err);
    if (status == SAC_OK) status = machine_create(&machine, program, trie, &err);
    if (status != SAC_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("%u tokens, tree of %u nodes in %.1f ms, grammar in %.1f ms\n", trie->n_tok,
           trie->n_node, trie_ms, (double)(clock_us() - begin) * 1e-3);
    run_text(machine, &first, &step_first);
    for (int i = 1; i < N_TEXT; i++) run_text(machine, &mask, &step);
    print_times("mask, first text", &first);
    print_times("mask, texts behind it", &mask);
    print_times("step, first text", &step_first);
    print_times("step, texts behind it", &step);
    printf("tables emptied %llu times\n", (unsigned long long)machine->n_forgotten);
    machine_free(machine);
    trie_free(trie);
    sac_model_free(model);
    return 0;
}
