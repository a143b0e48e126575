/* Documents to texts, part by part: what bytes are, encodings, breaks and marks, HTML, packed
 * files. DOCX, ODT, EPUB and PDF are tested through the program (tests/cli/test_text.py). */
#include "text/extract.h"

#include "text/charset.h"
#include "text/file_type.h"
#include "text/flow.h"
#include "text/html.h"
#include "text/limits.h"
#include "text/subprocess.h"
#include "text/unpack.h"

#include "must.h"

#include <stdio.h>
#include <string.h>

#define BYTES(s) (s), sizeof(s) - 1

/* What `bytes` become; on an error "error: " and the message. */
static const char *text_of(const char *bytes, size_t n, const char *name)
{
    static char result[4096];
    struct strbuf in = {0}, out = {0};
    sac_error err = {0};
    strbuf_add(&in, bytes, n);
    if (extract_bytes(&out, name, &in, NULL, &err) == SAC_OK)
        snprintf(result, sizeof result, "%s", out.data);
    else
        snprintf(result, sizeof result, "error: %s", err.msg);
    strbuf_deinit(&in);
    strbuf_deinit(&out);
    return result;
}

#define assert_text(bytes, want) assert_string_equal(text_of(BYTES(bytes), "x"), want)

static void a_plain_text_goes_through_unchanged(void **state)
{
    (void)state;
    assert_text("a\r\n b\t\xc3\xa4 \f c\n\n", "a\r\n b\t\xc3\xa4 \f c\n\n");
    assert_text("BMW and MZ are names, and BZ2 is a format\n",
                "BMW and MZ are names, and BZ2 is a format\n");
}

static void encodings_become_utf8(void **state)
{
    (void)state;
    assert_text("\xef\xbb\xbfhi", "hi");
    assert_text("\xff\xfeh\0\xe9\0", "h\xc3\xa9");
    assert_text("\xfe\xff\0h\0\xe9", "h\xc3\xa9");
    assert_text("\xff\xfe\0\0h\0\0\0", "h");
    assert_text("h\0i\0 \0y\0o\0u\0", "hi you");
    assert_text("\0h\0i\0 \0y\0o\0u", "hi you");
    assert_text(
        "Stra\xdf"
        "e, sch\xf6n, \xfc"
        "ber, \x84Gr\xfc\xdf"
        "e\x93, und f\xfcr M\xe4nner. K\xf6nnen Sie h\xf6ren? Das w\xe4re nat\xfcrlich gut.",
        "Stra\xc3\x9f"
        "e, sch\xc3\xb6n, \xc3\xbc"
        "ber, \xe2\x80\x9eGr\xc3\xbc\xc3\x9f"
        "e\xe2\x80\x9c, und f\xc3\xbcr M\xc3\xa4nner. K\xc3\xb6nnen Sie h\xc3\xb6ren? "
        "Das w\xc3\xa4re nat\xc3\xbcrlich gut.");
    /* Looks like a Mac's to uchardet, and is one only with a Mac's ends of lines. */
    assert_text("Zo\xeb owns the key.\n", "Zo\xc3\xab owns the key.\n");
    assert_text("Zo\xeb owns the key.", "Zo\xc3\xab owns the key.");
    assert_text("Zo\xeb owns the key.\r", "Zo\xc5\xbd owns the key.\r");
}

static void a_stray_byte_in_much_utf8_is_replaced(void **state)
{
    (void)state;
    struct charset_found found;
    sac_error err = {0};
    char text[402];
    for (size_t i = 0; i < 400; i += 2) memcpy(text + i, "\xc3\xa4", 2);
    text[400] = '\xff';
    must(charset_find(&found, text, 401, NULL, &err), &err);
    assert_string_equal(found.name, "UTF-8");
    assert_int_equal(found.n_replace, 1);
    assert_string_equal(text_of(text, 401, "x") + 400, "\xef\xbf\xbd");
}

static void what_is_no_text_is_refused_by_its_kind(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *told;
    } cases[] = {
        {BYTES("\x89PNG\r\n\x1a\n\0\0"), "a PNG image"},
        {BYTES("\x7f"
               "ELF\2\1\1\0"),
         "an ELF program"},
        {BYTES("MZ\x90\0\3\0"), "a Windows program"},
        {BYTES("GIF89a\1\0\1\0"), "a GIF image"},
        {BYTES("{\\rtf1 text}"), "an RTF document"},
        {BYTES("SQLite format 3\0"), "an SQLite database"},
        {BYTES("a\0b"), "zero byte"},
        {BYTES("\1\2\3\4\5\6\7"), "control characters"},
        {BYTES(""), "x is empty"},
        {BYTES(" \r\n\t\f"), "x is empty"},
        {BYTES("PK\5\6\0\0"), "an empty ZIP"},
        {BYTES("\x1f\x8b\x08\0 broken"), "packed with gzip"},
        {BYTES("<html><body><script>x</script></body></html>"), "no text in it"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *told = text_of(cases[i].bytes, cases[i].n, "x");
        if (strncmp(told, "error: x", 8) != 0 || !strstr(told, cases[i].told))
            fail_msg("case %zu, %s: %s", i, cases[i].told, told);
    }
}

static void html_is_what_a_browser_shows(void **state)
{
    (void)state;
    assert_text(
        "<!DOCTYPE html><title>T</title><style>s</style><h2>H</h2>\n<p>a <b>b</b>\n c&nbsp;d "
        "&lt;<p>e<br>f<script>x</script><img src=x alt=pic>",
        "T\n\n## H\n\na b c d <\n\ne\nf[image: pic]");
    assert_text("<html><ul><li>one<li><p>two</p><li></ul><ol><li>x<li>y</ol>end",
                "- one\n- two\n\n1. x\n2. y\n\nend");
    assert_text("<html><pre>  a\n\n   b\n</pre>c", "  a\n\n   b\n\nc");
    assert_text("<html><table><tr><th>A<th>B</tr><tr><td>1<td><b>2</b></tr></table>",
                "A | B\n1 | 2");
    assert_text("<html><p>seen<p hidden>no<p style='color:red; Display : none'>no<p>too",
                "seen\n\ntoo");
    assert_text("<html><table><tr><td><p>left<p>more<td><h1>right</h1></table>",
                "left\n\nmore\n\n# right");
}

static void html_says_its_encoding(void **state)
{
    (void)state;
    assert_text("<html><meta charset='iso-8859-7'><p>\xe1\xe2\xe3", "\xce\xb1\xce\xb2\xce\xb3");
    assert_text("<html><meta charset='iso-8859-7'><p>\xce\xb1", "\xce\xb1"); /* it is UTF-8 */
}

static void a_name_makes_html_of_a_fragment(void **state)
{
    (void)state;
    assert_string_equal(text_of(BYTES("<p>a<p>b"), "x.HTML"), "a\n\nb");
    assert_string_equal(text_of(BYTES("<p>a<p>b"), "x.txt"), "<p>a<p>b");
    assert_string_equal(text_of(BYTES("no html"), "x.html"), "no html");
}

static void deep_html_is_refused_not_cut(void **state)
{
    struct strbuf deep = {0};
    struct flow f = {0};
    sac_error err = {0};
    (void)state;
    strbuf_adds(&deep, "<html>");
    for (int i = 0; i < 100000; i++) strbuf_adds(&deep, "<div>");
    strbuf_adds(&deep, "text");
    const sac_status status = html_text(&f, deep.data, deep.n, &err);
    assert_int_equal(status, SAC_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "nested too deep"));
    strbuf_deinit(&f.out);
    strbuf_deinit(&deep);
}

static void breaks_stand_between_texts_only(void **state)
{
    struct flow f = {0};
    (void)state;
    flow_block(&f);
    flow_text(&f, "  a  ", 5);
    flow_line(&f);
    flow_block(&f);
    flow_mark(&f, "# ");
    flow_mark(&f, "- ");
    flow_block(&f); /* of a paragraph in the item */
    flow_text(&f, "b", 1);
    flow_page(&f);
    flow_text(&f, "c", 1);
    flow_block(&f);
    flow_mark(&f, "# "); /* of an empty heading */
    flow_page(&f);
    assert_int_equal(flow_finish(&f, NULL), SAC_OK);
    assert_string_equal(f.out.data, "a\n\n- b\n\fc");
    strbuf_deinit(&f.out);
}

static void cells_keep_to_their_line(void **state)
{
    struct flow f = {0};
    (void)state;
    flow_cell_begin(&f, true);
    flow_text(&f, "a", 1);
    flow_block(&f);
    flow_text(&f, "b", 1);
    flow_cell_end(&f);
    flow_cell_begin(&f, false);
    flow_heading(&f, 1);
    flow_page(&f);
    flow_text(&f, "c", 1);
    flow_cell_end(&f);
    flow_line(&f);
    flow_text(&f, "d", 1);
    assert_int_equal(flow_finish(&f, NULL), SAC_OK);
    assert_string_equal(f.out.data, "a b | c\nd");
    strbuf_deinit(&f.out);
}

static void a_child_is_limited(void **state)
{
    static const char *const sleeper[] = {"sleep", "30", NULL}, *const cat[] = {"cat", NULL};
    static const char *const none[] = {"no-such-program-here", NULL};
    struct subprocess_limits limits = {1, (size_t)1 << 30, 4};
    struct subprocess c = {0};
    sac_error err = {0};
    (void)state;
    assert_int_equal(subprocess_run(&c, sleeper, "", 0, &limits, &err), SAC_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "more than 1 s"));
    assert_int_equal(subprocess_run(&c, none, "", 0, &limits, &err), SAC_ERR_NOT_FOUND);
    assert_int_equal(subprocess_run(&c, cat, "12345", 5, &limits, &err), SAC_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "of text"));
    strbuf_reset(&c.out);
    must(subprocess_run(&c, cat, "1234", 4, &limits, &err), &err);
    assert_string_equal(c.out.data, "1234");
    assert_int_equal(c.code, 0);
    subprocess_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_text_goes_through_unchanged),
        cmocka_unit_test(encodings_become_utf8),
        cmocka_unit_test(a_stray_byte_in_much_utf8_is_replaced),
        cmocka_unit_test(what_is_no_text_is_refused_by_its_kind),
        cmocka_unit_test(html_is_what_a_browser_shows),
        cmocka_unit_test(html_says_its_encoding),
        cmocka_unit_test(a_name_makes_html_of_a_fragment),
        cmocka_unit_test(deep_html_is_refused_not_cut),
        cmocka_unit_test(breaks_stand_between_texts_only),
        cmocka_unit_test(cells_keep_to_their_line),
        cmocka_unit_test(a_child_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
