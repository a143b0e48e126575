/* load_plan.c: which requests are sent when: arrivals, lengths, texts.
 *
 * Gaps between arrivals are drawn from a gamma distribution whose shape is the burstiness (1: a
 * Poisson process) and whose mean is one over the rate. They are then scaled so that the last chat
 * begins at n/rate, as in vLLM's benchmark: two runs with different seeds offer the same load. Each
 * chat draws from streams of its own, so more chats do not change the first ones. */
#include "app/load.h"

#include "base/mem.h"
#include "eval/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Words that are one token with the preceding blank in the vocabularies of GPT-2, Llama 3, Qwen,
 * Gemma and relatives. */
static const char *const words[] = {
    "time",  "people", "water", "house", "world", "school", "state",  "family", "night", "city",
    "story", "group",  "money", "point", "heart", "power",  "game",   "book",   "road",  "light",
    "door",  "table",  "river", "music", "field", "paper",  "summer", "green",  "white", "small",
    "great", "old",    "new",   "long",  "high",  "first",  "last",   "good",   "free",  "open",
    "find",  "make",   "take",  "come",  "know",  "think",  "look",   "want",   "give",  "use",
    "work",  "call",   "try",   "ask",   "need",  "feel",   "leave",  "keep",   "begin", "show",
    "hear",  "play",   "run",   "move",
};

#define N_WORD (sizeof words / sizeof words[0])

/* Uniform on (0, 1]. */
static double draw_unit(struct rng *r)
{
    return (double)((rng_next(r) >> 11) + 1) * 0x1p-53;
}

static double draw_normal(struct rng *r)
{
    const double radius = sqrt(-2 * log(draw_unit(r)));
    return radius * cos(2 * M_PI * draw_unit(r));
}

/* Gamma with mean `shape`, by Marsaglia and Tsang (2000), who raise shapes below 1 by one. */
static double draw_gamma(struct rng *r, double shape)
{
    if (shape < 1) return draw_gamma(r, shape + 1) * pow(draw_unit(r), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = draw_normal(r), root = 1 + c * x;
        if (root <= 0) continue;
        const double v = root * root * root;
        if (log(draw_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

static uint32_t draw_length(struct rng *r, uint32_t n, double range_ratio)
{
    const double low = floor(n * (1 - range_ratio)), high = floor(n * (1 + range_ratio));
    const double drawn = low + (double)rng_below(r, (uint64_t)(high - low) + 1);
    return drawn < 1 ? 1 : (uint32_t)drawn;
}

static void add_words(struct strbuf *out, struct rng *r, uint32_t n_tok)
{
    for (uint32_t i = 0; i < n_tok; i++) {
        if (out->n) strbuf_adds(out, " ");
        strbuf_adds(out, words[rng_below(r, N_WORD)]);
    }
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* A random passage of the text, cut at blanks and therefore between characters; it wraps around at
 * the end. */
static void add_passage(struct strbuf *out, struct rng *r, const struct load_params *p,
                        uint32_t n_tok)
{
    const size_t want = (size_t)(n_tok * p->bytes_per_tok) + 1;
    size_t at = (size_t)rng_below(r, p->n_text), n = 0;
    for (size_t i = 0; i < p->n_text && !is_blank(p->text[at]); i++) at = (at + 1) % p->n_text;
    if (out->n) strbuf_adds(out, "\n");
    at = (at + 1) % p->n_text;
    while (n < want || !is_blank(p->text[at])) {
        const size_t run = n < want ? want - n : 1;
        const size_t left = p->n_text - at, take = run < left ? run : left;
        strbuf_add(out, p->text + at, take);
        if (out->failed || n > 2 * want + 4096) return; /* the text contains no blank */
        n += take;
        at = (at + take) % p->n_text;
    }
}

static void add_text(struct strbuf *out, struct rng *r, const struct load_params *p, uint32_t n_tok)
{
    if (p->text)
        add_passage(out, r, p, n_tok);
    else
        add_words(out, r, n_tok);
}

static sac_status make_request(struct load_request *q, const struct load_params *p, sac_error *err)
{
    const uint64_t index = (uint64_t)q->chat_i * p->n_turn + q->turn_i;
    struct rng r = rng_stream("load", 0, p->seed, index);
    struct strbuf text = {0};
    if (q->turn_i == 0 && p->n_prefix_tok) {
        struct rng shared = rng_stream("load prefix", 0, p->seed, q->chat_i % p->n_prefix);
        add_text(&text, &shared, p, p->n_prefix_tok);
    }
    const uint32_t n_input = draw_length(&r, p->n_input, p->range_ratio);
    q->n_output = draw_length(&r, p->n_output, p->range_ratio);
    add_text(&text, &r, p, n_input);
    q->text = strbuf_detach(&text, NULL);
    return q->text ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "no memory for a prompt");
}

/* The first arrival follows a gap, too. */
void load_plan_arrivals(double *out_s, size_t n, double rate, double burstiness, uint64_t seed)
{
    struct rng r = rng_stream("load arrivals", 0, seed, 0);
    double at = 0;
    for (size_t i = 0; i < n; i++) {
        if (rate > 0) at += draw_gamma(&r, burstiness) / (rate * burstiness);
        out_s[i] = at;
    }
    const double scale = at > 0 ? (double)n / rate / at : 1;
    for (size_t i = 0; i < n; i++) out_s[i] *= scale;
}

/* Start times of first turns. */
static sac_status plan_arrivals(struct load_plan *plan, const struct load_params *p, sac_error *err)
{
    double *at = mem_calloc(p->n_chat, sizeof *at);
    if (!at) return error_set(err, SAC_ERR_MEMORY, "no memory for %u arrivals", p->n_chat);
    load_plan_arrivals(at, p->n_chat, p->rate, p->burstiness, p->seed);
    for (size_t i = 0; i < plan->n; i += p->n_turn) plan->request[i].arrival_s = at[i / p->n_turn];
    mem_free(at);
    return SAC_OK;
}

sac_status load_plan_make(struct load_plan *out, const struct load_params *p, sac_error *err)
{
    assert(p->n_chat && p->n_turn && p->n_prefix && p->burstiness > 0);
    *out = (struct load_plan){.n = (size_t)p->n_chat * p->n_turn};
    out->request = mem_calloc(out->n, sizeof *out->request);
    if (!out->request) return error_set(err, SAC_ERR_MEMORY, "no memory for %zu requests", out->n);
    for (size_t i = 0; i < out->n; i++) {
        out->request[i].chat_i = (uint32_t)(i / p->n_turn);
        out->request[i].turn_i = (uint32_t)(i % p->n_turn);
        TRY(make_request(&out->request[i], p, err));
    }
    return plan_arrivals(out, p, err);
}

void load_plan_deinit(struct load_plan *plan)
{
    for (size_t i = 0; plan->request && i < plan->n; i++) mem_free(plan->request[i].text);
    mem_free(plan->request);
    *plan = (struct load_plan){0};
}

char *load_plan_other(const struct load_params *p, uint32_t n_tok)
{
    struct rng r = rng_stream("load other", 0, p->seed, 0);
    struct strbuf text = {0};
    add_text(&text, &r, p, n_tok);
    return strbuf_detach(&text, NULL);
}
