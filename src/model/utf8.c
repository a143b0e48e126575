/* utf8.c: validation, encoding, lenient decoding, and the streaming decoder of token pieces.
 *
 * Streaming: a piece of a model may end inside a character, so bytes that may still become one are
 * held back. Invalid input is replaced as Unicode recommends and as other programs do: one U+FFFD
 * for each longest start of a character that cannot be continued.
 *
 * Invariant: `held` is always a proper prefix of a valid character, at most 3 bytes. */
#include "model/utf8.h"

#include "model/tokenizer.h"

#include <assert.h>
#include <string.h>

static const char replacement[3] = {'\xef', '\xbf', '\xbd'};

/* The length of a valid character by its lead byte; 0 for bytes that never lead. */
static size_t strict_lead_bytes(uint8_t b)
{
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;
    return b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
}

/* Whether `b` may be byte `i` >= 1 of a character that starts with `lead`. Only the second byte is
 * special: it excludes overlong forms, surrogates and code points above U+10FFFF. */
static bool may_follow(uint8_t lead, size_t i, uint8_t b)
{
    if ((b & 0xc0) != 0x80) return false;
    if (i > 1) return true;
    switch (lead) {
    case 0xe0: return b >= 0xa0;
    case 0xed: return b < 0xa0;
    case 0xf0: return b >= 0x90;
    case 0xf4: return b < 0x90;
    default: return true;
    }
}

/* The number of bytes of the longest start of a valid character at `s` (0: none); `*out_need` is
 * the length of the whole character. */
static size_t char_start(const uint8_t *s, size_t n, size_t *out_need)
{
    *out_need = n ? strict_lead_bytes(s[0]) : 0;
    if (*out_need == 0) return 0;
    size_t i = 1;
    while (i < *out_need && i < n && may_follow(s[0], i, s[i])) i++;
    return i;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    const uint8_t *const u = (const uint8_t *)s;
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= sizeof w) { /* ASCII, eight bytes at a time */
            memcpy(&w, u + i, sizeof w);
            if ((w & 0x8080808080808080u) == 0) {
                i += sizeof w;
                continue;
            }
        }
        size_t need;
        if (char_start(u + i, n - i, &need) < need || need == 0) return i;
        i += need;
    }
    return n;
}

size_t utf8_put(char out[4], uint32_t cp)
{
    assert(cp < 0x200000);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    const size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(lead[n - 2] | cp);
    return n;
}

size_t utf8_get_loose(const char *s, size_t n, uint32_t *out_cp)
{
    const uint8_t *const u = (const uint8_t *)s;
    if (n == 0 || (u[0] >= 0x80 && u[0] < 0xc0) || u[0] >= 0xf8) return 0;
    const size_t need = utf8_lead_bytes(s[0]);
    if (need > n) return 0;
    uint32_t cp = need == 1 ? u[0] : u[0] & (0x7fu >> need);
    for (size_t i = 1; i < need; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        cp = cp << 6 | (u[i] & 0x3fu);
    }
    *out_cp = cp;
    return need;
}

static size_t put_replacement(char *out)
{
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

/* Takes one byte, which completes, extends or breaks the held start. */
static size_t push_byte(struct utf8_stream *s, char c, char *out)
{
    size_t done = 0, need;
    s->held[s->n_held++] = c;
    size_t got = char_start((const uint8_t *)s->held, s->n_held, &need);
    if (got < s->n_held &&
        s->n_held > 1) { /* `c` breaks the start before it, and may be a lead byte itself */
        done = put_replacement(out);
        s->held[0] = c;
        s->n_held = 1;
        got = char_start((const uint8_t *)s->held, 1, &need);
    }
    if (got == 0) {
        s->n_held = 0;
        return done + put_replacement(out + done);
    }
    if (got < need) return done;
    memcpy(out + done, s->held, got);
    s->n_held = 0;
    return done + got;
}

size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, char *out)
{
    assert(s->n_held < sizeof s->held);
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        const size_t valid = s->n_held ? 0 : utf8_valid_prefix(bytes + i, n - i);
        memcpy(out + done, bytes + i, valid);
        done += valid;
        i += valid;
        if (i < n) done += push_byte(s, bytes[i++], out + done);
    }
    assert(done <= 3 * (n + sizeof s->held));
    return done;
}

size_t utf8_stream_flush(struct utf8_stream *s, char *out)
{
    const size_t done = s->n_held ? put_replacement(out) : 0;
    s->n_held = 0;
    return done;
}
