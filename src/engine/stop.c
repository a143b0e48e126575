/* stop.c: see the header.
 *
 * Invariant: between calls, `held` minus the text that stop_push has returned as certain is a
 * proper prefix of some stop string, so it is shorter than the longest one: the buffer's size is
 * known at init, and no push allocates.
 *
 * Text that passes (stop.h) may contain whole stop strings, and the beginning of one that ends
 * later.
 *
 * The search is plain, because a few dozen bytes are held. If several stop strings end in one push,
 * the one that begins first wins, and among those the first in the list. */
#include "engine/stop.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

#define REPLACEMENT_BYTES 3 /* of U+FFFD, which stands for one invalid byte */

sac_status stop_init(struct stop *s, const char *const *text, size_t n, size_t push_max,
                     sac_error *err)
{
    size_t longest = 0;
    *s = (struct stop){.text = mem_calloc(n, sizeof *s->text)};
    if (!s->text) goto fail;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = strlen(text[i]);
        if (bytes == 0) {
            stop_deinit(s);
            return error_set(err, SAC_ERR_ARG, "stop string %zu is empty", i);
        }
        s->text[i] = (struct stop_text){mem_strndup(text[i], bytes), bytes};
        if (!s->text[i].s) goto fail;
        s->n_text++;
        if (bytes > longest) longest = bytes;
    }
    /* Room for one push and, before any of it is consumed, the flush of the last token. */
    s->room = longest + REPLACEMENT_BYTES * (push_max + 2 * sizeof s->utf8.held);
    s->held = mem_alloc(s->room);
    if (s->held) return SAC_OK;
fail:
    stop_deinit(s);
    return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu stop strings", n);
}

void stop_deinit(struct stop *s)
{
    for (size_t i = 0; i < s->n_text; i++) mem_free(s->text[i].s);
    mem_free(s->text);
    mem_free(s->held);
    *s = (struct stop){0};
}

/* Whether a stop string begins at held[at]. A complete one is stored in *out_match; also true for a
 * beginning that extends to the end of `held`. */
static bool begins_stop(const struct stop *s, size_t at, const char **out_match)
{
    const size_t left = s->n_held - at;
    bool may_become = false;
    for (size_t i = 0; i < s->n_text; i++) {
        const size_t n = s->text[i].n < left ? s->text[i].n : left;
        if (memcmp(s->held + at, s->text[i].s, n) != 0) continue;
        if (n < s->text[i].n) {
            may_become = true;
        } else if (at + n > s->n_passed) {
            *out_match = s->text[i].s;
            return true;
        }
    }
    return may_become;
}

/* Finds the first complete stop string, or else the first beginning of one. A complete one counts
 * even if a beginning precedes it: waiting for the latter would let tokens after the stop pass. */
static size_t certain_bytes(const struct stop *s, const char **out_match)
{
    size_t first_beginning = s->n_held;
    for (size_t at = 0; at < s->n_held; at++) {
        if (!begins_stop(s, at, out_match)) continue;
        if (*out_match) return at;
        if (at < first_beginning) first_beginning = at;
    }
    return first_beginning;
}

size_t stop_push(struct stop *s, const char *bytes, size_t n, const char **out_match)
{
    assert(s->n_held + REPLACEMENT_BYTES * (n + sizeof s->utf8.held) <= s->room);
    s->n_held += utf8_stream_push(&s->utf8, bytes, n, s->held + s->n_held);
    if (s->passes) s->n_passed = s->n_held;
    *out_match = NULL;
    return certain_bytes(s, out_match);
}

size_t stop_flush(struct stop *s)
{
    assert(s->n_held + REPLACEMENT_BYTES * sizeof s->utf8.held <= s->room);
    s->n_held += utf8_stream_flush(&s->utf8, s->held + s->n_held);
    return s->n_held;
}

void stop_consume(struct stop *s, size_t n)
{
    assert(n <= s->n_held);
    memmove(s->held, s->held + n, s->n_held - n);
    s->n_held -= n;
    s->n_passed -= n < s->n_passed ? n : s->n_passed;
}
