/* needle.c: see the header. After G. Kamradt's "needle in a haystack" (2023), scored by string
 * match.
 *
 * The depth is measured in tokens of the text that surrounds the needle: the needle stands at the
 * last start of a sentence within that share of the tokens, so 0 is the very start and 100 the end.
 * Samples that differ only in depth hide the same needle, so differences between them are due to
 * the depth. */
#include "eval/needle.h"

#include "base/mem.h"
#include "eval/prose.h"
#include "eval/rng.h"
#include "eval/words.h"

#include <assert.h>
#include <string.h>

#define NEEDLE_MAX     16u
#define NEW_TOK        32u
#define NEW_TOK_EACH   16u /* for every needle after the first */
#define NEEDLE_ANY_ERR "out of memory for a needle sample"

static const char head[] =
    "Read the following text carefully. You will be asked about something that it says.\n\n";

static const char *const towns[] = {
    "Port Velmar", "Ostrigg",    "Sankt Albin", "Lower Tamsin", "Curzonby", "Elmet Cross",
    "Varrick",     "Dol Ambrey", "Hexholm",     "Quarrel Bay",  "Nettlow",  "Upper Sorrel",
};

#define N_TOWN (sizeof towns / sizeof towns[0])

/* What is hidden and asked, before its place is chosen. */
struct hidden {
    struct strlist needle;
    struct strbuf question, prefix;
    struct strlist expected;
};

static void hidden_deinit(struct hidden *h)
{
    strlist_deinit(&h->needle);
    strlist_deinit(&h->expected);
    strbuf_deinit(&h->question);
    strbuf_deinit(&h->prefix);
}

/* The separator after the i-th of n items: "a", "a and b", "a, b, and c". */
static const char *joint(uint32_t i, uint32_t n)
{
    if (i + 1 == n) return "";
    if (n == 2) return " and ";
    return i + 2 == n ? ", and " : ", ";
}

static void draw_numbers(struct hidden *h, struct rng *r, uint32_t n)
{
    uint32_t adjective[NEEDLE_MAX], noun[NEEDLE_MAX];
    rng_sample(r, adjective, n, words_n_adjective());
    rng_sample(r, noun, n, words_n_noun());
    strbuf_adds(&h->question, n == 1 ? "What is the secret number of the "
                                     : "What are the secret numbers of the ");
    strbuf_adds(&h->prefix, n == 1 ? "The secret number of the " : "The secret numbers of the ");
    for (uint32_t i = 0; i < n; i++) {
        const unsigned value = 1000000u + (unsigned)rng_below(r, 9000000);
        const char *a = words_adjective(adjective[i]), *b = words_noun(noun[i], NULL);
        strlist_addf(&h->needle, "The secret number of the %s %s is %u.", a, b, value);
        strlist_addf(&h->expected, "%u", value);
        strbuf_addf(&h->question, "%s %s%s", a, b, joint(i, n));
        strbuf_addf(&h->prefix, "%s %s%s", a, b, joint(i, n));
    }
    strbuf_adds(&h->question, "?");
    strbuf_adds(&h->prefix, n == 1 ? " is" : " are");
}

static void draw_sentences(struct hidden *h, struct rng *r, uint32_t n)
{
    uint32_t town[NEEDLE_MAX], adjective[NEEDLE_MAX], noun[NEEDLE_MAX];
    rng_sample(r, town, n, (uint32_t)N_TOWN);
    rng_sample(r, adjective, n, words_n_adjective());
    rng_sample(r, noun, n, words_n_noun());
    strbuf_adds(&h->question, "What is the best thing to do in ");
    for (uint32_t i = 0; i < n; i++) {
        const char *a = words_adjective(adjective[i]), *b = words_noun(noun[i], NULL);
        strlist_addf(&h->needle,
                     "The best thing to do in %s is to look for the %s %s in the museum.",
                     towns[town[i]], a, b);
        strlist_add(&h->expected, a);
        strlist_add(&h->expected, b);
        strbuf_addf(&h->question, "%s%s", towns[town[i]], joint(i, n));
    }
    strbuf_adds(&h->question, "?");
    if (n == 1) strbuf_addf(&h->prefix, "The best thing to do in %s is to", towns[town[0]]);
}

static void draw(struct hidden *h, const struct needle_args *a, struct rng *r)
{
    switch (a->kind) {
    case NEEDLE_NUMBER: draw_numbers(h, r, a->n_needle); break;
    case NEEDLE_SENTENCE: draw_sentences(h, r, a->n_needle); break;
    case NEEDLE_GIVEN:
        strlist_add(&h->needle, a->needle);
        strbuf_adds(&h->question, a->question);
        for (size_t i = 0; i < a->expected->n; i++) strlist_add(&h->expected, a->expected->item[i]);
        break;
    }
}

/* ---- Places ---- */

/* The start of the last sentence that begins within the first `depth` percent of the tokens of
 * `body`; the end of the text for 100. */
static sac_status find_place(size_t *out, const sac_model *model, const struct strbuf *body,
                             double depth, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n_tok = 0, *start = NULL, n_start = 0, n_bytes = 0, piece, at = 0;
    *out = body->n;
    if (depth >= 100) return SAC_OK;
    TRY(sac_tokenize(model, body->data, body->n, 0, &tok, &n_tok, err));
    const size_t n_before = (size_t)((double)n_tok * depth / 100);
    for (size_t i = 0; i < n_before; i++) {
        sac_token_piece(model, tok[i], true, &piece);
        n_bytes += piece;
    }
    sac_free(tok);
    TRY(haystack_sentences(&start, &n_start, body->data, body->n, err));
    for (size_t i = 0; i < n_start && start[i] <= n_bytes; i++) at = start[i];
    mem_free(start);
    *out = at;
    return SAC_OK;
}

static sac_status hide(struct strbuf *out, const sac_model *model, const struct strbuf *body,
                       const struct strlist *needle, double depth, sac_error *err)
{
    struct insertion in[NEEDLE_MAX];
    for (size_t i = 0; i < needle->n; i++) {
        const double d = depth + (100 - depth) * (double)i / (double)needle->n;
        in[i].text = needle->item[i];
        TRY(find_place(&in[i].at, model, body, d, err));
    }
    haystack_insert(out, body->data, body->n, in, needle->n);
    return SAC_OK;
}

/* ---- Samples ---- */

struct build {
    const struct needle_args *args; /* NULL: passkey, between lines of noise */
    const struct task_cell *cell;
    const sac_model *model;
    const struct hidden *hidden;
};

static sac_status build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct build *b = arg;
    struct strbuf body = {0}, user = {0};
    strbuf_add(&body, "", 0);
    if (b->args)
        haystack_words(b->args->haystack, &body, size);
    else
        for (uint32_t i = 0; i < size; i++) strbuf_addf(&body, "%s\n", prose_noise());
    strbuf_adds(&user, head);
    sac_status status = body.failed
                            ? error_set(err, SAC_ERR_MEMORY, NEEDLE_ANY_ERR)
                            : hide(&user, b->model, &body, &b->hidden->needle, b->cell->depth, err);
    strbuf_deinit(&body);
    strbuf_adds(&user, "\n\n");
    const size_t question_at = user.n;
    strbuf_adds(&user, b->hidden->question.data);
    if (status == SAC_OK && user.failed) status = error_set(err, SAC_ERR_MEMORY, NEEDLE_ANY_ERR);
    if (status != SAC_OK) {
        strbuf_deinit(&user);
        return status;
    }
    struct task_turn *turn = task_add_turn(out);
    out->metric = METRIC_ALL_MATCH;
    turn->user = strbuf_detach(&user, NULL);
    turn->question_at = question_at;
    if (b->hidden->prefix.n) turn->prefix = mem_strdup(b->hidden->prefix.data);
    for (size_t i = 0; i < b->hidden->expected.n; i++)
        strlist_add(&turn->expected, b->hidden->expected.item[i]);
    turn->new_tok = NEW_TOK + NEW_TOK_EACH * (uint32_t)(b->hidden->needle.n - 1);
    if (turn->expected.failed || (b->hidden->prefix.n && !turn->prefix))
        return error_set(err, SAC_ERR_MEMORY, NEEDLE_ANY_ERR);
    return SAC_OK;
}

/* Fits the sample's length; frees `h`. */
static sac_status fit(struct build *b, struct hidden *h, const struct task_text *t,
                      struct task_sample *out, sac_error *err)
{
    const struct task_builder builder = {.build = build, .arg = b};
    b->model = t->model;
    b->hidden = h;
    const bool failed = h->question.failed || h->prefix.failed || h->needle.failed ||
                        h->expected.failed || !h->question.data;
    const sac_status status = failed ? error_set(err, SAC_ERR_MEMORY, NEEDLE_ANY_ERR)
                                     : task_fit(t, &builder, b->cell->ctx, out, err);
    hidden_deinit(h);
    return status;
}

sac_status needle_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                       struct task_sample *out, sac_error *err)
{
    const struct needle_args *a = arg;
    struct hidden h = {0};
    struct rng r = rng_stream("needle", cell->ctx, a->seed, cell->index);
    struct build b = {.args = a, .cell = cell};
    assert(cell->depth >= 0 && cell->depth <= 100);
    if (a->n_needle == 0 || a->n_needle > N_TOWN)
        return error_set(err, SAC_ERR_ARG, "%u needles: 1 to %zu are possible", a->n_needle,
                         N_TOWN);
    draw(&h, a, &r);
    return fit(&b, &h, t, out, err);
}

sac_status needle_make_passkey(const void *arg, const struct task_text *t,
                               const struct task_cell *cell, struct task_sample *out,
                               sac_error *err)
{
    const uint64_t *seed = arg;
    struct hidden h = {0};
    struct rng r = rng_stream("passkey", cell->ctx, *seed, cell->index);
    struct build b = {.cell = cell};
    const unsigned key = 10000u + (unsigned)rng_below(&r, 90000);
    strlist_addf(&h.needle, "The pass key is %u. Remember it: %u is the pass key.\n", key, key);
    strlist_addf(&h.expected, "%u", key);
    strbuf_adds(&h.question, "What is the pass key?");
    strbuf_adds(&h.prefix, "The pass key is");
    return fit(&b, &h, t, out, err);
}
