/* test_multidoc.c: questions over documents: the evidence stands where it should and nowhere else,
 * places differ in nothing else, lengths are those that were asked for, duplicates are the same
 * text; with the tokenizer of a real small model. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/multidoc.h"
#include "eval/prose.h"
#include "model_open.h"
#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static sac_model *model;

static int load_model(void **state)
{
    (void)state;
    model = model_open();
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static const struct multidoc_args plain = {
    .seed = 5, .n_document = 6, .n_tok = 400, .n_duplicate = 1, .n_distractor = 2};

static struct multidoc made(const struct multidoc_args *args, const char *task, const char *place,
                            uint32_t index)
{
    const struct multidoc_cell cell = {task, place, index};
    struct multidoc m;
    sac_error err;
    must(multidoc_make(&m, args, &cell, model, &err), &err);
    return m;
}

static uint32_t count(const struct multidoc *m, const char *words)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < m->n; d++)
        for (const char *at = m->document[d]; (at = strstr(at, words)); at++) n++;
    return n;
}

static size_t tokens(const char *text)
{
    int32_t *tok;
    size_t n;
    sac_error err;
    must(sac_tokenize(model, text, strlen(text), 0, &tok, &n, &err), &err);
    sac_free(tok);
    return n;
}

/* What is asked, as a sentence without its end: "The code of the brave otter is". */
static const char *asked(const struct multidoc *m, char out[192])
{
    const char *keeper = strstr(m->prefix, "keeper of the ");
    if (!keeper) return m->prefix;
    /* Of two hops, the first: "The keeper of the brave otter is". */
    snprintf(out, 192, "The %s", keeper);
    return out;
}

static void evidence_stands_in_its_part_once(void **state)
{
    (void)state;
    char words[192];
    for (uint32_t t = 0; multidoc_name(t); t++)
        for (uint32_t p = 0; multidoc_place(p); p++)
            for (uint32_t index = 0; index < 4; index++) {
                struct multidoc m = made(&plain, multidoc_name(t), multidoc_place(p), index);
                const char *in = m.document[m.evidence[1]], *at = strstr(in, m.expected);
                assert_non_null(at);
                assert_int_equal(count(&m, m.expected), 1);
                assert_int_equal(count(&m, asked(&m, words)), 1);
                assert_int_equal(m.evidence[0] == m.evidence[1], 0);
                const double share = (double)(at - in) / (double)strlen(in);
                assert_true(share >= p / 3.0 - 0.05 && share <= (p + 1) / 3.0 + 0.05);
                if (p == 0) assert_true(share < 0.25);
                if (p == 2) assert_true(share > 0.75);
                multidoc_deinit(&m);
            }
}

/* Of a question's three places every document has the same length, to within a fact or two, and
 * those without evidence or distractors the same text. */
static void places_differ_in_nothing_else(void **state)
{
    (void)state;
    struct multidoc m[3];
    uint32_t n_same = 0;
    for (uint32_t p = 0; p < 3; p++) m[p] = made(&plain, "docs_facts", multidoc_place(p), 1);
    assert_string_equal(m[0].question, m[2].question);
    assert_string_equal(m[0].expected, m[1].expected);
    assert_int_equal(m[0].evidence[1], m[2].evidence[1]);
    for (uint32_t d = 0; d < m[0].n; d++) {
        assert_in_range(strlen(m[0].document[d]) + 2 - strlen(m[2].document[d]), 0, 4);
        n_same += strcmp(m[0].document[d], m[1].document[d]) == 0;
    }
    assert_int_equal(n_same, m[0].n - 1 - plain.n_distractor);
    for (uint32_t p = 0; p < 3; p++) multidoc_deinit(&m[p]);
}

static void lengths_scatter_around_the_mean(void **state)
{
    (void)state;
    size_t sum = 0, least = SIZE_MAX, most = 0;
    const struct multidoc_args args = {.seed = 9, .n_document = 10, .n_tok = 600};
    struct multidoc m = made(&args, "docs_hop", "middle", 0);
    for (uint32_t d = 0; d < m.n; d++) {
        const size_t n = tokens(m.document[d]);
        assert_in_range(n, 600 * 60 / 100, 600 * 145 / 100);
        sum += n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    assert_in_range(sum / m.n, 570, 640);
    assert_true(most - least > 100);
    multidoc_deinit(&m);
}

static void roles_are_kept(void **state)
{
    (void)state;
    struct multidoc_args args = plain;
    uint32_t n_twice = 0, seen = 0;
    args.n_duplicate = 1;
    struct multidoc m = made(&args, "docs_facts", "first", 2);
    for (uint32_t a = 0; a < m.n; a++)
        for (uint32_t b = 0; b < a; b++) n_twice += strcmp(m.document[a], m.document[b]) == 0;
    assert_int_equal(n_twice, 1);
    /* A distractor says the attribute of another thing of that kind; without any nobody does. */
    const char *noun = strrchr(m.prefix, ' ') - 1; /* the end of the thing's name */
    while (noun[-1] != ' ') noun--;
    char words[64];
    snprintf(words, sizeof words, "%.*s is ", (int)(strrchr(m.prefix, ' ') - noun), noun);
    assert_true(count(&m, words) >= 2);
    multidoc_deinit(&m);
    for (uint32_t index = 0; index < 12; index++) { /* the document of the evidence is any */
        m = made(&plain, "docs_facts", "last", index);
        seen |= 1u << m.evidence[1];
        multidoc_deinit(&m);
    }
    assert_true(__builtin_popcount(seen) >= 3);
    args.n_document = 1;
    m = made(&args, "docs_hop", "first", 0); /* everything stands in the only one */
    assert_int_equal(count(&m, m.expected), 1);
    multidoc_deinit(&m);
}

static void texts_fill_every_second_document(void **state)
{
    (void)state;
    struct strbuf text = {0};
    struct multidoc_filler filler;
    struct multidoc_args args = plain;
    sac_error err;
    for (int i = 0; i < 300; i++)
        strbuf_addf(&text, "Sentence %d tells of zinnias.%s", i, i % 9 ? " " : "\n");
    must(multidoc_filler_init(&filler, text.data, text.n, &err), &err);
    args.filler = &filler;
    args.n_duplicate = 0;
    struct multidoc m = made(&args, "docs_facts", "middle", 0);
    for (uint32_t d = 0; d < m.n; d++)
        assert_int_equal(strstr(m.document[d], "tells of zinnias.") != NULL, d % 2);
    assert_int_equal(count(&m, m.expected), 1);
    multidoc_deinit(&m);
    multidoc_filler_deinit(&filler);
    assert_int_equal(multidoc_filler_init(&filler, "Short. Text.", 12, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "2 sentences"));
    strbuf_deinit(&text);
    args = (struct multidoc_args){.seed = 1, .n_document = MULTIDOC_MAX + 1, .n_tok = 200};
    const struct multidoc_cell cell = {"docs_facts", "first", 0};
    assert_int_equal(multidoc_make(&m, &args, &cell, model, &err), SAC_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evidence_stands_in_its_part_once),
        cmocka_unit_test(places_differ_in_nothing_else),
        cmocka_unit_test(lengths_scatter_around_the_mean),
        cmocka_unit_test(roles_are_kept),
        cmocka_unit_test(texts_fill_every_second_document),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
