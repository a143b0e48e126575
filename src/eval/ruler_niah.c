/* ruler_niah.c: RULER's eight retrieval tasks: K keys with V values each are hidden, Q keys are
 * asked for, all their values are expected.
 *
 * The haystack is noise (one line of trivial sentences, repeated), an essay (needles stand before
 * sentences, at depths drawn from 40 evenly spaced ones), or needles with other keys: then the
 * whole text is lookalikes. Keys are distinct within a sample, those of lookalikes included. */
#include "eval/ruler_task.h"

#include "base/mem.h"
#include "eval/prose.h"
#include "eval/words.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define N_DEPTH    40u
#define NEEDLE_MAX 16u
#define LINE       "One special magic %s for %s is: %s."

struct niah {
    const struct ruler_draw *draw;
    struct rng rng;
    struct strlist key, value; /* value [n_key * n_value], by key */
    struct strlist line;       /* the needles, in random order */
};

static const char *kind_name(enum ruler_kind kind, bool plural)
{
    switch (kind) {
    case RULER_WORD: return plural ? "words" : "word";
    case RULER_NUMBER: return plural ? "numbers" : "number";
    case RULER_UUID: break;
    }
    return plural ? "uuids" : "uuid";
}

static void add_drawn(struct strlist *list, struct rng *r, enum ruler_kind kind)
{
    if (kind == RULER_WORD) {
        const char *a = words_adjective((uint32_t)rng_below(r, words_n_adjective()));
        strlist_addf(list, "%s-%s", a, words_noun((uint32_t)rng_below(r, words_n_noun()), NULL));
    } else if (kind == RULER_NUMBER) {
        strlist_addf(list, "%u", 1000000u + (unsigned)rng_below(r, 9000000));
    } else {
        const uint64_t high = (rng_next(r) & ~UINT64_C(0xf000)) | 0x4000; /* version 4 */
        const uint64_t low = (rng_next(r) & ~(UINT64_C(3) << 62)) | UINT64_C(1) << 63; /* variant */
        strlist_addf(list, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32),
                     (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xffff),
                     (unsigned)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
    }
}

/* Adds a key or value that the list does not contain yet. */
static void add_distinct(struct strlist *list, struct rng *r, enum ruler_kind kind)
{
    const size_t n = list->n;
    while (!list->failed && list->n == n) {
        struct strlist one = {0};
        add_drawn(&one, r, kind);
        if (one.n && !strlist_has(list, one.item[0])) strlist_add(list, one.item[0]);
        list->failed |= one.failed;
        strlist_deinit(&one);
    }
}

/* Draws keys and values, and arranges the needles in the order of the text. */
static void draw_needles(struct niah *n)
{
    const struct ruler_spec *s = n->draw->spec;
    const uint32_t n_needle = s->n_key * s->n_value;
    uint32_t order[NEEDLE_MAX];
    assert(n_needle <= NEEDLE_MAX && s->n_query <= s->n_key);
    for (uint32_t k = 0; k < s->n_key; k++) {
        add_distinct(&n->key, &n->rng, s->key);
        for (uint32_t v = 0; v < s->n_value; v++) add_distinct(&n->value, &n->rng, s->value);
    }
    for (uint32_t i = 0; i < n_needle; i++) order[i] = i;
    rng_shuffle(&n->rng, order, n_needle);
    for (uint32_t i = 0; i < n_needle && !n->key.failed && !n->value.failed; i++)
        strlist_addf(&n->line, LINE, kind_name(s->value, false), n->key.item[order[i] / s->n_value],
                     n->value.item[order[i]]);
}

/* ---- The text ---- */

static sac_status hide_in_essay(struct strbuf *out, struct niah *n, uint32_t n_word, sac_error *err)
{
    struct strbuf body = {0};
    struct insertion in[NEEDLE_MAX];
    uint32_t depth[NEEDLE_MAX];
    size_t *start = NULL, n_start = 0;
    haystack_words(n->draw->args->haystack, &body, n_word);
    sac_status status = body.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a haystack")
                                    : haystack_sentences(&start, &n_start, body.data, body.n, err);
    if (status == SAC_OK) {
        rng_sample_sorted(&n->rng, depth, (uint32_t)n->line.n, N_DEPTH);
        for (size_t i = 0; i < n->line.n; i++) {
            const size_t sentence = n_start * depth[i] / (N_DEPTH - 1);
            in[i] =
                (struct insertion){sentence < n_start ? start[sentence] : body.n, n->line.item[i]};
        }
        haystack_insert(out, body.data, body.n, in, n->line.n);
    }
    mem_free(start);
    strbuf_deinit(&body);
    return status;
}

/* A needle with another key. */
static void add_lookalike(struct strbuf *out, struct niah *n)
{
    const struct ruler_spec *s = n->draw->spec;
    struct strlist pair = {0};
    do {
        strlist_deinit(&pair);
        add_drawn(&pair, &n->rng, s->key);
    } while (!pair.failed && strlist_has(&n->key, pair.item[0]));
    add_drawn(&pair, &n->rng, s->value);
    out->failed |= pair.failed;
    if (!pair.failed)
        strbuf_addf(out, LINE "\n", kind_name(s->value, false), pair.item[0], pair.item[1]);
    strlist_deinit(&pair);
}

/* `size` lines of noise or of lookalikes, with the needles among them. */
static void hide_in_lines(struct strbuf *out, struct niah *n, uint32_t size)
{
    const struct ruler_spec *s = n->draw->spec;
    const uint32_t n_needle = (uint32_t)n->line.n;
    uint32_t at[NEEDLE_MAX], next = 0;
    rng_sample_sorted(&n->rng, at, n_needle, size + n_needle);
    for (uint32_t i = 0; i < size + n_needle; i++) {
        if (next < n_needle && at[next] == i) {
            strbuf_addf(out, "%s\n", n->line.item[next++]);
        } else if (s->haystack == RULER_NOISE) {
            strbuf_addf(out, "%s\n", prose_noise());
        } else {
            add_lookalike(out, n);
        }
    }
}

/* ---- The question ---- */

/* "a", "a and b", "a, b, and c". */
static void add_query(struct strbuf *out, const struct niah *n, const uint32_t *asked)
{
    const uint32_t n_query = n->draw->spec->n_query;
    for (uint32_t i = 0; i < n_query; i++) {
        const char *joint = i == 0             ? ""
                            : n_query == 2     ? " and "
                            : i + 1 == n_query ? ", and "
                                               : ", ";
        strbuf_addf(out, "%s%s", joint, n->key.item[asked[i]]);
    }
}

static void ask(struct ruler_text *out, struct niah *n)
{
    const struct ruler_spec *s = n->draw->spec;
    const bool many = s->n_query * s->n_value > 1;
    uint32_t asked[NEEDLE_MAX];
    rng_sample(&n->rng, asked, s->n_query, s->n_key);
    strbuf_adds(&out->user, "\n");
    out->question_at = out->user.n;
    strbuf_addf(&out->user, "What %s special magic %s for ", many ? "are all the" : "is the",
                kind_name(s->value, many));
    add_query(&out->user, n, asked);
    strbuf_adds(&out->user, " mentioned in the text?");
    strbuf_addf(&out->prefix, "The special magic %s for ", kind_name(s->value, many));
    add_query(&out->prefix, n, asked);
    strbuf_addf(&out->prefix, " mentioned in the text %s", many ? "are" : "is");
    for (uint32_t i = 0; i < s->n_query; i++)
        for (uint32_t v = 0; v < s->n_value; v++)
            strlist_add(&out->expected, n->value.item[asked[i] * s->n_value + v]);
}

sac_status ruler_niah_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct ruler_draw *d = arg;
    struct niah n = {.draw = d, .rng = ruler_rng(d)};
    struct ruler_text text = {0};
    sac_status status = SAC_OK;
    draw_needles(&n);
    if (n.key.failed || n.value.failed || n.line.failed) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for needles");
        goto fail;
    }
    const char *values = kind_name(d->spec->value, true);
    strbuf_addf(&text.user,
                "Some special magic %s are hidden in the following text. Memorise them, you will "
                "be asked for them afterwards.\n\n",
                values);
    if (d->spec->haystack == RULER_ESSAY)
        TRY_FAIL(hide_in_essay(&text.user, &n, size, err));
    else
        hide_in_lines(&text.user, &n, size);
    ask(&text, &n);
    status = ruler_finish(d, out, &text, err);
fail:
    strlist_deinit(&n.key);
    strlist_deinit(&n.value);
    strlist_deinit(&n.line);
    ruler_text_deinit(&text);
    return status;
}
