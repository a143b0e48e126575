/* context.c: helpers that composers share. */
#include "methods/context.h"

#include <stdlib.h>

void context_mark(const struct context_view *v, struct context_plan *p, uint32_t layer,
                  uint32_t begin, uint32_t end)
{
    uint32_t *word = context_refresh(v, p, layer);
    for (uint32_t t = begin; t < end; t++) word[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
}

uint32_t context_tokens(const struct context_view *v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_doc; i++) n += (v->doc[i].end - v->doc[i].begin) * PAGE_TOK;
    return n;
}

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Sorts the values of the tokens of `word`, descending; returns their number. */
static uint32_t sort_values(const struct context_view *v, const uint32_t *word, const float *value,
                            float *out)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < v->n_page * PAGE_TOK; t++)
        if (word[t / PAGE_TOK] >> t % PAGE_TOK & 1) out[n++] = value[t];
    qsort(out, n, sizeof *out, falling);
    return n;
}

uint32_t context_count_share(const struct context_view *v, const uint32_t *word, const float *value,
                             double share, float *spare)
{
    const uint32_t n_all = sort_values(v, word, value, spare);
    double all = 0, sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_all; i++) all += (double)spare[i];
    while (n < n_all && sum < share * all) sum += (double)spare[n++];
    return n;
}

void context_keep_best(const struct context_view *v, uint32_t *word, const float *value, uint32_t n,
                       float *spare)
{
    const uint32_t n_all = sort_values(v, word, value, spare);
    uint32_t n_above = 0;
    if (n >= n_all) return;
    const float cut = n > 0 ? spare[n - 1] : 0;
    for (uint32_t i = 0; i < n; i++) n_above += spare[i] > cut;
    uint32_t n_tie = n - n_above; /* so many of those that equal the threshold */
    for (uint32_t t = 0; t < v->n_page * PAGE_TOK; t++) {
        const uint32_t bit = 1u << t % PAGE_TOK;
        if (!(word[t / PAGE_TOK] & bit)) continue;
        const bool is_tie = n > 0 && value[t] == cut && n_tie > 0;
        n_tie -= is_tie;
        if (n == 0 || (!(value[t] > cut) && !is_tie)) word[t / PAGE_TOK] &= ~bit;
    }
}
