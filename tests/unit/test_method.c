/* test_method.c: the list of methods is well formed and equals its public view. */
#include "methods/method_spec.h"
#include "saccade.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void names_are_unique_and_found(void **state)
{
    (void)state;
    size_t n = 0;
    for (const struct method *m; (m = method_at(n)); n++) {
        assert_true(strcmp(m->kind, "prefill") == 0 || strcmp(m->kind, "decode") == 0 ||
                    (strcmp(m->kind, "context") == 0 && m->context));
        assert_true(m->name[0] && m->summary[0]);
        assert_ptr_equal(method_find(m->kind, m->name), m); /* a second one would be found later */
    }
    assert_true(n > 0);
    assert_null(method_find("prefill", "full"));
    assert_null(method_find("decode", "no-such-method"));
}

static void public_view_equals_the_list(void **state)
{
    (void)state;
    size_t i = 0;
    for (sac_method_info info; sac_method_at(i, &info); i++) {
        const struct method *m = method_at(i);
        assert_string_equal(info.kind, m->kind);
        assert_string_equal(info.name, m->name);
        assert_string_equal(info.summary, m->summary);
        assert_ptr_equal(info.paper, m->paper);
        const bool needs_decode = strcmp(m->kind, "context") == 0 && strcmp(m->name, "infllm") == 0;
        assert_int_equal(info.decode != NULL, needs_decode);
        if (needs_decode) assert_non_null(method_find("decode", info.decode));
    }
    assert_null(method_at(i));
}

/* A line of a table: some words, not the end of a sentence, and nothing that ends a cell. */
static void is_cell(const struct method *m, const char *text)
{
    const size_t n = strlen(text);
    if (n < 4 || n > 240 || text[n - 1] == '.' || strpbrk(text, "|\n"))
        fail_msg("%s: '%s' is no cell of a table", m->name, text);
}

/* Who has a paper says where it is not the paper's, and shows it. */
static void deviations_are_told(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        sac_method_info info;
        assert_true(sac_method_at(i, &info));
        assert_ptr_equal(info.deviation, m->deviation);
        assert_int_equal(info.n_deviation, m->n_deviation);
        if (!m->paper != !m->n_deviation) fail_msg("%s: %u deviations", m->name, m->n_deviation);
        for (uint32_t k = 0; k < m->n_deviation; k++) {
            is_cell(m, m->deviation[k].paper);
            is_cell(m, m->deviation[k].here);
            is_cell(m, m->deviation[k].why);
            if (m->deviation[k].effect) is_cell(m, m->deviation[k].effect);
        }
    }
}

static void dense_attention_is_always_there(void **state)
{
    (void)state;
    assert_non_null(method_find("prefill", "dense"));
    assert_non_null(method_find("decode", "full"));
}

static void defaults_obey_their_own_tables(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        struct method_spec s;
        sac_error err;
        assert_true(!m->about || m->about[0]);
        if (method_spec_parse(&s, m->kind, m->name, &err) != SAC_OK) fail_msg("%s", err.msg);
        assert_ptr_equal(s.method, m);
        for (uint32_t p = 0; m->params && p < m->params->n; p++) {
            const sac_method_param *row = &m->params->row[p];
            char text[128];
            assert_true(row->help[0]);
            snprintf(text, sizeof text, "%s:%s=%s", m->name, row->key, row->value);
            if (method_spec_parse(&s, m->kind, text, &err) != SAC_OK) fail_msg("%s", err.msg);
        }
    }
}

/* Copies a value of a specification, by its key. */
static void value_of(void *out, size_t n, const char *kind, const char *text, const char *key)
{
    struct method_spec s;
    sac_error err;
    if (method_spec_parse(&s, kind, text, &err) != SAC_OK) fail_msg("%s", err.msg);
    const struct method_params *p = s.method->params;
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->row[i].key, key) == 0) {
            memcpy(out, s.param + p->at[i], n);
            return;
        }
    fail_msg("%s has no %s", text, key);
}

static uint32_t budget_of(const char *text, uint32_t n_tok)
{
    struct param_budget budget;
    value_of(&budget, sizeof budget, "decode", text, "budget");
    return method_spec_budget(budget, n_tok);
}

static void values_are_read(void **state)
{
    (void)state;
    uint32_t n;
    double x;
    bool flag;
    assert_int_equal(budget_of("streaming:budget=77,sink=2", 10), 77);
    assert_int_equal(budget_of("streaming:budget=2.5%", 1000), 25);
    assert_int_equal(budget_of("streaming:budget=2.5%", 1001), 26);
    assert_int_equal(budget_of("streaming:budget=2.5%", 1), 1);
    value_of(&n, sizeof n, "decode", "streaming:budget=77,sink=2", "sink");
    assert_int_equal(n, 2);
    value_of(&n, sizeof n, "decode", "streaming:budget=77", "sink");
    assert_int_equal(n, 4);
    value_of(&n, sizeof n, "decode", "loopserve:warm=lines,every=7", "warm");
    assert_int_equal(n, 2);
    value_of(&n, sizeof n, "decode", "loopserve:warm=lines,every=7", "every");
    assert_int_equal(n, 7);
    value_of(&x, sizeof x, "decode", "psa:recent=0,mass=0.25", "mass");
    assert_true(x == 0.25);
    value_of(&x, sizeof x, "prefill", "sparge:like=-1.5", "like");
    assert_true(x == -1.5);
    value_of(&flag, sizeof flag, "decode", "loopserve", "stagger");
    assert_true(flag);
    value_of(&flag, sizeof flag, "decode", "loopserve:stagger=off", "stagger");
    assert_false(flag);
    value_of(&flag, sizeof flag, "prefill", "minference:table=a.txt", "table");
    assert_true(flag);
    value_of(&flag, sizeof flag, "prefill", "minference", "table");
    assert_false(flag);
}

/* One vocabulary: what is read in any case is counted in tokens, whatever the method. */
static void ends_are_counted_in_tokens(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++)
        for (uint32_t p = 0; m->params && p < m->params->n; p++) {
            const sac_method_param *row = &m->params->row[p];
            const bool is_end = strcmp(row->key, "sink") == 0 || strcmp(row->key, "recent") == 0;
            if (is_end && row->type != SAC_PARAM_TOKENS) fail_msg("%s: %s", m->name, row->key);
        }
}

static void wrong_specs_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } wrong[] = {
        {"", "unknown decode method ''"},
        {"no", "there are full, streaming"},
        {"full:x=1", "has no parameter 'x': it has none"},
        {"streaming:", "''"},
        {"streaming:budget", "'budget' is not of the form key=value"},
        {"streaming:budget=8,", "'' is not of the form key=value"},
        {"streaming:budge=8", "(did you mean 'budget'?): it has budget, sink"},
        {"streaming:budget=0", "budget=0 must be 1 to"},
        {"streaming:budget=1.5", "budget=1.5 must be"},
        {"streaming:budget=101%", "up to 100%"},
        {"streaming:budget=0%", "up to 100%"},
        {"streaming:budget=nan", "budget=nan"},
        {"streaming:budget=1e999", "budget=1e999"},
        {"streaming:budget=0x", "budget=0x"},
        {"streaming:sink=4%", "sink=4% must be a whole number from 0 to 4096"},
        {"streaming:sink=-1", "sink=-1"},
        {"streaming:sink= 1", "sink= 1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct method_spec s;
        sac_error err = {0};
        if (method_spec_parse(&s, "decode", wrong[i].text, &err) != SAC_ERR_ARG)
            fail_msg("'%s' was accepted", wrong[i].text);
        if (!strstr(err.msg, wrong[i].reason)) fail_msg("'%s': %s", wrong[i].text, err.msg);
        assert_int_equal(sac_method_check("decode", wrong[i].text, NULL), SAC_ERR_ARG);
    }
}

static void a_list_of_specs_has_a_bound_and_says_whether_all_are_dense(void **state)
{
    (void)state;
    const char *text[SAC_METHODS_MAX + 1] = {"full", "streaming:sink=2"};
    struct method_spec_list list;
    sac_error err = {0};
    assert_int_equal(method_spec_list_parse(&list, "decode", text, 1, NULL), SAC_OK);
    assert_true(list.n == 1 && list.is_dense);
    assert_int_equal(method_spec_list_parse(&list, "decode", text, 2, NULL), SAC_OK);
    assert_true(list.n == 2 && !list.is_dense);
    assert_ptr_equal(list.text[1], list.spec[1].text);
    assert_string_equal(list.text[1], text[1]);
    uint32_t sink;
    memcpy(&sink, list.spec[1].param + list.spec[1].method->params->at[1], sizeof sink);
    assert_int_equal(sink, 2);
    for (uint32_t i = 0; i <= SAC_METHODS_MAX; i++) text[i] = "full";
    assert_int_equal(method_spec_list_parse(&list, "decode", text, SAC_METHODS_MAX, NULL), SAC_OK);
    assert_int_equal(method_spec_list_parse(&list, "decode", text, SAC_METHODS_MAX + 1, &err),
                     SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "decode methods: must be 1 to"));
    assert_int_equal(method_spec_list_parse(&list, "decode", text, 0, NULL), SAC_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_found),
        cmocka_unit_test(public_view_equals_the_list),
        cmocka_unit_test(deviations_are_told),
        cmocka_unit_test(dense_attention_is_always_there),
        cmocka_unit_test(defaults_obey_their_own_tables),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(ends_are_counted_in_tokens),
        cmocka_unit_test(wrong_specs_are_refused_with_a_reason),
        cmocka_unit_test(a_list_of_specs_has_a_bound_and_says_whether_all_are_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
