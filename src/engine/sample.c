/* sample.c: from logits to a token.
 *
 * Order: logit bias, penalties, DRY, mask; then, for a positive temperature, top-k, typical, top-p,
 * min-p, XTC, temperature, draw. Mirostat replaces top-k to XTC and comes after the temperature.
 * Each filter renormalises what the previous one left. Greedy sampling (temp <= 0) takes the
 * largest logit after the penalties, the smaller id on ties. Reported probabilities are computed
 * from the logits as the model gave them.
 *
 * Invariants:
 *  1. The result depends only on the logits, the accepted tokens, the parameters, the number of
 *     draws before and, for Mirostat, what they chose: orders are total (ties by id), sums run in
 *     list order.
 *  2. All memory is allocated at create. Candidates are ordered by a heap that yields the best
 *     first, so a filter that keeps 20 of 150,000 tokens never sorts the rest.
 *  3. NaN never passes `usable`, so no comparison below meets one.
 *
 * The generator is xoshiro256** by Blackman and Vigna (2018), its state filled from the seed by
 * SplitMix64 as its authors recommend. Every draw takes one number, with XTC two, whatever the
 * candidates. */
#include "engine/sample.h"

#include "base/mem.h"
#include "base/status.h"
#include "engine/sample_dry.h"
#include "engine/sample_mirostat.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#define LANES       16        /* comparisons per step of the search for the largest logit */
#define GATHER_MORE 64        /* room beyond 2 k before the top-k candidates are reduced */
#define LAST_N_MAX  (1 << 22) /* maximum of the ring of accepted tokens, 16 MiB */

struct candidate {
    int32_t tok;
    float logit;
    float key; /* sort key of the heap */
};

/* The tokens that penalties consider. Without penalties all pointers are NULL. */
struct history {
    int32_t *ring; /* [n_ring] the last tokens; NULL when the window is unbounded */
    uint32_t n_ring, n_held, next;
    uint32_t *count; /* [n_vocab] occurrences within the window */
    int32_t *seen;   /* [n_vocab] the distinct tokens, in no order */
    uint32_t *place; /* [n_vocab] index in `seen`, where count > 0 */
    uint32_t n_seen;
};

/* The logits to consider: of the tokens `id`, ascending, or, if that is NULL, of tokens 0 to n - 1.
 * All others are -INFINITY. */
struct seen {
    const float *logits;
    const int32_t *id;
    uint32_t n;
};

/* The previous value of a logit that bias or penalties changed. */
struct edit {
    int32_t tok;
    float was;
};

struct sac_sampler {
    sac_sampling params; /* logit_bias points to `bias` */
    uint32_t n_vocab;
    uint64_t rng[4];
    float last_logprob;
    sac_logit_bias *bias;   /* owned, [params.n_logit_bias] */
    struct candidate *list; /* owned, [n_vocab] */
    struct edit *edits;     /* owned, [n_logit_bias + n_vocab if there are penalties] */
    struct history history; /* owned arrays */
    struct sample_dry dry;
    double mu; /* Mirostat's bound */
};

/* ---- Random numbers ---- */

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static void rng_seed(uint64_t state[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        state[i] = z ^ z >> 31;
    }
}

/* Uniform in [0, 1), 53 bits. */
static double rng_next(uint64_t state[4])
{
    const uint64_t result = rotl(state[1] * 5, 7) * 9, t = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= t;
    state[3] = rotl(state[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

/* ---- Candidates, the best first ---- */

/* Total order: the larger key first, then the smaller id. */
static bool is_better(const struct candidate *a, const struct candidate *b)
{
    return a->key > b->key || (a->key == b->key && a->tok < b->tok);
}

static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    const struct candidate moving = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_better(&heap[child + 1], &heap[child])) child++;
        if (!is_better(&heap[child], &moving)) break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void heap_build(struct candidate *list, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) sift_down(list, n, i);
}

/* Moves the best of heap[0..n) to index n - 1, after those that remain. */
static void heap_pop(struct candidate *heap, size_t n)
{
    const struct candidate best = heap[0];
    heap[0] = heap[n - 1];
    if (n > 1) sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
}

/* The k candidates that were popped are at the end of list[0..n), the best one last. Moves them to
 * the front, the best one first: a reversal of the list that stops after k. */
static void popped_to_front(struct candidate *list, size_t n, size_t k)
{
    for (size_t i = 0; i < k && i < n - 1 - i; i++) {
        const struct candidate swapped = list[i];
        list[i] = list[n - 1 - i];
        list[n - 1 - i] = swapped;
    }
}

static size_t keep_best(struct candidate *list, size_t n, size_t k)
{
    if (k > n) k = n;
    heap_build(list, n);
    for (size_t i = 0; i < k; i++) heap_pop(list, n - i);
    popped_to_front(list, n, k);
    return k;
}

/* Replaces +INFINITY by a finite number, so that differences are finite, too. */
static float usable(float logit)
{
    return logit == logit ? fminf(logit, FLT_MAX) : -INFINITY;
}

static inline int32_t seen_tok(const struct seen *s, uint32_t i)
{
    return s->id ? s->id[i] : (int32_t)i;
}

/* The k largest logits, the best first. Once k are held, the k-th best is a threshold that most of
 * a vocabulary does not reach; candidates are reduced when their number has doubled. */
static size_t gather_top(struct candidate *list, const struct seen *seen, size_t k)
{
    assert(k > 0);
    const size_t thin_at = 2 * k + GATHER_MORE;
    float bar = -INFINITY;
    size_t n = 0;
    for (uint32_t i = 0; i < seen->n; i++) {
        const int32_t tok = seen_tok(seen, i);
        /* false for NaN, too; on a tie the smaller id, which is held, wins */
        if (!(seen->logits[tok] > bar)) continue;
        const float logit = usable(seen->logits[tok]);
        list[n++] = (struct candidate){tok, logit, logit};
        if (n < thin_at) continue;
        n = keep_best(list, n, k);
        bar = list[n - 1].logit;
    }
    return keep_best(list, n, k);
}

static size_t gather_all(struct candidate *list, const struct seen *seen)
{
    size_t n = 0;
    for (uint32_t i = 0; i < seen->n; i++) {
        const int32_t tok = seen_tok(seen, i);
        const float logit = usable(seen->logits[tok]);
        if (logit > -INFINITY) list[n++] = (struct candidate){tok, logit, logit};
    }
    return n;
}

/* Index of the largest logit, the smallest index on ties; -1 if all are NaN or -INFINITY. */
static int32_t find_largest(const float *logits, uint32_t n)
{
    float lane[LANES];
    uint32_t i = 0;
    for (uint32_t l = 0; l < LANES; l++) lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t l = 0; l < LANES; l++)
            lane[l] = logits[i + l] > lane[l] ? logits[i + l] : lane[l];
    for (; i < n; i++) lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
    float largest = lane[0];
    for (uint32_t l = 1; l < LANES; l++) largest = lane[l] > largest ? lane[l] : largest;
    if (largest == -INFINITY) return -1;
    for (i = 0; logits[i] != largest;) i++;
    assert(i < n);
    return (int32_t)i;
}

/* Token of the largest logit, the smallest on ties; -1 if all are NaN or -INFINITY. */
static int32_t find_most(const struct seen *seen)
{
    int32_t most = -1;
    if (!seen->id) return find_largest(seen->logits, seen->n);
    for (uint32_t i = 0; i < seen->n; i++)
        if (seen->logits[seen->id[i]] > (most < 0 ? -INFINITY : seen->logits[most]))
            most = seen->id[i];
    return most;
}

/* ---- Filters: each keeps a first part of `list` and returns its length ---- */

static float list_max(const struct candidate *list, size_t n)
{
    float max = list[0].logit;
    for (size_t i = 1; i < n; i++) max = fmaxf(max, list[i].logit);
    return max;
}

/* Sets key = exp(logit - max) and returns the sum of the keys. */
static double set_weights(struct candidate *list, size_t n, float max)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        list[i].key = expf(list[i].logit - max);
        sum += (double)list[i].key;
    }
    return sum;
}

/* Keeps the fewest candidates, best keys first, whose probabilities sum to `share` or more. */
static size_t keep_mass(struct candidate *list, size_t n, float max, double sum, double share)
{
    double mass = 0;
    size_t k = 0;
    heap_build(list, n);
    while (k < n && (k == 0 || mass < share * sum)) {
        heap_pop(list, n - k);
        mass += (double)expf(list[n - 1 - k].logit - max);
        k++;
    }
    popped_to_front(list, n, k);
    return k;
}

/* Meister et al., "Locally typical sampling", 2022: tokens are ordered by the distance of their
 * surprise from the entropy. */
static size_t filter_typical(struct candidate *list, size_t n, float share)
{
    const float max = list_max(list, n);
    const double sum = set_weights(list, n, max), log_sum = log(sum);
    double entropy = 0;
    for (size_t i = 0; i < n; i++) {
        const double p = (double)list[i].key / sum;
        if (p > 0) entropy += p * (log_sum - (double)(list[i].logit - max));
    }
    for (size_t i = 0; i < n; i++) {
        const double surprise = log_sum - (double)(list[i].logit - max);
        list[i].key = -(float)fabs(surprise - entropy);
    }
    return keep_mass(list, n, max, sum, (double)share);
}

static size_t filter_top_p(struct candidate *list, size_t n, float share)
{
    const float max = list_max(list, n);
    const double sum = set_weights(list, n, max);
    return keep_mass(list, n, max, sum, (double)share);
}

/* Keeps the candidates whose probability is at least `share` of the largest. */
static size_t filter_min_p(struct candidate *list, size_t n, float share)
{
    const float bar = list_max(list, n) + logf(fminf(share, 1.0f));
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].logit >= bar) list[k++] = list[i];
    return k;
}

/* "Exclude top choices", p-e-w's proposal to text-generation-webui (pull request 6335, 2024): of
 * the tokens with probability `threshold` or more, all but the least likely are removed. */
static size_t filter_xtc(struct candidate *list, size_t n, float threshold)
{
    const double bar = (double)threshold * set_weights(list, n, list_max(list, n));
    size_t k = 0, last = n; /* index of the least likely of them */
    for (size_t i = 0; i < n; i++)
        if ((double)list[i].key >= bar && (last == n || is_better(&list[last], &list[i]))) last = i;
    if (last == n) return n;
    const struct candidate kept = list[last];
    for (size_t i = 0; i < n; i++)
        if ((double)list[i].key < bar || list[i].tok == kept.tok) list[k++] = list[i];
    return k;
}

static int32_t draw(struct candidate *list, size_t n, float temp, double u)
{
    const float max = list_max(list, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        list[i].key = expf((list[i].logit - max) / temp);
        sum += (double)list[i].key;
    }
    double left = u * sum;
    size_t last =
        /* The last one with a probability above 0, because rounding may leave `left` above zero */
        0;
    for (size_t i = 0; i < n; i++) {
        if (!(list[i].key > 0)) continue;
        last = i;
        left -= (double)list[i].key;
        if (left < 0) break;
    }
    return list[last].tok;
}

/* Keeps what Mirostat allows. `key` is exp((logit - max) / temp) and `sum` the sum of all keys. */
static size_t mirostat_keep(const struct sac_sampler *s, struct candidate *list, size_t n,
                            double sum)
{
    size_t k = 0;
    if (s->params.mirostat == 1) {
        double p[SAMPLE_MIROSTAT_M];
        const size_t m = keep_best(list, n, SAMPLE_MIROSTAT_M);
        for (size_t i = 0; i < m; i++) p[i] = (double)list[i].key / sum;
        const double most = sample_mirostat_k(p, m, s->n_vocab, s->mu);
        return keep_best(list, n, most < (double)n ? (size_t)most : n);
    }
    const double bar = exp2(-s->mu) * sum;
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (is_better(&list[i], &list[best])) best = i;
    const struct candidate top = list[best];
    for (size_t i = 0; i < n; i++)
        if ((double)list[i].key >= bar) list[k++] = list[i];
    if (k == 0) list[k++] = top;
    return k;
}

/* The surprise in version 1 is by the model's distribution, in version 2 by that of the kept
 * tokens. */
static int32_t choose_mirostat(struct sac_sampler *s, const struct seen *seen, double u)
{
    const float temp = s->params.temp;
    size_t n = gather_all(s->list, seen);
    if (n == 0) return -1;
    const float max = list_max(s->list, n);
    for (size_t i = 0; i < n; i++) s->list[i].logit = (s->list[i].logit - max) / temp;
    const double all = set_weights(s->list, n, 0);
    n = mirostat_keep(s, s->list, n, all);
    double sum = 0, p = 0;
    for (size_t i = 0; i < n; i++) sum += (double)expf(s->list[i].logit);
    const int32_t tok = draw(s->list, n, 1, u);
    for (size_t i = 0; i < n; i++)
        if (s->list[i].tok == tok) p = (double)s->list[i].key;
    const double surprise = -log2(p / (s->params.mirostat == 1 ? all : sum));
    s->mu -= (double)s->params.mirostat_eta * (surprise - (double)s->params.mirostat_tau);
    return tok;
}

static int32_t choose(struct sac_sampler *s, const struct seen *seen)
{
    const sac_sampling *p = &s->params;
    const double u = rng_next(s->rng);
    if (p->mirostat) return choose_mirostat(s, seen, u);
    const bool excludes = p->xtc_probability > 0 && rng_next(s->rng) < (double)p->xtc_probability;
    const bool cut = p->top_k > 0 && (uint32_t)p->top_k < s->n_vocab;
    size_t n = cut ? gather_top(s->list, seen, (size_t)p->top_k) : gather_all(s->list, seen);
    if (n == 0) return -1;
    if (p->typical_p < 1) n = filter_typical(s->list, n, p->typical_p);
    if (p->top_p < 1) n = filter_top_p(s->list, n, p->top_p);
    if (p->min_p > 0) n = filter_min_p(s->list, n, p->min_p);
    if (excludes) n = filter_xtc(s->list, n, p->xtc_threshold);
    assert(n > 0);
    return draw(s->list, n, p->temp, u);
}

/* ---- Bias and penalties ---- */

static bool has_penalties(const sac_sampling *p)
{
    return p->repeat_last_n != 0 &&
           (p->repeat_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0);
}

/* Changes logits in place and records the previous values; returns their number. */
static size_t edit_logits(struct sac_sampler *s, float *logits)
{
    const sac_sampling *p = &s->params;
    size_t n = 0;
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const int32_t tok = s->bias[i].tok;
        s->edits[n++] = (struct edit){tok, logits[tok]};
        logits[tok] += s->bias[i].bias;
    }
    for (uint32_t i = 0; i < s->history.n_seen; i++) {
        const int32_t tok = s->history.seen[i];
        const float was = logits[tok], count = (float)s->history.count[tok];
        s->edits[n++] = (struct edit){tok, was};
        /* Dividing a negative logit would make the token more likely. */
        const float x = was > 0 ? was / p->repeat_penalty : was * p->repeat_penalty;
        logits[tok] = x - count * p->frequency_penalty - p->presence_penalty;
    }
    const uint32_t n_dry = sample_dry_losses(&s->dry);
    for (uint32_t i = 0; i < n_dry; i++) {
        s->edits[n++] = (struct edit){s->dry.tok[i], logits[s->dry.tok[i]]};
        logits[s->dry.tok[i]] -= s->dry.loss[i];
    }
    return n;
}

/* Words of 64 tokens that are all allowed, as most are in free text, cost one comparison. */
static void mask_logits(const struct seen *seen, float *logits, const uint64_t *mask)
{
    for (uint32_t i = 0; seen->id && i < seen->n; i++)
        if (!(mask[seen->id[i] / 64] >> seen->id[i] % 64 & 1)) logits[seen->id[i]] = -INFINITY;
    for (uint32_t i = 0; !seen->id && i < seen->n; i += 64)
        for (uint32_t t = i; mask[i / 64] != UINT64_MAX && t < i + 64 && t < seen->n; t++)
            if (!(mask[i / 64] >> t % 64 & 1)) logits[t] = -INFINITY;
}

static float logit_before(const struct sac_sampler *s, const float *logits, size_t n_edit,
                          int32_t tok)
{
    for (size_t i = 0; i < n_edit; i++) /* the first record of a token has the original value */
        if (s->edits[i].tok == tok) return s->edits[i].was;
    return logits[tok];
}

static void history_drop(struct history *h, int32_t tok)
{
    if (--h->count[tok] > 0) return;
    const int32_t moved = h->seen[--h->n_seen];
    h->seen[h->place[tok]] = moved;
    h->place[moved] = h->place[tok];
}

static void history_add(struct history *h, int32_t tok)
{
    if (h->count[tok]++ > 0) return;
    h->place[tok] = h->n_seen;
    h->seen[h->n_seen++] = tok;
}

/* ---- Probabilities of the model ---- */

/* log(sum(exp(logits))), -INFINITY if no token is possible. */
static double log_sum_exp(const struct seen *seen)
{
    const int32_t top = find_most(seen);
    if (top < 0) return -INFINITY;
    const float max = usable(seen->logits[top]);
    double sum = 0;
    for (uint32_t i = 0; i < seen->n; i++)
        sum += (double)expf(usable(seen->logits[seen_tok(seen, i)]) - max);
    return (double)max + log(sum);
}

static float logprob(float logit, double log_sum)
{
    const float x = usable(logit);
    return x > -INFINITY ? (float)((double)x - log_sum) : -INFINITY;
}

static void report_probs(struct sac_sampler *s, const struct seen *seen, double log_sum,
                         sac_prob *out_probs, uint32_t n_probs)
{
    const size_t n = gather_top(s->list, seen, n_probs);
    for (size_t i = 0; i < n; i++)
        out_probs[i] = (sac_prob){s->list[i].tok, logprob(s->list[i].logit, log_sum)};
    for (size_t i = n; i < n_probs; i++) out_probs[i] = (sac_prob){-1, -INFINITY};
}

float sample_last_logprob(const sac_sampler *s)
{
    return s->last_logprob;
}

/* ---- The public calls ---- */

sac_sampling sac_sampling_default(void)
{
    static const char *const breaker[] = {"\n", ":", "\"", "*"};
    return (sac_sampling){
        .temp = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1.0f,
        .repeat_penalty = 1.0f,
        .repeat_last_n = 64,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_last_n = 4096,
        .dry_breaker = breaker,
        .n_dry_breaker = sizeof breaker / sizeof breaker[0],
        .xtc_threshold = 0.1f,
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
    };
}

static sac_status check_params(const sac_sampling *p, uint32_t n_vocab, sac_error *err)
{
    const struct {
        const char *name;
        float value;
    } numbers[] = {
        {"temperature", p->temp},
        {"top-p", p->top_p},
        {"min-p", p->min_p},
        {"typical-p", p->typical_p},
        {"repeat penalty", p->repeat_penalty},
        {"frequency penalty", p->frequency_penalty},
        {"presence penalty", p->presence_penalty},
        {"XTC probability", p->xtc_probability},
        {"XTC threshold", p->xtc_threshold},
        {"Mirostat's target", p->mirostat_tau},
        {"Mirostat's rate", p->mirostat_eta},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!isfinite(numbers[i].value))
            return error_set(err, SAC_ERR_ARG, "%s is not a finite number", numbers[i].name);
    if (p->repeat_penalty <= 0)
        return error_set(err, SAC_ERR_ARG, "repeat penalty %g is not positive",
                         (double)p->repeat_penalty);
    if (p->repeat_last_n < -1 || p->repeat_last_n > LAST_N_MAX)
        return error_set(err, SAC_ERR_ARG, "repeat_last_n %d is out of range -1 to %d",
                         p->repeat_last_n, LAST_N_MAX);
    if (p->mirostat < 0 || p->mirostat > 2)
        return error_set(err, SAC_ERR_ARG, "Mirostat has versions 1 and 2, not %d", p->mirostat);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const sac_logit_bias *b = &p->logit_bias[i];
        if (b->tok < 0 || (uint32_t)b->tok >= n_vocab)
            return error_set(err, SAC_ERR_ARG, "logit bias of token %d: the vocabulary has %u",
                             b->tok, n_vocab);
        if (b->bias != b->bias)
            return error_set(err, SAC_ERR_ARG, "logit bias of token %d is not a number", b->tok);
    }
    return SAC_OK;
}

static bool history_create(struct history *h, const sac_sampling *p, uint32_t n_vocab)
{
    if (!has_penalties(p)) return true;
    h->count = mem_calloc(n_vocab, sizeof *h->count);
    h->seen = mem_calloc(n_vocab, sizeof *h->seen);
    h->place = mem_calloc(n_vocab, sizeof *h->place);
    if (p->repeat_last_n > 0) {
        h->n_ring = (uint32_t)p->repeat_last_n;
        h->ring = mem_calloc(h->n_ring, sizeof *h->ring);
        if (!h->ring) return false;
    }
    return h->count && h->seen && h->place;
}

/* A bias that only lowers logits brings no other tokens among the n largest. */
uint32_t sample_n_top(const sac_sampler *s)
{
    const sac_sampling *p = &s->params;
    if (has_penalties(p) || p->dry_multiplier > 0) return 0;
    if (p->temp > 0 && (p->top_k <= 0 || p->mirostat)) return 0;
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].bias > 0) return 0;
    return (p->temp > 0 ? (uint32_t)p->top_k : 1) + (uint32_t)p->n_logit_bias;
}

sac_status sac_sampler_create(sac_sampler **out, const sac_model *model, const sac_sampling *params,
                              sac_error *err)
{
    const uint32_t n_vocab = sac_model_get_info(model).n_vocab;
    TRY(check_params(params, n_vocab, err));
    sac_sampler *s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for a sampler");
    const size_t n_bias = params->n_logit_bias;
    sac_status status;
    s->params = *params;
    s->params.dry_breaker = NULL; /* `dry` has copied what it needs */
    s->n_vocab = n_vocab;
    s->last_logprob = -INFINITY;
    s->mu = 2 * (double)params->mirostat_tau; /* the paper's initial value */
    TRY_FAIL(sample_dry_init(&s->dry, params, model, n_vocab, err));
    s->bias = mem_calloc(n_bias, sizeof *s->bias);
    s->list = mem_calloc(n_vocab, sizeof *s->list);
    s->edits = mem_calloc(n_bias + (has_penalties(params) ? n_vocab : 0) + s->dry.n_ring,
                          sizeof *s->edits);
    if (!s->bias || !s->list || !s->edits || !history_create(&s->history, params, n_vocab)) {
        status =
            error_set(err, SAC_ERR_MEMORY, "out of memory for a sampler of %u tokens", n_vocab);
        goto fail;
    }
    if (n_bias) memcpy(s->bias, params->logit_bias, n_bias * sizeof *s->bias);
    s->params.logit_bias = s->bias;
    rng_seed(s->rng, params->seed);
    *out = s;
    return SAC_OK;
fail:
    sac_sampler_free(s);
    return status;
}

void sac_sampler_free(sac_sampler *s)
{
    if (!s) return;
    mem_free(s->bias);
    mem_free(s->list);
    mem_free(s->edits);
    sample_dry_deinit(&s->dry);
    mem_free(s->history.ring);
    mem_free(s->history.count);
    mem_free(s->history.seen);
    mem_free(s->history.place);
    mem_free(s);
}

void sac_sampler_accept(sac_sampler *s, int32_t tok)
{
    struct history *h = &s->history;
    sample_dry_accept(&s->dry, tok);
    if (!h->count) return;
    assert(tok >= 0 && (uint32_t)tok < s->n_vocab);
    if (h->ring) {
        if (h->n_held == h->n_ring)
            history_drop(h, h->ring[h->next]);
        else
            h->n_held++;
        h->ring[h->next] = tok;
        h->next = h->next + 1 == h->n_ring ? 0 : h->next + 1;
    }
    history_add(h, tok);
    assert(h->n_seen <= s->n_vocab);
}

int32_t sample_row(sac_sampler *s, const sac_row *row, const uint64_t *mask, sac_prob *out_probs,
                   uint32_t n_probs)
{
    float *logits = row->logits;
    const struct seen seen = {logits, row->top, row->top ? row->n_top : s->n_vocab};
    double log_sum = 0;
    if (n_probs) {
        log_sum = log_sum_exp(&seen);
        report_probs(s, &seen, log_sum, out_probs, n_probs);
    }
    const size_t n_edit = edit_logits(s, logits);
    if (mask) mask_logits(&seen, logits, mask);
    const int32_t tok = s->params.temp > 0 ? choose(s, &seen) : find_most(&seen);
    s->last_logprob = -INFINITY;
    if (n_probs && tok >= 0)
        s->last_logprob = logprob(logit_before(s, logits, n_edit, tok), log_sum);
    return tok;
}

int32_t sac_sampler_sample(sac_sampler *s, float *logits, sac_prob *out_probs, uint32_t n_probs)
{
    return sample_row(s, &(sac_row){.logits = logits}, NULL, out_probs, n_probs);
}

int32_t sac_sampler_sample_row(sac_sampler *s, const sac_row *row)
{
    return sample_row(s, row, NULL, NULL, 0);
}
