/* haystack.c: see the header. The unit of size is a word: it is a token or a little more, so sizes
 * fit a number of tokens closely, and no tokenizer is needed here. */
#include "eval/haystack.h"

#include "base/mem.h"
#include "eval/prose.h"
#include "eval/rng.h"

#include <assert.h>
#include <string.h>

#define SPACE       " \t\n\r\v\f"
#define PROSE_BYTES (256u << 10)

static bool is_space(char c)
{
    return c != 0 && strchr(SPACE, c) != NULL;
}

static size_t find_words(size_t *end, const char *text, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 1; i <= n_bytes; i++)
        if (!is_space(text[i - 1]) && (i == n_bytes || is_space(text[i]))) {
            if (end) end[n] = i;
            n++;
        }
    return n;
}

sac_status haystack_init(struct haystack *h, const char *text, size_t n_bytes, sac_error *err)
{
    const size_t n_word = find_words(NULL, text, n_bytes);
    *h = (struct haystack){.n_bytes = n_bytes, .n_word = n_word};
    if (n_word == 0) return error_set(err, SAC_ERR_FORMAT, "a haystack without a word");
    h->hash = rng_hash(text, n_bytes);
    h->text = mem_strndup(text, n_bytes);
    h->word_end = mem_alloc(n_word * sizeof *h->word_end);
    if (!h->text || !h->word_end) {
        haystack_deinit(h);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a haystack of %zu bytes", n_bytes);
    }
    find_words(h->word_end, text, n_bytes);
    return SAC_OK;
}

sac_status haystack_init_prose(struct haystack *h, uint64_t seed, sac_error *err)
{
    struct rng r = rng_stream("prose", PROSE_BYTES, seed, 0);
    struct strbuf text = {0};
    prose_text(&text, &r, PROSE_BYTES);
    const sac_status status = text.failed
                                  ? error_set(err, SAC_ERR_MEMORY, "out of memory for a haystack")
                                  : haystack_init(h, text.data, text.n, err);
    strbuf_deinit(&text);
    return status;
}

void haystack_deinit(struct haystack *h)
{
    mem_free(h->text);
    mem_free(h->word_end);
    *h = (struct haystack){0};
}

void haystack_words(const struct haystack *h, struct strbuf *out, size_t n)
{
    assert(h->n_word > 0);
    for (; n > h->n_word; n -= h->n_word) {
        strbuf_add(out, h->text, h->word_end[h->n_word - 1]);
        strbuf_adds(out, "\n\n");
    }
    if (n) strbuf_add(out, h->text, h->word_end[n - 1]);
}

static size_t find_sentences(size_t *start, const char *text, size_t n_bytes)
{
    size_t n = 0;
    bool ended = true; /* a sentence begins at the start of the text */
    for (size_t i = 0; i < n_bytes; i++) {
        if (is_space(text[i])) continue;
        if (ended && (i == 0 || is_space(text[i - 1]))) {
            if (start) start[n] = i;
            n++;
        }
        const bool closes = strchr("\"')]", text[i]) != NULL && text[i];
        ended = (text[i] && strchr(".!?", text[i])) || (closes && ended && i > 0);
    }
    return n;
}

sac_status haystack_sentences(size_t **out, size_t *out_n, const char *text, size_t n_bytes,
                              sac_error *err)
{
    const size_t n = find_sentences(NULL, text, n_bytes);
    size_t *start = mem_alloc(n * sizeof *start);
    if (!start) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu sentences", n);
    find_sentences(start, text, n_bytes);
    *out = start;
    *out_n = n;
    return SAC_OK;
}

void haystack_insert(struct strbuf *out, const char *body, size_t n_bytes,
                     const struct insertion *in, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        assert(in[i].at >= done && in[i].at <= n_bytes);
        strbuf_add(out, body + done, in[i].at - done);
        done = in[i].at;
        if (!out->failed && out->n > 0 && !is_space(out->data[out->n - 1])) strbuf_adds(out, " ");
        strbuf_adds(out, in[i].text);
        if (done < n_bytes && !is_space(body[done])) strbuf_adds(out, " ");
    }
    strbuf_add(out, body + done, n_bytes - done);
}
