/* test_passages.c: from the pages that attention read to marked passages: what is left out, borders
 * of words, hostile documents, colours, folding. The model is a stub whose token i is the i-th
 * piece of a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define sac_token_piece         stub_piece
#define sac_engine_set_recorder stub_recorder
#define sac_model_get_info      stub_info
#include "saccade.h"

#include "app/passages_print.c"
#include "app/terminal.c"
#include "eval/passages.c"

#include <math.h>

static sac_read_fn recorder;
static void *recorder_user;

sac_status sac_engine_set_recorder(sac_engine *engine, sac_read_fn fn, void *user, sac_error *err)
{
    (void)engine;
    (void)err;
    recorder = fn;
    recorder_user = user;
    return SAC_OK;
}

sac_model_info sac_model_get_info(const sac_model *model)
{
    (void)model;
    return (sac_model_info){.n_layer = 4};
}

/* Tokens are "tNNN " (5 bytes); token 1000 is the template's head, 1001 its end. */
const char *sac_token_piece(const sac_model *model, int32_t tok, bool special, size_t *out_bytes)
{
    static char piece[1002][16];
    (void)model;
    (void)special;
    if (tok == 1000 || tok == 1001)
        snprintf(piece[tok], sizeof piece[0], tok == 1000 ? "<head>" : "<tail>");
    else
        snprintf(piece[tok], sizeof piece[0], "t%03d ", tok);
    *out_bytes = strlen(piece[tok]);
    return piece[tok];
}

enum { N_DOC = 300, N_TOK = N_DOC + 2 };

struct fixture {
    int32_t tok[N_TOK];
    float mass[N_TOK]; /* of the next record */
    struct strbuf document;
    struct passages p;
};

static void setup(struct fixture *f)
{
    *f = (struct fixture){.tok = {1000}};
    for (int32_t i = 0; i < N_DOC; i++) {
        f->tok[1 + i] = i;
        strbuf_addf(&f->document, "t%03d ", i);
    }
    f->tok[N_TOK - 1] = 1001;
}

static void teardown(struct fixture *f)
{
    passages_deinit(&f->p);
    strbuf_deinit(&f->document);
}

static sac_status begin(struct fixture *f, const struct passages_document *document, size_t n,
                        sac_error *err)
{
    const struct passages_prompt prompt = {NULL, f->tok, N_TOK, document, n, false};
    return passages_begin(&f->p, NULL, &prompt, err);
}

static void begin_whole(struct fixture *f)
{
    const struct passages_document whole = {f->document.data, f->document.n};
    assert_int_equal(begin(f, &whole, 1, NULL), SAC_OK);
}

static void record(struct fixture *f, uint32_t layer)
{
    const sac_read_record r = {
        .kind = SAC_ROW_DECODE, .layer = layer, .pos = N_TOK - 1, .tok_mass = f->mass};
    recorder(recorder_user, &r);
}

/* The passage that holds a word of the document. */
static const struct passage *passage_of(const struct passages *p, const char *word)
{
    const size_t at = (size_t)(strstr(p->document, word) - p->document);
    for (size_t i = 0; i < p->n; i++)
        if (p->item[i].begin <= at && at < p->item[i].end) return &p->item[i];
    return NULL;
}

static void test_passages(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    begin_whole(&f);
    f.mass[0] = 0.5f; /* a sink, as the three behind it are taken for */
    f.mass[3] = 0.5f;
    f.mass[130] = 0.3f;
    f.mass[150] = 0.1f;
    f.mass[200] = 0.1f;
    record(&f, 2);
    f.mass[130] = 0.1f;
    record(&f, 3);
    f.mass[230] = 0.9f;
    record(&f, 1); /* of the lower half: not counted */
    assert_int_equal(passages_finish(&f.p, NULL, NULL), SAC_OK);
    assert_null(recorder);
    double total = 0;
    for (size_t i = 0; i < f.p.n; i++) {
        total += f.p.item[i].share;
        assert_true(f.p.item[i].begin < f.p.item[i].end && f.p.item[i].end <= f.p.n_bytes);
        if (i > 0) assert_true(f.p.item[i].begin > f.p.item[i - 1].begin);
    }
    assert_true(fabs(total - 1) < 1e-12);
    assert_int_equal(f.p.n, (N_TOK + 31) / 32);
    assert_int_equal(f.p.item[0].begin, 3 * 5); /* behind the sinks */
    /* Page 4 holds the tokens 127 to 158 of the document: squares are 0.16 + 0.04 and 2 * 0.01. */
    const struct passage *best = passage_of(&f.p, "t129");
    assert_true(fabs(best->share - 0.2 / 0.22) < 1e-6);
    assert_true(fabs(best->mass - 0.3) < 1e-6);
    assert_memory_equal(f.p.document + best->begin, "t127", 4);
    assert_memory_equal(f.p.document + best->end - 5, "t158", 4);
    teardown(&f);
}

/* The page with the document's end counts for its part of the document, and for no more. */
static void test_the_end(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    begin_whole(&f);
    f.mass[N_TOK - 2] = 0.2f;
    f.mass[N_TOK - 1] = 0.7f; /* the template's end */
    f.mass[100] = 0.1f;
    record(&f, 3);
    assert_int_equal(passages_finish(&f.p, NULL, NULL), SAC_OK);
    const struct passage *last = passage_of(&f.p, "t299");
    assert_non_null(last);
    assert_true(fabs(last->share - 0.04 / 0.05) < 1e-6 && fabs(last->mass - 0.2) < 1e-6);
    assert_int_equal(last->end, f.p.n_bytes);
    assert_memory_equal(f.p.document + last->begin, "t287", 4);
    teardown(&f);
}

/* Two documents with other text between them: passages are of one document each. */
static void test_two_documents(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    const struct passages_document two[] = {{f.document.data + 5 * 10, 5 * 60},
                                            {f.document.data + 5 * 80, 5 * 20}};
    assert_int_equal(begin(&f, two, 2, NULL), SAC_OK);
    f.mass[1 + 69] = 0.3f; /* the last of the first */
    f.mass[1 + 70] = 0.9f; /* between them */
    f.mass[1 + 85] = 0.3f;
    record(&f, 2);
    assert_int_equal(passages_finish(&f.p, NULL, NULL), SAC_OK);
    assert_int_equal(f.p.n_bytes, 5 * 60 - 1 + 2 + 5 * 20 - 1);
    const struct passage *a = passage_of(&f.p, "t069"), *b = passage_of(&f.p, "t085");
    assert_true(a && b && a != b && fabs(a->share - 0.5) < 1e-6 && fabs(b->share - 0.5) < 1e-6);
    assert_memory_equal(f.p.document + a->end - 4, "t069", 4);
    assert_memory_equal(f.p.document + passage_of(&f.p, "t080")->begin, "t080", 4);
    teardown(&f);
}

static void test_changed_document(void **state)
{
    (void)state;
    struct fixture f;
    sac_error err;
    setup(&f);
    f.document.data[700] = 'X';
    const struct passages_document whole = {f.document.data, f.document.n};
    assert_int_equal(begin(&f, &whole, 1, &err), SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "changes the document"));
    teardown(&f);
}

static void test_borders_of_words(void **state)
{
    (void)state;
    static const char text[] = "one two  three";
    const size_t n = sizeof text - 1;
    static const size_t want[] = {0, 3, 3, 3, 4, 7, 7, 7, 8, 9, 14, 14, 14, 14, 14};
    for (size_t at = 0; at <= n; at++) assert_int_equal(snap(text, n, at), want[at]);
}

/* A document that would command the terminal, with one passage. */
#define HOSTILE                                                                                    \
    "a\x1b[2Jb\x07\xc2\x9b"                                                                        \
    "31m\xff\r\n<script>&\"é"

static struct passages hostile(struct passage *one)
{
    *one = (struct passage){.begin = 2, .end = sizeof HOSTILE - 1, .share = 0.5, .mass = 0.1};
    return (struct passages){
        .document = HOSTILE, .n_bytes = sizeof HOSTILE - 1, .item = one, .n = 1};
}

static void test_plain_text(void **state)
{
    (void)state;
    struct passage one;
    const struct passages p = hostile(&one);
    struct strbuf b = {0};
    passages_print_text(&p, PASSAGES_PLAIN, &b);
    assert_string_equal(b.data, "a?[50 %: [2Jb??31m?\n<script>&\"é]\n");
    strbuf_deinit(&b);
}

static void test_coloured_text(void **state)
{
    (void)state;
    struct passage one;
    const struct passages p = hostile(&one);
    static const char *const mark[] = {[PASSAGES_16] = "\x1b[97;41m",
                                       [PASSAGES_256] = "\x1b[38;5;231;48;5;160m",
                                       [PASSAGES_RGB] = "\x1b[38;2;255;255;255;48;2;194;51;15m"};
    for (int c = PASSAGES_16; c <= PASSAGES_RGB; c++) {
        struct strbuf b = {0}, want = {0};
        passages_print_text(&p, (enum passages_colours)c, &b);
        strbuf_addf(&want, "a?%s[2Jb??31m?\x1b[0m\n%s<script>&\"é\x1b[0m\n", mark[c], mark[c]);
        assert_string_equal(b.data, want.data);
        strbuf_deinit(&b);
        strbuf_deinit(&want);
    }
}

static void test_page_label_stays_on_its_line(void **state)
{
    (void)state;
    static const char text[] = "one.\n\ftwo.";
    struct passage item[] = {{.begin = 0, .end = 6, .share = 0.9, .page = 1},
                             {.begin = 6, .end = 10, .share = 0.1, .page = 2}};
    const struct passages p = {.document = text, .n_bytes = sizeof text - 1, .item = item, .n = 2};
    struct strbuf b = {0};
    passages_print_text(&p, PASSAGES_16, &b);
    assert_string_equal(b.data, "\x1b[97;41mone.\x1b[0m (page 1)\n"
                                "\x1b[30;46mtwo.\x1b[0m (page 2)\n");
    strbuf_deinit(&b);
}

static void test_page(void **state)
{
    (void)state;
    struct passage one;
    const struct passages p = hostile(&one);
    struct strbuf b = {0};
    passages_print_html(&p, &(struct passages_page){"<b>why</b>", "</main>"}, &b);
    assert_null(strstr(b.data, "<script"));
    assert_null(strstr(b.data, "<b>"));
    assert_null(memchr(b.data, 0x1b, b.n));
    assert_non_null(
        strstr(b.data, "<mark class=\"r4\" id=\"best\" title=\"50.0 % of the reading\">"));
    assert_non_null(strstr(b.data, "&lt;script&gt;&amp;&quot;é<sup>50&nbsp;%</sup></mark>"));
    strbuf_deinit(&b);
}

static void test_folding(void **state)
{
    (void)state;
    char text[4000];
    for (size_t i = 0; i + 2 <= sizeof text; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    struct passage one = {.begin = 3000, .end = 3100, .share = 1, .mass = 1};
    const struct passages p = {.document = text, .n_bytes = sizeof text, .item = &one, .n = 1};
    struct strbuf b = {0};
    passages_print_text(&p, PASSAGES_PLAIN, &b);
    assert_non_null(strstr(b.data, "[... 2520 bytes, hardly read ...]"));
    assert_null(strchr(b.data, '?')); /* no character was cut in two */
    assert_null(strstr(b.data, "[... 0"));
    strbuf_deinit(&b);
}

static void test_colour_depth(void **state)
{
    (void)state;
    static const struct {
        const char *no, *force, *depth, *term;
        enum passages_colours want;
    } cases[] = {
        {"", "1", "truecolor", "xterm", PASSAGES_RGB},
        {"", "1", "24bit", "xterm", PASSAGES_RGB},
        {"", "1", "", "xterm-256color", PASSAGES_256},
        {"", "1", "", "xterm", PASSAGES_16},
        {"1", "1", "truecolor", "xterm", PASSAGES_PLAIN},
        {"", "1", "truecolor", "dumb", PASSAGES_PLAIN},
        {"", "1", "truecolor", "", PASSAGES_PLAIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("NO_COLOR", cases[i].no, 1);
        setenv("CLICOLOR_FORCE", cases[i].force, 1);
        setenv("COLORTERM", cases[i].depth, 1);
        setenv("TERM", cases[i].term, 1);
        assert_int_equal(passages_print_colours(), cases[i].want);
    }
    assert_int_equal(passages_level(0), 0);
    assert_int_equal(passages_level(0.011), 1);
    assert_int_equal(passages_level(1), PASSAGES_N_LEVEL - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passages),
        cmocka_unit_test(test_the_end),
        cmocka_unit_test(test_two_documents),
        cmocka_unit_test(test_changed_document),
        cmocka_unit_test(test_borders_of_words),
        cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_coloured_text),
        cmocka_unit_test(test_page_label_stays_on_its_line),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_folding),
        cmocka_unit_test(test_colour_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
