/* test_plot.c: what reports are drawn with: escaping, tables in three formats, scales and their
 * ticks, colours, the SVG writer, and whole plots that must be well formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "eval/colour.c"
#include "eval/markup.c"
#include "eval/plot.c"
#include "eval/scale.c"
#include "eval/svg.c"
#include "eval/table.c"

#include <cjson/cJSON.h>
#include <stdlib.h>

#define HOSTILE "</script><script>alert('x')</script> \"&\" \x01 \xff\xfe \xed\xa0\x80 \xe2\x80\xa8"

/* ---- Escaping ---- */

static void assert_valid_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t len = markup_utf8(s + i, n - i);
        assert_true(len > 0);
        i += len;
    }
}

static void test_html(void **state)
{
    (void)state;
    struct strbuf b = {0};
    markup_html(&b, "<a b='1'>&\"", 11);
    assert_string_equal(b.data, "&lt;a b=&#39;1&#39;&gt;&amp;&quot;");
    strbuf_reset(&b);
    markup_html(&b, "a\0b\xc3\xa9\n", 6);
    assert_string_equal(b.data, "a\xef\xbf\xbd"
                                "b\xc3\xa9\n");
    strbuf_reset(&b);
    markup_html(&b, HOSTILE, sizeof HOSTILE - 1);
    assert_null(strpbrk(b.data, "<>\"'\x01"));
    assert_valid_utf8(b.data, b.n);
    strbuf_deinit(&b);
}

/* What cJSON reads back is what was put in, for every valid text; and no `<` is in the way. */
static void test_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "plain", "a\"b\\c\n\t\r\x7f\x1f", "</script>&<!--",
                                        "\xe2\x80\xa8\xe2\x80\xa9 \xf0\x9f\x98\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct strbuf b = {0};
        markup_json(&b, texts[i], strlen(texts[i]));
        assert_null(strpbrk(b.data, "<>&\n"));
        cJSON *o = cJSON_Parse(b.data);
        assert_string_equal(cJSON_GetStringValue(o), texts[i]);
        cJSON_Delete(o);
        strbuf_deinit(&b);
    }
    struct strbuf b = {0};
    markup_json(&b, HOSTILE, sizeof HOSTILE - 1);
    assert_null(strstr(b.data, "</script"));
    assert_valid_utf8(b.data, b.n);
    strbuf_deinit(&b);
}

static void test_csv(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"plain", "plain"},
        {"", ""},
        {"a,b", "\"a,b\""},
        {"say \"hi\"", "\"say \"\"hi\"\"\""},
        {"two\nlines", "\"two\nlines\""},
        {" edge", "\" edge\""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct strbuf b = {0};
        strbuf_add(&b, "", 0);
        markup_csv(&b, pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(b.data, pairs[i][1]);
        strbuf_deinit(&b);
    }
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        size_t n, want;
    } cases[] = {
        {"a", 1, 1},
        {"", 0, 0},
        {"\xc3\xa9", 2, 2},
        {"\xc3", 1, 0},
        {"\xc0\x80", 2, 0},
        {"\xe0\x80\x80", 3, 0},
        {"\xed\xa0\x80", 3, 0},
        {"\xed\x9f\xbf", 3, 3},
        {"\xf0\x9f\x98\x80", 4, 4},
        {"\xf0\x80\x80\x80", 4, 0},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf5\x80\x80\x80", 4, 0},
        {"\x80", 1, 0},
        {"\xe2\x80\x41", 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(markup_utf8(cases[i].s, cases[i].n), cases[i].want);
}

/* ---- Tables ---- */

static const struct table_column columns[] = {
    {"name", "the name", TABLE_TEXT},
    {"v", "value", TABLE_NUMBER},
    {"share", "share", TABLE_SHARE},
};

static void test_table(void **state)
{
    (void)state;
    struct table t;
    table_init(&t, columns, 3);
    char name[] = "a,<b>";
    table_add(&t, (struct table_cell[]){{.text = name}, {.number = 0.1}, {.number = 0.25}});
    name[0] = 'z'; /* the table has a copy */
    table_add(&t, (struct table_cell[]){{.text = "q"}, {.number = (double)NAN}, {.number = 1}});
    struct strbuf b = {0};
    table_csv(&t, &b);
    assert_string_equal(b.data, "name,v,share\r\n\"a,<b>\",0.1,0.25\r\nq,,1\r\n");
    strbuf_reset(&b);
    table_json(&t, &b);
    cJSON *o = cJSON_Parse(b.data);
    const cJSON *rows = cJSON_GetObjectItem(o, "rows"), *first = cJSON_GetArrayItem(rows, 0);
    assert_int_equal(cJSON_GetArraySize(rows), 2);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetArrayItem(first, 0)), "a,<b>");
    assert_true(cJSON_GetArrayItem(first, 2)->valuedouble == 0.25);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(cJSON_GetArrayItem(rows, 1), 1)));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(o, "columns")), 3);
    cJSON_Delete(o);
    strbuf_reset(&b);
    table_html(&t, 1, &b);
    assert_non_null(
        strstr(b.data, "<td class=\"t\">a,&lt;b&gt;</td><td>0.100</td><td>25.0 %</td>"));
    assert_null(strstr(b.data, ">q<"));
    strbuf_deinit(&b);
    table_deinit(&t);
}

static void test_numbers_for_people(void **state)
{
    (void)state;
    static const struct {
        enum table_form form;
        double v;
        const char *want;
    } cases[] = {
        {TABLE_COUNT, 32768, "32,768"},
        {TABLE_COUNT, 7, "7"},
        {TABLE_COUNT, -1234567, "-1,234,567"},
        {TABLE_COUNT, 999, "999"},
        {TABLE_NUMBER, 0, "0"},
        {TABLE_NUMBER, 1.23456, "1.235"},
        {TABLE_NUMBER, 12.3456, "12.35"},
        {TABLE_NUMBER, 123.456, "123.5"},
        {TABLE_NUMBER, 71237.4, "71,237"},
        {TABLE_NUMBER, 0.000123, "1.23e-04"},
        {TABLE_SHARE, 0.0312, "3.12 %"},
        {TABLE_SHARE, 1, "100.0 %"},
        {TABLE_SHARE, (double)NAN, "\xe2\x80\x93"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[32];
        table_number(buf, cases[i].form, cases[i].v);
        assert_string_equal(buf, cases[i].want);
    }
}

/* ---- Scales ---- */

static void assert_ticks(struct scale s, unsigned n_want, const char *want)
{
    double tick[SCALE_MAX_TICK];
    struct strbuf b = {0};
    const size_t n = scale_ticks(&s, n_want, tick);
    for (size_t i = 0; i < n; i++) {
        char label[32];
        scale_label(&s, tick[i], label);
        strbuf_addf(&b, "%s%s", i ? "|" : "", label);
    }
    assert_string_equal(b.data, want);
    strbuf_deinit(&b);
}

static void test_ticks(void **state)
{
    (void)state;
    assert_ticks((struct scale){.lo = 0, .hi = 1, .unit = SCALE_PERCENT}, 5,
                 "0 %|20 %|40 %|60 %|80 %|100 %");
    assert_ticks((struct scale){.lo = 0, .hi = 0.3}, 3, "0|0.1|0.2|0.3");
    assert_ticks((struct scale){.lo = -20, .hi = 20}, 4, "-20|-10|0|10|20");
    assert_ticks((struct scale){.form = SCALE_LOG2, .unit = SCALE_TOKENS, .lo = 512, .hi = 32768},
                 8, "512|1K|2K|4K|8K|16K|32K");
    assert_ticks((struct scale){.form = SCALE_LOG10, .lo = 1e-6, .hi = 1}, 6,
                 "1e-6|1e-5|1e-4|0.001|0.01|0.1|1");
    assert_ticks((struct scale){.form = SCALE_LOG10, .lo = 0.018, .hi = 1, .unit = SCALE_PERCENT},
                 6, "2 %|5 %|10 %|20 %|50 %|100 %");
    assert_ticks((struct scale){.form = SCALE_LOG10, .lo = 500, .hi = 20000, .unit = SCALE_MS}, 6,
                 "500 ms|1 s|2 s|5 s|10 s|20 s");
    assert_ticks((struct scale){.form = SCALE_LOG10, .lo = 1e-12, .hi = 1}, 4,
                 "1e-12|1e-9|1e-6|0.001|1");
}

static void test_rounded_ends(void **state)
{
    (void)state;
    struct scale s = {.lo = 3.2, .hi = 96};
    scale_round(&s, 5);
    assert_true(s.lo == 0 && s.hi == 100);
    s = (struct scale){.form = SCALE_LOG10, .lo = 0.0031, .hi = 42};
    scale_round(&s, 5);
    assert_true(fabs(s.lo / 0.001 - 1) < 1e-9 && fabs(s.hi / 100 - 1) < 1e-9);
    s = (struct scale){.form = SCALE_LOG10, .lo = 5370, .hi = 21834}; /* less than two decades */
    scale_round(&s, 5);
    assert_true(fabs(s.lo / 5000 - 1) < 1e-9 && fabs(s.hi / 50000 - 1) < 1e-9);
    s = (struct scale){.form = SCALE_LOG2, .lo = 4096, .hi = 4096};
    scale_round(&s, 5);
    assert_true(s.lo == 4096 && s.hi == 8192);
    for (double v = -7; v <= 7; v += 3.5) { /* equal ends come apart */
        s = (struct scale){.lo = v, .hi = v};
        scale_round(&s, 5);
        assert_true(s.lo <= v && s.hi >= v && s.lo < s.hi);
    }
}

static void test_places(void **state)
{
    (void)state;
    const struct scale linear = {.lo = 10, .hi = 20, .at_lo = 100, .at_hi = 0};
    assert_true(scale_at(&linear, 10) == 100 && scale_at(&linear, 15) == 50);
    const struct scale log2 = {.form = SCALE_LOG2, .lo = 1024, .hi = 4096, .at_hi = 10};
    assert_true(fabs(scale_at(&log2, 2048) - 5) < 1e-9);
}

/* ---- Colours ---- */

static void test_colours(void **state)
{
    (void)state;
    for (int dark = 0; dark < 2; dark++) {
        const struct colour page = colour_page(dark);
        double last = 0;
        for (unsigned i = 0; i < COLOUR_N_LEVEL; i++) {
            /* More stands out more from the page, and numbers on it stay readable (WCAG AA). */
            const struct colour c = colour_level(i, dark);
            assert_true(colour_contrast(c, page) > last);
            last = colour_contrast(c, page);
            assert_true(colour_contrast(c, colour_ink(c)) >= 4.5);
        }
        assert_true(last > 10);
        for (unsigned i = 0; i < COLOUR_N_SERIES; i++)
            assert_true(colour_contrast(colour_series(i, dark), page) >= 3); /* of shapes */
    }
    assert_true(fabs(colour_contrast((struct colour){0, 0, 0}, (struct colour){1, 1, 1}) - 21) <
                1e-9);
    assert_int_equal(colour_level_of(-1), 0);
    assert_int_equal(colour_level_of((double)NAN), 0);
    assert_int_equal(colour_level_of(1), COLOUR_N_LEVEL - 1);
    assert_int_equal(colour_level_of(2), COLOUR_N_LEVEL - 1);
    assert_int_equal(colour_level_of(0.5), COLOUR_N_LEVEL / 2);
}

/* Series stay apart for people who see no red or no green: distances in simulated colours (H.
 * Brettel's half planes in the approximation of F. Vienot, 1999). */
static struct colour as_seen(struct colour c, bool protan)
{
    const double r = to_linear(c.r), g = to_linear(c.g), b = to_linear(c.b);
    const double rg = protan ? 0.11238 * r + 0.88762 * g : 0.29275 * r + 0.70725 * g;
    const double other = protan ? 0.00401 * r - 0.00401 * g + b : -0.02234 * r + 0.02234 * g + b;
    return (struct colour){to_srgb(rg), to_srgb(rg), to_srgb(other)};
}

static void test_series_without_red_or_green(void **state)
{
    (void)state;
    for (int dark = 0; dark < 2; dark++)
        for (int protan = 0; protan < 2; protan++)
            for (unsigned i = 1; i < 5; i++) /* those that most reports use */
                for (unsigned k = 0; k < i; k++) {
                    const struct colour a = as_seen(colour_series(i, dark), protan),
                                        b = as_seen(colour_series(k, dark), protan);
                    const double far = sqrt((a.r - b.r) * (a.r - b.r) + (a.g - b.g) * (a.g - b.g) +
                                            (a.b - b.b) * (a.b - b.b));
                    if (far < 0.12)
                        fail_msg("dark %d protan %d: %u and %u: %.3f", dark, protan, i, k, far);
                }
}

/* ---- SVG ---- */

static void test_svg_numbers(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *want;
    } cases[] = {{0, "0"},          {-0.001, "0"},  {12, "12"},     {3.5, "3.5"},   {0.25, "0.25"},
                 {-7.126, "-7.13"}, {0.05, "0.05"}, {-0.5, "-0.5"}, {99.999, "100"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf b = {0};
        svg_number(&b, cases[i].v);
        assert_string_equal(b.data, cases[i].want);
        assert_true(fabs(strtod(b.data, NULL) - cases[i].v) <= 0.005 + 1e-12);
        strbuf_deinit(&b);
    }
}

/* Elements nest, attributes are quoted, and no bare `<` or `&` stands in text. */
static void assert_well_formed(const char *s)
{
    char open[32][16];
    size_t depth = 0;
    for (const char *p = s; *p;) {
        if (*p == '&') {
            const char *end = strchr(p, ';');
            assert_true(end && end - p <= 6);
        }
        if (*p != '<') {
            p++;
            continue;
        }
        const bool closes = p[1] == '/';
        const char *name = p + 1 + closes;
        const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        assert_true(n > 0 && n < 16);
        bool quoted = false;
        for (p = name + n; *p && (quoted || *p != '>'); p++) {
            if (*p == '"') quoted = !quoted;
            assert_true(*p != '<');
        }
        assert_true(*p == '>');
        if (closes) {
            assert_true(depth > 0);
            depth--;
            assert_true(strlen(open[depth]) == n && strncmp(open[depth], name, n) == 0);
        } else if (p[-1] != '/') {
            assert_true(depth < 32);
            snprintf(open[depth++], 16, "%.*s", (int)n, name);
        }
        p++;
    }
    assert_int_equal(depth, 0);
}

static size_t count(const char *s, const char *what)
{
    size_t n = 0;
    for (; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

static void test_svg_elements(void **state)
{
    (void)state;
    struct strbuf b = {0};
    struct svg s = svg_begin(&b, 100, 50.5, "id", "<title>", "a & b");
    svg_group(&s, "g");
    svg_line(&s, "ln", 0, 1, 2.5, 3);
    svg_rect(&s, "q1", (struct svg_rect){1, 2, 3, 4}, HOSTILE);
    svg_text(&s, "tk", 5, 6, HOSTILE);
    svg_text_up(&s, "lb", 5, 6, "up");
    for (unsigned i = 0; i < SVG_N_MARK; i++) svg_mark(&s, "mk", 1, 1, i, i ? "tip" : NULL);
    svg_path_begin(&s, "q2");
    svg_move(&s, 1, 2);
    svg_draw(&s, 3, 4);
    svg_cell(&s, (struct svg_rect){1, 2, 3, 4});
    svg_path_end(&s);
    svg_group_end(&s);
    svg_end(&s);
    assert_well_formed(b.data);
    assert_non_null(
        strstr(b.data, " viewBox=\"0 0 100 50.5\" role=\"img\" aria-labelledby=\"id-t id-d\""));
    assert_non_null(
        strstr(b.data, "<title id=\"id-t\">&lt;title&gt;</title><desc id=\"id-d\">a &amp; b"));
    assert_non_null(strstr(b.data, "<line class=\"ln\" x1=\"0\" y1=\"1\" x2=\"2.5\" y2=\"3\"/>"));
    assert_non_null(strstr(b.data, "d=\"M1 2L3 4M1 2h3v4h-3z\""));
    assert_null(strstr(b.data, "<script"));
    strbuf_deinit(&b);
}

/* ---- Plots ---- */

static void test_lines(void **state)
{
    (void)state;
    static const struct plot_series series[] = {
        {"full", 0, 0, 0},
        {"quest:budget=1", 1, 1, 0},
        {"quest:budget=2<&", 1, 2, 1},
        {"the ninth family", COLOUR_N_SERIES, 0, 0},
    };
    struct strbuf b = {0};
    const struct plot_axes axes = {
        .words = {"p", "title", "desc", "x", "y"},
        .x = {.form = SCALE_LOG2, .unit = SCALE_TOKENS, .lo = 1024, .hi = 8192},
        .y = {.form = SCALE_LOG10, .lo = 1e-3, .hi = 1},
        .y_zero = "0",
        .series = series,
        .n_series = 4,
    };
    struct plot p = plot_begin(&b, &axes);
    const size_t before = count(b.data, "class=\"mk");
    assert_int_equal(before, 4); /* the legend */
    assert_int_equal(count(b.data, "hollow"),
                     2); /* line and mark of the ninth, blue as the first */
    const double x[] = {1024, 2048, 4096, 8192}, y[] = {0, (double)NAN, 0.1, 1};
    plot_line(&p, 0, x, y, 4, true);
    assert_int_equal(count(b.data, "class=\"mk") - before, 3); /* the unknown one is left out */
    const double fx[] = {1024, 8192, 2048, 4096}, fy[] = {1, 1, 0.1, 0.1};
    const size_t lines = count(b.data, "<path class=\"ln");
    plot_families(&p, fx, fy);
    assert_int_equal(count(b.data, "<path class=\"ln") - lines, 1); /* one family of two */
    plot_interval(&p, 1, 2048, 0.01, 0.1);
    plot_point(&p, 2, 2048, 0.05, HOSTILE);
    plot_end(&p);
    assert_well_formed(b.data);
    assert_null(strstr(b.data, "nan"));
    assert_non_null(strstr(b.data, "quest:budget=2&lt;&amp;"));
    /* A zero lies in the strip between the end of the axis and the panel's edge. */
    assert_true(place_y(&p, 0) > scale_at(&p.y, 1e-3) && place_y(&p, 0) < p.bottom);
    strbuf_deinit(&b);
}

static void test_grids(void **state)
{
    (void)state;
    enum { N = 60 };
    static double value[N * N];
    static plot_name name[N];
    for (size_t i = 0; i < N; i++) snprintf(name[i], sizeof name[i], "n%zu", i);
    for (size_t i = 0; i < N * N; i++)
        value[i] = i % N <= i / N ? (double)(i % 7) / 6 : (double)NAN;
    struct plot_grid g = {
        .words = {"g", "title", "desc", "x", "y"},
        .n_x = 3,
        .n_y = 2,
        .value = value,
        .x_name = (const plot_name *)name,
        .y_name = (const plot_name *)name,
        .colour = {.unit = SCALE_PERCENT, .lo = 0, .hi = 1},
        .colour_label = "score",
        .cell_h = 20,
        .numbers = true,
    };
    const double few[] = {0, 0.5, 1, (double)NAN, 1.5, -1};
    struct strbuf b = {0};
    g.value = few;
    plot_grid(&b, &g);
    assert_well_formed(b.data);
    assert_int_equal(count(b.data, "<rect class=\"none\""), 1);
    assert_int_equal(count(b.data, "<title>n"), 5);
    assert_non_null(strstr(b.data, "<title>n1, n0: 50 %</title>"));
    strbuf_reset(&b);
    g.value = value;
    g.n_x = g.n_y = N;
    plot_grid(&b, &g);
    assert_well_formed(b.data);
    assert_int_equal(count(b.data, "<title>n"), 0);
    /* Cells of one colour in a row are joined, so there are fewer than cells and none is lost. */
    assert_in_range(count(b.data, "z"), N * N / 4, N * (N + 1) / 2);
    strbuf_deinit(&b);
}

static void test_long_names_are_cut(void **state)
{
    (void)state;
    char name[400], buf[4 * NAME_MAX_CHAR + 8];
    for (size_t i = 0; i + 2 < sizeof name; i += 2) memcpy(name + i, "\xc3\xa9", 3);
    const char *cut = short_name(name, buf);
    assert_true(strlen(cut) == 2 * NAME_MAX_CHAR + 3);
    assert_valid_utf8(cut, strlen(cut));
    assert_string_equal(short_name("short", buf), "short");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_html),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_numbers_for_people),
        cmocka_unit_test(test_ticks),
        cmocka_unit_test(test_rounded_ends),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_colours),
        cmocka_unit_test(test_series_without_red_or_green),
        cmocka_unit_test(test_svg_numbers),
        cmocka_unit_test(test_svg_elements),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_long_names_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
