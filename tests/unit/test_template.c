/* test_template.c: the interpreter gives what jinja2 gives, and nothing gets past its limits.
 *
 * tests/golden/template.json is made by tests/truth/test_template.py: for each snippet and each
 * conversation the text, or null where jinja2 refuses. Templates of models are read from their
 * files, so only what they render is kept. */
#include "base/mem.h"
#include "model/gguf.h"
#include "model/jinja.h"
#include "model/template.h"
#include "model_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#define MSG_MAX 16

static cJSON *golden;

static const cJSON *field(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *text_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(field(object, key));
}

static int load_golden(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    FILE *f = fopen("tests/golden/template.json", "rb");
    if (!f) return -1;
    char *text = calloc(1, 1 << 20);
    const size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    golden = cJSON_ParseWithLength(text, n);
    free(text);
    return golden ? 0 : -1;
}

static int free_golden(void **state)
{
    (void)state;
    cJSON_Delete(golden);
    return 0;
}

/* The input of a conversation by its name; `msgs` is [MSG_MAX]. */
static struct template_input conversation(const char *name, sac_message *msgs)
{
    const cJSON *c = field(field(golden, "conversations"), name), *m;
    assert_non_null(c);
    size_t n = 0;
    cJSON_ArrayForEach(m, field(c, "messages"))
    {
        assert_true(n < MSG_MAX);
        msgs[n++] = (sac_message){text_of(m, "role"), text_of(m, "content"), text_of(m, "extra")};
    }
    return (struct template_input){.msgs = msgs,
                                   .n_msg = n,
                                   .tools_json = text_of(c, "tools"),
                                   .add_generation_prompt = cJSON_IsTrue(field(c, "gen")),
                                   .bos = "<s>",
                                   .eos = "</s>",
                                   .now = (int64_t)cJSON_GetNumberValue(field(golden, "now"))};
}

/* 1 if the render differs from `want` (NULL: an error is wanted), which is then shown. */
static int differs(const char *source, size_t n, const struct template_input *in, const char *want)
{
    char *text = NULL;
    sac_error err = {0};
    const sac_status status = template_render(source, n, in, &text, &err);
    const bool same = status == SAC_OK ? want && strcmp(text, want) == 0 : !want && err.msg[0];
    if (!same)
        fprintf(stderr, "%.*s\n  want %s\n  got  %s\n", n < 200 ? (int)n : 200, source,
                want ? want : "an error", status == SAC_OK ? text : err.msg);
    if (status == SAC_OK) mem_free(text);
    return !same;
}

static void test_snippets(void **state)
{
    (void)state;
    sac_message msgs[MSG_MAX];
    struct template_input in = conversation(text_of(golden, "snippet_turns"), msgs);
    in.vars_json = text_of(golden, "vars");
    int bad = 0, n = 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, field(golden, "snippets"))
    {
        const char *source = cJSON_GetStringValue(cJSON_GetArrayItem(c, 0));
        bad += differs(source, strlen(source), &in, cJSON_GetStringValue(cJSON_GetArrayItem(c, 1)));
        n++;
    }
    assert_int_equal(bad, 0);
    assert_true(n > 400);
}

/* The conversations of `cases` through one template. */
static int conversations_differ(const cJSON *cases, const char *source, size_t n_source,
                                const char *bos, const char *eos)
{
    int bad = 0, n = 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, cases)
    {
        sac_message msgs[MSG_MAX];
        struct template_input in =
            conversation(cJSON_GetStringValue(cJSON_GetArrayItem(c, 0)), msgs);
        in.bos = bos;
        in.eos = eos;
        bad += differs(source, n_source, &in, cJSON_GetStringValue(cJSON_GetArrayItem(c, 1)));
        n++;
    }
    assert_true(n >= 10);
    return bad;
}

static void test_builtins(void **state)
{
    (void)state;
    int bad = 0;
    size_t i = 0;
    for (const char *name; (name = template_builtin_at(i)) != NULL; i++) {
        const char *source = template_builtin(name);
        assert_non_null(source);
        const cJSON *cases = field(field(golden, "builtins"), name);
        bad += conversations_differ(cases, source, strlen(source), "<s>", "</s>");
    }
    assert_int_equal(i, 8);
    assert_int_equal(bad, 0);
    assert_null(template_builtin("nosuch"));
}

static void test_models(void **state)
{
    (void)state;
    int bad = 0, found = 0;
    const cJSON *m;
    cJSON_ArrayForEach(m, field(golden, "models"))
    {
        char path[4096];
        struct gguf *g;
        struct gguf_str source;
        sac_error err;
        if (gguf_open(&g, model_path(path, m->string), &err) != SAC_OK) {
            fprintf(stderr, "%s: not tested\n", err.msg);
            continue;
        }
        assert_int_equal(gguf_get_str(g, "tokenizer.chat_template", &source, &err), SAC_OK);
        bad += conversations_differ(field(m, "cases"), source.s, source.n, text_of(m, "bos"),
                                    text_of(m, "eos"));
        gguf_close(g);
        found++;
    }
    assert_int_equal(bad, 0);
    if (found == 0) skip();
}

/* What this thread has computed: unlike time, the same beside other work. */
static uint64_t used_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Templates made to hang or to fill memory: each must end with an error, soon. */
static void test_hostile(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ [1] * 10**9 }}",
        "{{ [[]] * 10**12 | length }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}"
        "{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}"
        "{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(64) %}"
        "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
        "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns | tojson }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s.rfind('b' ~ s) }}{% endfor %}",
        "{% set s = 'a' * 2000000 %}{{ s.rfind('a' * 1000000 ~ 'b') }}"
        "{% for i in range(10000) %}{{ s.rfind('a' * 1000000 ~ 'b') }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'ab' in s %}{% endif %}"
        "{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s[i] }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
        "{% set s = '<' * 4000000 %}{{ s | e }}",
        "{{ ('a' * 4000000).replace('', 'xxxxxxxxxxxxxxxx') }}",
        "{{ ('a' * 3000000) | list | length }}",
        "{{ ('a,' * 2000000).split(',') | length }}",
        "{{ [[1, [2, [3]]]] | tojson(indent=1000000000) }}",
        "{% for i in range(100000) %}{{ [[1]] | tojson(indent=100000) | length }}{% endfor %}",
        "{{ range(100000) | list | sort(reverse=true) | list | tojson(sort_keys=true) }}"
        "{% for i in range(100) %}{{ range(100000) | sort | length }}{% endfor %}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%999d' % 1 * 100000000 }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ strftime_now('%999999999Y') }}",
        "{% for i in range(100000) %}{% set x %}{{ 'y' * 100000 }}{% endset %}{% endfor %}",
    };
    sac_message msgs[MSG_MAX];
    const struct template_input in = conversation("one question", msgs);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char *text = NULL;
        sac_error err = {0};
        const uint64_t start = used_us();
        const sac_status status = template_render(sources[i], strlen(sources[i]), &in, &text, &err);
        const uint64_t us = used_us() - start;
        if (status == SAC_OK) fprintf(stderr, "no error from %s\n", sources[i]);
        assert_int_not_equal(status, SAC_OK);
        assert_non_null(strstr(err.msg, "line 1: "));
        /* A second, and some more under sanitizers. */
        if (us > 5000000) fprintf(stderr, "%.1f s for %s\n", (double)us * 1e-6, sources[i]);
        assert_true(us < 5000000);
    }
}

/* `n` times `open`, then `middle`, then `n` times `close`. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    struct strbuf b = {0};
    for (size_t i = 0; i < n; i++) strbuf_adds(&b, open);
    strbuf_adds(&b, middle);
    for (size_t i = 0; i < n; i++) strbuf_adds(&b, close);
    return strbuf_detach(&b, NULL);
}

static void test_deep(void **state)
{
    (void)state;
    static const struct {
        const char *before, *open, *middle, *close, *after;
    } shapes[] = {
        {"{{ ", "(", "1", ")", " }}"},
        {"{{ ", "[", "1", "]", " }}"},
        {"{{ ", "{1:", "1", "}", " }}"},
        {"{{ ", "-", "1", "", " }}"},
        {"{{ ", "not ", "1", "", " }}"},
        {"{{ ", "1 if 1 else ", "1", "", " }}"},
        {"{{ ", "range(", "1", ")", " }}"},
        {"{{ d", "[0", "", "]", " }}"},
        {"", "{% if 1 %}", "x", "{% endif %}", ""},
        {"", "{% for a in 'x' %}", "x", "{% endfor %}", ""},
        {"", "{% set a %}", "x", "{% endset %}", ""},
        {"{{ 1", " + 1", "", "", " }}"},
        {"{{ 1", " ** 1", "", "", " }}"},
        {"{{ d", ".x", "", "", " }}"},
        {"{{ d", "|list", "", "", " }}"},
        {"{{ 1", " and 1", "", "", " }}"},
        {"{{ 1", " is number", "", "", " }}"},
        {"{% set ", "(", "a", ",)", " = 1 %}"},
    };
    sac_message msgs[MSG_MAX];
    const struct template_input in = conversation("one question", msgs);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char *inner = nested(shapes[i].open, shapes[i].middle, shapes[i].close, 20000),
             *text = NULL;
        struct strbuf b = {0};
        sac_error err = {0};
        strbuf_adds(&b, shapes[i].before);
        strbuf_adds(&b, inner);
        strbuf_adds(&b, shapes[i].after);
        const sac_status status = template_render(b.data, b.n, &in, &text, &err);
        if (status != SAC_ERR_FORMAT) fprintf(stderr, "nesting of '%s'\n", shapes[i].open);
        assert_int_equal(status, SAC_ERR_FORMAT);
        strbuf_deinit(&b);
        mem_free(inner);
    }
}

/* What people write is far from the limits: 40 nested brackets, 300 terms, a long document. */
static void test_generous(void **state)
{
    (void)state;
    char *sum = nested(" + 'x'", "", "", 300);
    struct strbuf b = {0};
    strbuf_addf(&b,
                "{{ ((((((((((((((((((((((((((((((((((((((((1)))))))))))))))))))))))))))))))"
                "))))))))) }}{{ ('x'%s) | length }}",
                sum);
    sac_message msgs[MSG_MAX];
    struct template_input in = conversation("one question", msgs);
    assert_int_equal(differs(b.data, b.n, &in, "1301"), 0);
    strbuf_deinit(&b);
    mem_free(sum);

    const size_t n = (size_t)12 << 20; /* three times the limit on what a template adds */
    char *book = malloc(n + 1), *text;
    memset(book, 'b', n);
    book[n] = 0;
    const sac_message msg = {.role = "user", .content = book};
    in.msgs = &msg;
    in.n_msg = 1;
    sac_error err;
    const char *chatml = template_builtin("chatml"), *llama2 = template_builtin("llama2");
    assert_int_equal(template_render(chatml, strlen(chatml), &in, &text, &err), SAC_OK);
    assert_true(strlen(text) > n);
    mem_free(text);
    assert_int_equal(template_render(llama2, strlen(llama2), &in, &text, &err), SAC_OK);
    assert_true(strlen(text) > n);
    mem_free(text);
    free(book);
}

static void expect_message(const char *source, struct template_input in, sac_status status,
                           const char *part)
{
    char *text = NULL;
    sac_error err = {0};
    assert_int_equal(template_render(source, strlen(source), &in, &text, &err), status);
    if (!strstr(err.msg, part)) fprintf(stderr, "'%s' is not in '%s'\n", part, err.msg);
    assert_non_null(strstr(err.msg, part));
}

static void test_messages(void **state)
{
    (void)state;
    sac_message msgs[MSG_MAX];
    struct template_input in = conversation("one question", msgs);
    expect_message("\n\n{{ raise_exception('no ' ~ 1) }}", in, SAC_ERR_ARG, "line 3: no 1");
    expect_message("a\n{% if %}", in, SAC_ERR_FORMAT, "line 2: an expression was expected");
    expect_message("a\r\n\r\n{{ x", in, SAC_ERR_FORMAT, "line 3: a tag does not end");
    expect_message("{% for a in 'x' %}\n{{ nosuch.y }}{% endfor %}", in, SAC_ERR_FORMAT,
                   "line 2: 'nosuch' is undefined");
    expect_message("{{ 1\n+\n'a' }}", in, SAC_ERR_FORMAT, "'+' between int and str");
    expect_message("{{ 1 | nosuch }}", in, SAC_ERR_FORMAT, "no filter named 'nosuch'");
    expect_message("{% include 'x' %}", in, SAC_ERR_FORMAT, "'include'");
    in.tools_json = "[1, 2";
    expect_message("x", in, SAC_ERR_FORMAT, "tools, byte 5");
    in.tools_json = "[01]";
    expect_message("x", in, SAC_ERR_FORMAT, "leading zero");
    in.tools_json = NULL;
    in.vars_json = "[]";
    expect_message("x", in, SAC_ERR_FORMAT, "template variables: a JSON object was expected");
    in.vars_json = NULL;
    msgs[0].extra_json = "{\"a\": nul}";
    expect_message("x", in, SAC_ERR_FORMAT, "extra fields of message 0, byte");
}

/* Every allocation of a render in turn fails: a clean error each time, and nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    sac_message msgs[MSG_MAX];
    const struct template_input in = conversation("two calls", msgs);
    const char *source = "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ 'x' * 100000 }}";
    uint64_t failed = 0;
    for (;; failed++) {
        char *text = NULL;
        sac_error err = {0};
        mem_fail_after(failed + 1);
        const sac_status status = template_render(source, strlen(source), &in, &text, &err);
        mem_fail_after(0);
        if (status == SAC_OK) {
            mem_free(text);
            break;
        }
        assert_int_equal(status, SAC_ERR_MEMORY);
        assert_true(err.msg[0] != 0);
    }
    assert_true(failed > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snippets), cmocka_unit_test(test_builtins),
        cmocka_unit_test(test_models),   cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_deep),     cmocka_unit_test(test_generous),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
