/* prose.c: see the header. Nine patterns are enough that a text does not look like a list, and few
 * enough that it never says anything: there are no numbers, no names and no hyphens in it, so it
 * cannot hold the answer to a question of a task by chance. */
#include "eval/prose.h"

#include "eval/words.h"

#include <ctype.h>
#include <string.h>

/* %a adjective, %n noun, %v verb, %p place */
static const char *const patterns[] = {
    "the %a %n could not %v the %n",
    "a %a %n would often %v the %a %n %p",
    "%p, the %n had to %v every %a %n",
    "nobody wanted to %v the %n after the %n became %a",
    "it is %a to %v a %n when the %n is %a",
    "before they could %v the %n, the %a %n was already %p",
    "people say that a %n and a %n should never %v each other %p",
    "the %n was %a, but the %n that we hoped to %v was %a",
    "whoever plans to %v a %a %n must first %v the %n",
};

static const char *const places[] = {
    "behind the house", "near the river",       "on the way home", "in the early morning",
    "at the market",    "under the old bridge", "across the road", "during the long summer",
    "by the window",    "in the next valley",   "on the hill",     "between two meetings",
};

#define N(list) (sizeof(list) / sizeof(list)[0])

static const char *pick(struct rng *r, char kind)
{
    switch (kind) {
    case 'a': return words_adjective((uint32_t)rng_below(r, words_n_adjective()));
    case 'v': return words_verb((uint32_t)rng_below(r, words_n_verb()));
    case 'p': return places[rng_below(r, N(places))];
    default: return words_noun((uint32_t)rng_below(r, words_n_noun()), NULL);
    }
}

void prose_sentence(struct strbuf *out, struct rng *r)
{
    const size_t start = out->n;
    const char *at = patterns[rng_below(r, N(patterns))];
    while (*at) {
        const size_t plain = strcspn(at, "%");
        strbuf_add(out, at, plain);
        at += plain;
        if (*at == '%') {
            strbuf_adds(out, pick(r, at[1]));
            at += 2;
        }
    }
    strbuf_adds(out, ".");
    if (!out->failed) out->data[start] = (char)toupper((unsigned char)out->data[start]);
}

void prose_paragraph(struct strbuf *out, struct rng *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i) strbuf_adds(out, " ");
        prose_sentence(out, r);
    }
}

void prose_text(struct strbuf *out, struct rng *r, size_t bytes)
{
    const size_t start = out->n;
    while (!out->failed && out->n - start < bytes) {
        if (out->n > start) strbuf_adds(out, "\n\n");
        prose_paragraph(out, r, 4 + (uint32_t)rng_below(r, 5));
    }
}

const char *prose_noise(void)
{
    return "The rain is wet. The snow is cold. The night is dark. On we walk. Up the hill and down "
           "again.";
}
