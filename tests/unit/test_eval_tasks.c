/* test_eval_tasks.c: what the generated tasks promise, with the tokenizer of a real small model:
 * they fill their length, depend on the seed alone, hold the answer where it should be, and the
 * expected answers score 1. */
#include "eval/facts.h"
#include "eval/needle.h"
#include "eval/ruler.h"
#include "eval/turns.h"
#include "model_open.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sac_model *model;
static struct haystack prose;

enum { N_QUESTION_CELL = 24 };

static int load_model(void **state)
{
    (void)state;
    sac_error err;
    model = model_open();
    return model && haystack_init_prose(&prose, 1, &err) == SAC_OK ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    haystack_deinit(&prose);
    sac_model_free(model);
    return 0;
}

/* A source of each kind, behind one face. */
struct kind {
    sac_status (*make)(const void *, const struct task_text *, const struct task_cell *,
                       struct task_sample *, sac_error *);
    const void *arg;
};

static struct task_sample made(const struct kind *k, const struct task_cell *cell)
{
    const struct task_text text = task_text_of(model);
    struct task_sample s = {0};
    sac_error err = {0};
    if (k->make(k->arg, &text, cell, &s, &err) != SAC_OK) fail_msg("%s: %s", cell->task, err.msg);
    return s;
}

static uint32_t length_of(const struct task_sample *s)
{
    const struct task_text text = task_text_of(model);
    uint32_t n = 0;
    assert_int_equal(task_length(&text, s, &n, NULL), SAC_OK);
    return n;
}

static size_t count_tokens(const char *text, size_t n_bytes)
{
    int32_t *tok;
    size_t n;
    assert_int_equal(sac_tokenize(model, text, n_bytes, 0, &tok, &n, NULL), SAC_OK);
    sac_free(tok);
    return n;
}

static size_t count_text(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

/* Fills its length within `slack`, is the same again and another for another index. */
static void check_sample(const struct kind *k, struct task_cell cell, double slack)
{
    struct task_sample s = made(k, &cell), again = made(k, &cell);
    const uint32_t n = length_of(&s);
    if (n > cell.ctx || n < cell.ctx * (1 - slack))
        fail_msg("%s: %u of %u tokens", cell.task, n, cell.ctx);
    assert_int_equal(s.n_turn, again.n_turn);
    for (uint32_t t = 0; t < s.n_turn; t++) {
        const struct task_turn *turn = &s.turn[t];
        assert_string_equal(turn->user, again.turn[t].user);
        assert_true(turn->expected.n > 0 && turn->new_tok > 0);
    }
    /* The expected answer is a right one. */
    for (uint32_t t = 0; t < s.n_turn; t++) {
        char answer[4096] = "";
        double score = 0;
        for (size_t i = 0; i < s.turn[t].expected.n; i++) {
            strncat(answer, s.turn[t].expected.item[i], 1000);
            strncat(answer, " ", 2);
        }
        const struct score_args args = {.metric = s.metric,
                                        .answer = answer,
                                        .expected = &s.turn[t].expected,
                                        .classes = &s.classes};
        assert_int_equal(score_answer(&score, &args, NULL), SAC_OK);
        assert_true(score == 1);
    }
    cell.index++;
    struct task_sample other = made(k, &cell);
    assert_string_not_equal(s.turn[0].user, other.turn[0].user);
    task_sample_deinit(&s);
    task_sample_deinit(&again);
    task_sample_deinit(&other);
}

static struct task_cell cell_of(const char *task, const char *place, uint32_t ctx)
{
    struct task_cell c = {.ctx = ctx, .depth = -1};
    snprintf(c.task, sizeof c.task, "%s", task);
    snprintf(c.place, sizeof c.place, "%s", place);
    return c;
}

static void lengths_fit_and_seeds_decide(void **state)
{
    (void)state;
    const struct ruler_args ruler = {.haystack = &prose, .seed = 42};
    const struct turns_args turns = {.seed = 42};
    const struct kind kinds[] = {{ruler_make, &ruler}, {turns_make, &turns}};
    for (uint32_t i = 0; ruler_name(i); i++)
        check_sample(&kinds[0], cell_of(ruler_name(i), "", 4096), 0.02);
    for (uint32_t i = 0; turns_name(i); i++)
        for (uint32_t p = 0; turns_place(p); p++)
            check_sample(&kinds[1], cell_of(turns_name(i), turns_place(p), 4096), 0.02);
}

static void another_seed_is_another_sample(void **state)
{
    (void)state;
    const struct ruler_args a = {.haystack = &prose, .seed = 1},
                            b = {.haystack = &prose, .seed = 2};
    const struct kind ka = {ruler_make, &a}, kb = {ruler_make, &b};
    const struct task_cell cell = cell_of("niah_single_1", "", 2048);
    struct task_sample sa = made(&ka, &cell), sb = made(&kb, &cell);
    assert_string_not_equal(sa.turn[0].expected.item[0], sb.turn[0].expected.item[0]);
    task_sample_deinit(&sa);
    task_sample_deinit(&sb);
}

static void needles_stand_at_their_depth(void **state)
{
    (void)state;
    const struct needle_args args = {.haystack = &prose, .seed = 3, .n_needle = 1};
    const struct kind k = {needle_make, &args};
    struct task_cell cell = cell_of("needle_number", "", 4096);
    size_t last = 0;
    char value[16] = "";
    for (cell.depth = 0; cell.depth <= 100; cell.depth += 25) {
        struct task_sample s = made(&k, &cell);
        const char *user = s.turn[0].user, *body = strstr(user, "\n\n") + 2;
        const char *needle = strstr(body, "The secret number");
        const char *end = strstr(needle, "\n\nWhat is");
        assert_true(needle && end);
        assert_int_equal(count_text(body, s.turn[0].expected.item[0]), 1);
        /* The needle's own tokens are in the whole; a sentence is at most 30 tokens. */
        const double whole = (double)count_tokens(body, (size_t)(end - body));
        const double before = (double)count_tokens(body, (size_t)(needle - body));
        assert_true(before <= whole * cell.depth / 100 + 1);
        assert_true(before >= (whole - 30) * cell.depth / 100 - 60);
        assert_true(cell.depth == 0 ? needle == body : (size_t)(needle - body) > last);
        assert_true(needle == body || strchr(" \n", needle[-1]));
        last = (size_t)(needle - body);
        /* The same needle at every depth. */
        if (*value) assert_string_equal(value, s.turn[0].expected.item[0]);
        snprintf(value, sizeof value, "%s", s.turn[0].expected.item[0]);
        check_sample(&k, cell, 0.02);
        task_sample_deinit(&s);
    }
}

static void several_needles_are_all_there(void **state)
{
    (void)state;
    for (int kind = NEEDLE_NUMBER; kind <= NEEDLE_SENTENCE; kind++) {
        const struct needle_args args = {
            .haystack = &prose, .seed = 3, .kind = (enum needle_kind)kind, .n_needle = 5};
        const struct kind k = {needle_make, &args};
        struct task_cell cell = cell_of("needle", "", 2048);
        cell.depth = 20;
        struct task_sample s = made(&k, &cell);
        for (size_t i = 0; i < s.turn[0].expected.n; i++)
            assert_non_null(strstr(s.turn[0].user, s.turn[0].expected.item[i]));
        task_sample_deinit(&s);
    }
}

static void ruler_holds_what_it_asks_for(void **state)
{
    (void)state;
    const struct ruler_args args = {.haystack = &prose, .seed = 42};
    const struct kind k = {ruler_make, &args};
    for (uint32_t i = 0; i < 8; i++) {
        const struct task_cell cell = cell_of(ruler_name(i), "", 4096);
        struct task_sample s = made(&k, &cell);
        const char *user = s.turn[0].user;
        for (size_t v = 0; v < s.turn[0].expected.n; v++)
            assert_int_equal(count_text(user, s.turn[0].expected.item[v]), 1);
        const size_t n_needle = count_text(user, "One special magic");
        const bool alike =
            strcmp(cell.task, "niah_multikey_2") == 0 || strcmp(cell.task, "niah_multikey_3") == 0;
        const bool many = strstr(cell.task, "multi") != NULL;
        assert_true(alike ? n_needle > 20 : n_needle == (many ? 4u : 1u));
        assert_int_equal(s.turn[0].expected.n,
                         strstr(cell.task, "multiv") || strstr(cell.task, "multiq") ? 4 : 1);
        task_sample_deinit(&s);
    }
    struct task_sample s;
    const struct task_cell vt = cell_of("vt", "", 4096);
    s = made(&k, &vt);
    assert_int_equal(s.turn[0].expected.n, 5);
    const char *at = strstr(s.turn[0].user, "Answer:");
    for (size_t i = 0; i < 5; i++) { /* the chain is in order, behind the example */
        char statement[32];
        snprintf(statement, sizeof statement, "VAR %s = ", s.turn[0].expected.item[i]);
        at = strstr(at, statement);
        assert_non_null(at);
    }
    task_sample_deinit(&s);
}

/* Times that `word` stands in `text` as a word. */
static size_t count_word(const char *text, const char *word)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n += (at == text || strchr(" \n", at[-1])) && strchr(" \n", at[strlen(word)]);
    return n;
}

static void counted_words_are_the_most_frequent(void **state)
{
    (void)state;
    const struct ruler_args args = {.haystack = &prose, .seed = 42};
    const struct kind k = {ruler_make, &args};
    const struct task_cell cwe = cell_of("cwe", "", 4096), fwe = cell_of("fwe", "", 4096);
    struct task_sample s = made(&k, &cwe);
    const char *list = strstr(s.turn[0].user, "\n\nBelow is");
    assert_non_null(list);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(count_word(list, s.turn[0].expected.item[i]), 30);
    task_sample_deinit(&s);
    s = made(&k, &fwe);
    size_t before = SIZE_MAX;
    for (size_t i = 0; i < 3; i++) { /* zeta: rank 2, 3, 4 */
        const size_t n = count_word(s.turn[0].user, s.turn[0].expected.item[i]);
        assert_true(n < before && n > 0);
        before = n;
    }
    task_sample_deinit(&s);
}

static void turns_only_rest_on_what_was_said(void **state)
{
    (void)state;
    const struct turns_args args = {.seed = 5};
    const struct kind k = {turns_make, &args};
    bool own_only = false, scattered = false;
    for (uint32_t index = 0; index < 12; index++) {
        struct task_cell cell = cell_of("collect", "end", 2048);
        cell.index = index;
        struct task_sample s = made(&k, &cell);
        for (uint32_t t = 0; t < s.n_turn; t++) {
            uint32_t in_own = 0;
            for (size_t i = 0; i < s.turn[t].expected.n; i++) {
                uint32_t n_seen = 0;
                for (uint32_t u = 0; u <= t; u++)
                    n_seen += strstr(s.turn[u].user, s.turn[t].expected.item[i]) != NULL;
                assert_int_equal(n_seen, 1);
                in_own += strstr(s.turn[t].user, s.turn[t].expected.item[i]) != NULL;
            }
            own_only |= t > 0 && in_own == s.turn[t].expected.n;
            scattered |= t > 0 && in_own > 0 && in_own < s.turn[t].expected.n;
        }
        task_sample_deinit(&s);
    }
    assert_true(own_only && scattered); /* sizes of the set of turns go round */
}

static void places_move_the_question_only(void **state)
{
    (void)state;
    const struct turns_args args = {.seed = 5};
    const struct kind k = {turns_make, &args};
    double at[3];
    for (uint32_t p = 0; p < 3; p++) {
        const struct task_cell cell = cell_of("facts", turns_place(p), 2048);
        struct task_sample s = made(&k, &cell);
        const char *user = s.turn[1].user, *question = strstr(user, "Question:");
        assert_non_null(question);
        at[p] = (double)(question - user) / (double)strlen(user);
        task_sample_deinit(&s);
    }
    assert_true(at[0] == 0 && at[1] > 0.3 && at[1] < 0.7 && at[2] > 0.8);
}

/* The text of tokens begin .. end - 1. */
static char *text_of(const int32_t *tok, size_t begin, size_t end)
{
    char *text;
    size_t n;
    assert_int_equal(sac_detokenize(model, tok + begin, end - begin, true, &text, &n, NULL),
                     SAC_OK);
    return text;
}

/* The tokens from the border on hold what stands behind the turn's documents, and those behind its
 * first token no longer do; nothing of it is before. */
static void check_question(const char *what, const struct task_sample *s, uint32_t turn, bool raw)
{
    static const char *const answer[TASK_TURN_MAX] = {"So.", "So.", "So.", "So."};
    struct task_text text = task_text_of(model);
    struct task_prompt p = {.sample = s, .turn = turn, .answer = answer};
    int32_t *tok;
    size_t begin = 0;
    text.raw = raw;
    assert_int_equal(task_encode(&text, s, turn, answer, &tok, &p.n_tok, NULL), SAC_OK);
    p.tok = tok;
    assert_int_equal(task_find_question(&text, &p, &begin, NULL), SAC_OK);
    const char *question = s->turn[turn].user + s->turn[turn].question_at;
    while (*question && strchr(" \n", *question)) question++;
    char *before = text_of(tok, 0, begin), *behind = text_of(tok, begin, p.n_tok),
         *less = text_of(tok, begin + 1, p.n_tok);
    if (!*question || !strstr(behind, question) || strstr(less, question))
        fail_msg("%s: '%s' is not where '%s' begins", what, behind, question);
    /* A document's last words are still before. */
    const size_t n = strlen(before);
    assert_true(n > 40 && s->turn[turn].question_at > 40);
    assert_null(strstr(before + n - 20, question));
    sac_free(before);
    sac_free(behind);
    sac_free(less);
    sac_free(tok);
}

static void questions_begin_behind_the_documents(void **state)
{
    (void)state;
    const struct ruler_args ruler = {.haystack = &prose, .seed = 42};
    const struct turns_args turns = {.seed = 42};
    const struct needle_args needle = {.haystack = &prose, .seed = 3, .n_needle = 2};
    const uint64_t seed = 1;
    const struct kind kinds[] = {{ruler_make, &ruler},
                                 {turns_make, &turns},
                                 {needle_make, &needle},
                                 {needle_make_passkey, &seed}};
    struct task_cell cell[N_QUESTION_CELL];
    size_t kind[N_QUESTION_CELL], n = 0;
    for (uint32_t i = 0; ruler_name(i); i++) {
        cell[n] = cell_of(ruler_name(i), "", 2048);
        kind[n++] = 0;
    }
    for (uint32_t i = 0; turns_place(i); i++) {
        cell[n] = cell_of("facts", turns_place(i), 2048);
        kind[n++] = 1;
    }
    for (size_t k = 2; k < 4; k++) {
        cell[n] = cell_of("needle", "", 2048);
        cell[n].depth = 100; /* what is hidden stands right before the question */
        kind[n++] = k;
    }
    for (size_t i = 0; i < n; i++) {
        struct task_sample s = made(&kinds[kind[i]], &cell[i]);
        for (uint32_t t = 0; t < s.n_turn; t++)
            for (int raw = 0; raw < 2; raw++) check_question(cell[i].task, &s, t, raw);
        const char *question = s.turn[0].user + s.turn[0].question_at;
        const bool asks_before =
            strcmp(cell[i].place, "begin") == 0 || strcmp(cell[i].place, "middle") == 0;
        assert_int_equal(strchr(question, '?') == NULL, asks_before);
        if (asks_before) assert_non_null(strstr(question, "Answer the question with"));
        task_sample_deinit(&s);
    }
}

static void facts_hold_together(void **state)
{
    (void)state;
    assert_true(2 * facts_n_pair() >= 40);
    for (uint32_t i = 0; i < facts_n_pair(); i++) {
        const struct fact_pair *p = facts_pair(i);
        assert_non_null(strcasestr(p->place.text, p->place.answer));
        assert_non_null(strcasestr(p->person.text, p->person.answer));
        assert_non_null(strcasestr(p->person.text, p->answer));
        assert_null(strcasestr(p->place.text, p->answer));
        char name[64]; /* the person's paragraph begins with the name */
        const size_t first = strcspn(p->person.text, " ");
        const size_t n = first + 1 + strcspn(p->person.text + first + 1, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, p->person.text);
        assert_non_null(strstr(p->place.text, name));
    }
}

static void a_length_that_is_too_short_is_told(void **state)
{
    (void)state;
    const struct ruler_args args = {.haystack = &prose, .seed = 42};
    const struct task_text text = task_text_of(model);
    const struct task_cell cell = cell_of("cwe", "", 256);
    struct task_sample s = {0};
    sac_error err;
    assert_int_equal(ruler_make(&args, &text, &cell, &s, &err), SAC_ERR_CONTEXT);
    assert_non_null(strstr(err.msg, "cwe: 256 tokens"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_fit_and_seeds_decide),
        cmocka_unit_test(another_seed_is_another_sample),
        cmocka_unit_test(needles_stand_at_their_depth),
        cmocka_unit_test(several_needles_are_all_there),
        cmocka_unit_test(ruler_holds_what_it_asks_for),
        cmocka_unit_test(counted_words_are_the_most_frequent),
        cmocka_unit_test(turns_only_rest_on_what_was_said),
        cmocka_unit_test(places_move_the_question_only),
        cmocka_unit_test(questions_begin_behind_the_documents),
        cmocka_unit_test(facts_hold_together),
        cmocka_unit_test(a_length_that_is_too_short_is_told),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
