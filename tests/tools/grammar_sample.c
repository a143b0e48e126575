/* grammar_sample.c: texts at random from a grammar, for tests that judge them by other means.
 *
 * usage: grammar_sample gbnf|schema|print N SEED <TEXT
 * Reads inputs that end in a zero byte each from stdin. For each it prints N lines: hexadecimal
 * digits of a text, or one line that begins with '!' and says why the input is refused. `print`
 * writes the grammar of each schema instead.
 *
 * A text is a walk over bytes; once it is long, ways that end soon are preferred. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_BYTES 160
#define LAST_BYTES 100000

static uint64_t rng_state;

static uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The fewest bytes from a place to the end of the text. */
static uint64_t cost_of(const struct automaton *m, uint32_t config)
{
    const struct automaton_config *const c = &m->config[config];
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t cost = 0;
        for (uint32_t n = m->list[c->first + i]; n > AUTOMATON_END; n = m->node[n].parent)
            cost += m->program->cost[m->node[n].pc];
        if (cost < best) best = cost;
    }
    return best;
}

/* Chooses the next byte; false at the end of the text. */
static bool next_byte(struct matcher *t, size_t n, char *out)
{
    struct automaton *const m = t->automaton;
    uint8_t bytes[256];
    uint32_t n_bytes = 0;
    uint64_t best = UINT64_MAX;
    const uint32_t start = t->config;
    for (uint32_t b = 0; b < 256; b++) {
        const char byte = (char)b;
        if (matcher_accept_bytes(t, &byte, 1, NULL) != SAC_OK) continue;
        const uint64_t cost = n < LONG_BYTES ? 0 : cost_of(m, t->config);
        if (cost < best) n_bytes = 0;
        if (cost <= best) bytes[n_bytes++] = (uint8_t)b;
        if (cost < best) best = cost;
        t->config = start;
    }
    if (n_bytes == 0 || (matcher_can_end(t) && (n >= LONG_BYTES || rng() % 4 == 0))) return false;
    /* Now and then the first of a kind, so that rare ways are taken beside a hundred letters. */
    uint32_t i = (uint32_t)(rng() % n_bytes);
    if (rng() % 3 == 0)
        while (i > 0 && m->program->byte_class[bytes[i - 1]] == m->program->byte_class[bytes[i]])
            i--;
    *out = (char)bytes[i];
    return true;
}

static void print_sample(struct automaton *m)
{
    struct matcher *t;
    sac_error err;
    char c;
    size_t n = 0;
    if (matcher_create(&t, m, &err) != SAC_OK) {
        printf("!%s\n", err.msg);
        return;
    }
    for (; n < LAST_BYTES && next_byte(t, n, &c); n++) {
        if (matcher_accept_bytes(t, &c, 1, &err) != SAC_OK) abort();
        printf("%02x", (unsigned char)c);
    }
    printf(matcher_can_end(t) ? "\n" : "?\n");
    matcher_free(t);
}

static void sample(const struct trie *trie, const char *kind, const char *text, size_t n,
                   int n_sample)
{
    struct strbuf gbnf = {0};
    struct program *p;
    struct automaton *m;
    sac_error err = {0};
    sac_status status = SAC_OK;
    if (strcmp(kind, "gbnf") == 0)
        strbuf_add(&gbnf, text, n);
    else
        status = schema_gbnf(&gbnf, "root", text, n, &err);
    if (status == SAC_OK && strcmp(kind, "print") == 0) {
        printf("%s\n", gbnf.data);
        strbuf_deinit(&gbnf);
        return;
    }
    if (status == SAC_OK) status = gbnf_parse(&p, gbnf.data, gbnf.n, &gbnf_limits_made, &err);
    if (status == SAC_OK) status = automaton_create(&m, p, trie, &err);
    strbuf_deinit(&gbnf);
    if (status != SAC_OK) {
        printf("!%s\n", err.msg);
        return;
    }
    for (int i = 0; i < n_sample; i++) print_sample(m);
    automaton_free(m);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    struct strbuf in = {0};
    char chunk[4096];
    struct trie *trie;
    const struct trie_token tok = {.bytes = "a", .n = 1};
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, stdin)) > 0;) strbuf_add(&in, chunk, n);
    if (trie_create(&trie, &tok, 1, NULL) != SAC_OK) return 1;
    rng_state = strtoull(argv[3], NULL, 10);
    for (size_t i = 0; i < in.n;) {
        const size_t n = strlen(in.data + i);
        sample(trie, argv[1], in.data + i, n, atoi(argv[2]));
        i += n + 1;
    }
    trie_free(trie);
    strbuf_deinit(&in);
    return 0;
}
