/* sample_dry.c: see the header. In the reversed text, the length of the match between what precedes
 * a token and the end of the text is the length of a common prefix: the Z function (Gusfield,
 * "Algorithms on Strings, Trees and Sequences", 1997, section 1.4) finds all of them in one
 * pass. */
#include "engine/sample_dry.h"

#include "base/mem.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static bool is_breaker(const struct sample_dry *d, int32_t tok)
{
    return d->breakers[(uint32_t)tok / 64] >> (uint32_t)tok % 64 & 1;
}

static void find_breakers(struct sample_dry *d, const sac_sampling *params, const sac_model *model,
                          uint32_t n_vocab)
{
    for (uint32_t t = 0; t < n_vocab; t++) {
        size_t n;
        const char *piece = sac_token_piece(model, (int32_t)t, false, &n);
        for (size_t i = 0; i < params->n_dry_breaker; i++) {
            const char *text = params->dry_breaker[i];
            if (n > 0 && memmem(piece, n, text, strlen(text)))
                d->breakers[t / 64] |= (uint64_t)1 << t % 64;
        }
    }
}

static sac_status check(const sac_sampling *p, sac_error *err)
{
    if (!(p->dry_multiplier >= 0) || !isfinite(p->dry_multiplier))
        return error_set(err, SAC_ERR_ARG, "DRY multiplier %g is negative or no number",
                         (double)p->dry_multiplier);
    if (p->dry_multiplier == 0) return SAC_OK;
    if (!(p->dry_base >= 1) || !isfinite(p->dry_base))
        return error_set(err, SAC_ERR_ARG, "DRY base %g is below 1", (double)p->dry_base);
    if (p->dry_allowed_length < 1)
        return error_set(err, SAC_ERR_ARG, "DRY allowed length %d is below 1",
                         p->dry_allowed_length);
    if (p->dry_last_n < 1 || p->dry_last_n > SAMPLE_DRY_LAST_N_MAX)
        return error_set(err, SAC_ERR_ARG, "DRY looks back at %d tokens: it must be 1 to %d",
                         p->dry_last_n, SAMPLE_DRY_LAST_N_MAX);
    for (size_t i = 0; i < p->n_dry_breaker; i++)
        if (!p->dry_breaker[i][0])
            return error_set(err, SAC_ERR_ARG, "DRY breaker %zu is empty", i + 1);
    return SAC_OK;
}

sac_status sample_dry_init(struct sample_dry *d, const sac_sampling *params, const sac_model *model,
                           uint32_t n_vocab, sac_error *err)
{
    TRY(check(params, err));
    if (params->dry_multiplier == 0) return SAC_OK;
    d->multiplier = params->dry_multiplier;
    d->base = params->dry_base;
    d->least = (uint32_t)params->dry_allowed_length;
    d->n_ring = (uint32_t)params->dry_last_n;
    d->ring = mem_calloc(d->n_ring, sizeof *d->ring);
    d->recent = mem_calloc(d->n_ring, sizeof *d->recent);
    d->match = mem_calloc(d->n_ring, sizeof *d->match);
    d->tok = mem_calloc(d->n_ring, sizeof *d->tok);
    d->loss = mem_calloc(d->n_ring, sizeof *d->loss);
    d->longest = mem_calloc(n_vocab, sizeof *d->longest);
    d->breakers = mem_calloc(n_vocab / 64 + 1, sizeof *d->breakers);
    if (!d->ring || !d->recent || !d->match || !d->tok || !d->loss || !d->longest || !d->breakers)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for DRY over %u tokens", d->n_ring);
    find_breakers(d, params, model, n_vocab);
    return SAC_OK;
}

void sample_dry_deinit(struct sample_dry *d)
{
    mem_free(d->ring);
    mem_free(d->recent);
    mem_free(d->match);
    mem_free(d->tok);
    mem_free(d->loss);
    mem_free(d->longest);
    mem_free(d->breakers);
    *d = (struct sample_dry){0};
}

void sample_dry_accept(struct sample_dry *d, int32_t tok)
{
    if (!d->ring) return;
    assert(d->next < d->n_ring && d->n_held <= d->n_ring);
    d->ring[d->next] = tok;
    d->next = d->next + 1 == d->n_ring ? 0 : d->next + 1;
    if (d->n_held < d->n_ring) d->n_held++;
}

/* match[i]: length of the common prefix of s[i..) and s[0..). */
static void match_beginnings(uint32_t *match, const int32_t *s, uint32_t n)
{
    uint32_t left = 0, right = 0; /* the match that reaches furthest is s[left..right) */
    for (uint32_t i = 1; i < n; i++) {
        uint32_t k = 0;
        if (i < right) k = match[i - left] < right - i ? match[i - left] : right - i;
        while (i + k < n && s[k] == s[i + k]) k++;
        match[i] = k;
        if (i + k > right) {
            left = i;
            right = i + k;
        }
    }
}

/* Copies the tokens of the ring, the newest first; returns the number of those after the last
 * breaker. */
static uint32_t take_recent(struct sample_dry *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_held; i++)
        d->recent[i] = d->ring[(d->next + d->n_ring - 1 - i) % d->n_ring];
    while (n < d->n_held && !is_breaker(d, d->recent[n])) n++;
    return n;
}

uint32_t sample_dry_losses(struct sample_dry *d)
{
    const uint32_t most = d->ring ? take_recent(d) : 0;
    uint32_t n_out = 0;
    if (!d->ring || most < d->least) return 0;
    match_beginnings(d->match, d->recent, d->n_held);
    for (uint32_t i = 1; i < d->n_held; i++) {
        const uint32_t len = d->match[i] < most ? d->match[i] : most;
        const int32_t tok = d->recent[i - 1]; /* the token that followed the match */
        if (len < d->least || is_breaker(d, tok)) continue;
        if (d->longest[tok] == 0) d->tok[n_out++] = tok;
        if (len > d->longest[tok]) d->longest[tok] = len;
    }
    for (uint32_t i = 0; i < n_out; i++) {
        uint32_t *len = &d->longest[d->tok[i]];
        const double grown = pow((double)d->base, (double)(*len - d->least));
        d->loss[i] = (float)fmin((double)d->multiplier * grown, (double)FLT_MAX / 2);
        *len = 0;
    }
    return n_out;
}
