/* charset.c: see the header. A text that is UTF-8 is passed through unchanged, byte for byte. A
 * text that is almost entirely UTF-8 (a log with a torn line) is treated as UTF-8: each stray byte
 * becomes U+FFFD, and the caller reports how many. */
#include "text/charset.h"

#include "eval/markup.h"
#include "text/limits.h"

#include <errno.h>
#include <iconv.h>
#include <stdio.h>
#include <string.h>
#include <uchardet.h>

#define GUESS_BYTES ((size_t)1 << 20) /* prefix from which the encoding is guessed */
#define STRAY_SHARE 50u /* tolerated: one stray byte per so many non-ASCII characters */

/* Counts non-ASCII characters, and bytes that are not UTF-8; false at a zero byte. */
static bool count_utf8(const char *s, size_t n, size_t *out_wide, size_t *out_stray)
{
    *out_wide = *out_stray = 0;
    for (size_t i = 0; i < n;) {
        const size_t len = s[i] == 0 ? 0 : markup_utf8(s + i, n - i);
        if (s[i] == 0) return false;
        *out_wide += len > 1;
        *out_stray += len == 0;
        i += len ? len : 1;
    }
    return true;
}

static bool by_mark(struct charset_found *out, const char *s, size_t n)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *name;
    } marks[] = {{"\xef\xbb\xbf", 3, "UTF-8"},
                 {"\xff\xfe\0\0", 4, "UTF-32LE"},
                 {"\0\0\xfe\xff", 4, "UTF-32BE"},
                 {"\xff\xfe", 2, "UTF-16LE"},
                 {"\xfe\xff", 2, "UTF-16BE"}};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (n < marks[i].n || memcmp(s, marks[i].bytes, marks[i].n) != 0) continue;
        snprintf(out->name, sizeof out->name, "%s", marks[i].name);
        out->skip = marks[i].n;
        return true;
    }
    return false;
}

/* Western text in UTF-16 has a zero byte in most pairs, always in the same position. */
static bool by_zeros(struct charset_found *out, const char *s, size_t n)
{
    size_t at[2] = {0, 0};
    if (n < 4 || n % 2) return false;
    for (size_t i = 0; i < n; i++) at[i & 1] += s[i] == 0;
    const bool little = at[1] > n / 4 && at[0] == 0, big = at[0] > n / 4 && at[1] == 0;
    if (little || big) snprintf(out->name, sizeof out->name, "UTF-16%s", little ? "LE" : "BE");
    return little || big;
}

/* Whether more than one byte in a hundred is a control character that texts do not contain. */
static bool is_binary(const char *s, size_t n)
{
    size_t n_control = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        n_control += c < 0x20 && !(c >= '\b' && c <= '\r') && c != 0x1b;
    }
    return n_control > n / 100;
}

/* Classic Mac OS ends lines with CR alone. If a text does not, a guess of a Mac encoding is wrong:
 * the text has a few western letters in a language without them ("Zo\xeb"). */
static bool is_old_mac(const char *s, size_t n)
{
    return memchr(s, '\r', n) && !memchr(s, '\n', n);
}

static bool is_known(const char *name)
{
    const iconv_t cd = iconv_open("UTF-8", name);
    if (cd == (iconv_t)-1) return false;
    iconv_close(cd);
    return true;
}

static bool by_guess(struct charset_found *out, const char *s, size_t n)
{
    uchardet_t guess = uchardet_new();
    if (!guess) return false;
    const char *name = "";
    if (uchardet_handle_data(guess, s, n < GUESS_BYTES ? n : GUESS_BYTES) == 0) {
        uchardet_data_end(guess);
        name = uchardet_get_charset(guess);
    }
    const bool is_western = strcmp(name, "MAC-CENTRALEUROPE") == 0 && !is_old_mac(s, n);
    snprintf(out->name, sizeof out->name, "%s", is_western ? "WINDOWS-1252" : name);
    uchardet_delete(guess);
    out->guessed = true;
    return out->name[0] && is_known(out->name);
}

static void set_utf8(struct charset_found *out)
{
    snprintf(out->name, sizeof out->name, "UTF-8");
}

sac_status charset_find(struct charset_found *out, const char *s, size_t n, const char *declared,
                        sac_error *err)
{
    size_t wide = 0, stray = 0;
    *out = (struct charset_found){0};
    const bool marked = by_mark(out, s, n);
    if (marked && strcmp(out->name, "UTF-8") != 0) return SAC_OK;
    const bool no_zero = count_utf8(s + out->skip, n - out->skip, &wide, &stray);
    if (!no_zero && by_zeros(out, s, n)) return SAC_OK;
    if (!no_zero) return error_set(err, SAC_ERR_FORMAT, "it holds a zero byte, so it is no text");
    if (is_binary(s, n))
        return error_set(err, SAC_ERR_FORMAT, "it is full of control characters, so it is no text");
    set_utf8(out);
    if (stray == 0) return SAC_OK;
    if (marked || stray < wide / STRAY_SHARE) {
        out->n_replace = stray;
        return SAC_OK;
    }
    if (declared && is_known(declared)) {
        snprintf(out->name, sizeof out->name, "%s", declared);
        return SAC_OK;
    }
    if (by_guess(out, s, n)) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT, "its encoding is not known (not UTF-8)");
}

static void add_replaced(struct strbuf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t len = markup_utf8(s + i, n - i);
        if (len)
            strbuf_add(out, s + i, len);
        else
            strbuf_adds(out, "\xef\xbf\xbd");
        i += len ? len : 1;
    }
}

static sac_status convert(struct strbuf *out, iconv_t cd, const char *s, size_t n,
                          const struct charset_found *from, sac_error *err)
{
    char *in = (char *)(uintptr_t)s; /* iconv's parameter is not const, but it only reads */
    size_t n_in = n;
    while (n_in > 0) {
        char chunk[16384], *to = chunk;
        size_t room = sizeof chunk;
        const size_t done = iconv(cd, &in, &n_in, &to, &room);
        strbuf_add(out, chunk, sizeof chunk - room);
        if (out->n > LIMITS_TEXT_BYTES)
            return error_set(err, SAC_ERR_FORMAT, "more than %zu MiB of text",
                             LIMITS_TEXT_BYTES >> 20);
        if (done == (size_t)-1 && errno != E2BIG)
            return error_set(err, SAC_ERR_FORMAT, "byte %zu is no %s%s", n - n_in, from->name,
                             from->guessed ? ", which its encoding was guessed to be" : "");
    }
    return SAC_OK;
}

sac_status charset_convert(struct strbuf *out, const char *s, size_t n,
                           const struct charset_found *from, sac_error *err)
{
    sac_status status = SAC_OK;
    const size_t before = out->n;
    s += from->skip;
    n -= from->skip;
    if (strcmp(from->name, "UTF-8") == 0) {
        add_replaced(out, s, n);
    } else {
        const iconv_t cd = iconv_open("UTF-8", from->name);
        if (cd == (iconv_t)-1)
            return error_set(err, SAC_ERR_FORMAT, "iconv does not know %s", from->name);
        status = convert(out, cd, s, n, from, err);
        iconv_close(cd);
    }
    strbuf_add(out, "", 0);
    if (out->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a document");
    if (status == SAC_OK && memchr(out->data + before, 0, out->n - before))
        return error_set(err, SAC_ERR_FORMAT, "it holds a zero character");
    return status;
}
