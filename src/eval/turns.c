/* turns.c: see the header. Everything is generated; six kinds of questions:
 *
 *   facts    one value of one thing                       (QA; all_match)
 *   hop      a thing's other name in one turn, that name's value in the same or another (all_match)
 *   collect  all values of one topic, scattered over the turns so far (all_match)
 *   update   a later sentence overrides an earlier one, the current value is asked (all_match)
 *   rule     examples "thing: kind" over two turns, then a new thing (few-shot; accuracy)
 *   summary  the sentences of one tagged report among those of others (Rouge-L's recall)
 *
 * The evidence of question j is cut over a set of turns up to j; the sizes of these sets go round
 * with the sample's index, so all occur. The rest is prose that says nothing, and evidence of other
 * things. Size is in sentences of prose, shared out evenly over the turns.
 *
 * What it does not do: the benchmark's own texts; jsonl.c reads files of them. */
#include "eval/turns.h"

#include "base/strbuf.h"
#include "eval/prose.h"
#include "eval/rng.h"
#include "eval/words.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define EVIDENCE_MAX 48u /* maximum evidence sentences of one turn */
#define N_DECOY      6u  /* sentences of each turn about other things */
#define N_THING      64u

enum turns_kind { KIND_FACTS, KIND_HOP, KIND_COLLECT, KIND_UPDATE, KIND_RULE, KIND_SUMMARY };

struct shape {
    const char *name;
    enum turns_kind kind;
    uint32_t n_turn, n_tok;
};

/* Turns and mean tokens of the data sets, as the paper lists them. */
static const struct shape shapes[] = {
    {"facts", KIND_FACTS, 3, 0},
    {"hop", KIND_HOP, 3, 0},
    {"collect", KIND_COLLECT, 3, 0},
    {"update", KIND_UPDATE, 3, 0},
    {"rule", KIND_RULE, 2, 0},
    {"summary", KIND_SUMMARY, 2, 0},
    {"like_narrativeqa", KIND_FACTS, 3, 30546},
    {"like_qasper", KIND_FACTS, 3, 5434},
    {"like_multifieldqa_en", KIND_FACTS, 3, 7280},
    {"like_hotpotqa", KIND_HOP, 3, 13847},
    {"like_2wikimqa", KIND_HOP, 3, 7471},
    {"like_musique", KIND_HOP, 3, 16588},
    {"like_multinews", KIND_SUMMARY, 2, 2376},
    {"like_govreport", KIND_SUMMARY, 2, 9324},
    {"like_qmsum", KIND_SUMMARY, 2, 12780},
    {"like_trec", KIND_RULE, 2, 2294},
    {"like_samsum", KIND_RULE, 2, 3114},
};

#define N_SHAPE (sizeof shapes / sizeof shapes[0])

static const char *const attributes[] = {"code", "price", "weight", "age", "number", "rank"};
static const char *const places[] = {"begin", "middle", "end"};

const char *turns_name(uint32_t i)
{
    return i < N_SHAPE ? shapes[i].name : NULL;
}

const char *turns_place(uint32_t i)
{
    return i < sizeof places / sizeof places[0] ? places[i] : NULL;
}

static const struct shape *find_shape(const char *name)
{
    for (size_t i = 0; i < N_SHAPE; i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

uint32_t turns_ctx(const char *name)
{
    const struct shape *s = find_shape(name);
    return s ? s->n_tok : 0;
}

/* ---- A conversation before its prose ---- */

struct planned_turn {
    struct strlist evidence;
    struct strbuf question, prefix;
    struct strlist expected;
};

struct plan {
    const struct shape *shape;
    struct planned_turn turn[TASK_TURN_MAX];
    uint32_t thing[N_THING], n_thing; /* drawn nouns, each for one thing */
    uint32_t subset;                  /* turns over which evidence is cut */
    struct rng rng;
};

static void plan_deinit(struct plan *p)
{
    for (uint32_t t = 0; t < p->shape->n_turn; t++) {
        strlist_deinit(&p->turn[t].evidence);
        strlist_deinit(&p->turn[t].expected);
        strbuf_deinit(&p->turn[t].question);
        strbuf_deinit(&p->turn[t].prefix);
    }
}

static bool plan_failed(const struct plan *p)
{
    bool failed = false;
    for (uint32_t t = 0; t < p->shape->n_turn; t++)
        failed |= p->turn[t].evidence.failed || p->turn[t].expected.failed ||
                  p->turn[t].question.failed || p->turn[t].prefix.failed;
    return failed;
}

/* "the brave otter": a new thing each time. */
static void name_thing(struct plan *p, char name[64])
{
    assert(p->n_thing < N_THING);
    snprintf(name, 64, "the %s %s",
             words_adjective((uint32_t)rng_below(&p->rng, words_n_adjective())),
             words_noun(p->thing[p->n_thing++], NULL));
}

static const char *draw_attribute(struct plan *p)
{
    return attributes[rng_below(&p->rng, sizeof attributes / sizeof attributes[0])];
}

static unsigned draw_value(struct plan *p)
{
    return 10000u + (unsigned)rng_below(&p->rng, 90000);
}

/* The turn, at most `turn`, that holds piece `piece` of the evidence. */
static struct planned_turn *turn_of_piece(struct plan *p, uint32_t turn, uint32_t piece,
                                          uint32_t n_piece)
{
    uint32_t chosen[TASK_TURN_MAX];
    uint32_t n = 1 + p->subset % (turn + 1);
    if (n > n_piece) n = n_piece;
    /* All pieces of a question use the same turns: drawn from a copy of the stream. */
    struct rng r = p->rng;
    rng_sample_sorted(&r, chosen, n, turn + 1);
    return &p->turn[chosen[piece * n / n_piece]];
}

static void plan_fact(struct plan *p, uint32_t t)
{
    char name[64];
    name_thing(p, name);
    const char *attribute = draw_attribute(p);
    const unsigned value = draw_value(p);
    strlist_addf(&turn_of_piece(p, t, 0, 1)->evidence, "The %s of %s is %u.", attribute, name,
                 value);
    strbuf_addf(&p->turn[t].question, "What is the %s of %s?", attribute, name);
    strbuf_addf(&p->turn[t].prefix, "The %s of %s is", attribute, name);
    strlist_addf(&p->turn[t].expected, "%u", value);
    rng_next(&p->rng); /* the next question's evidence is in other turns */
}

static void plan_hop(struct plan *p, uint32_t t)
{
    char name[64], alias[64];
    name_thing(p, name);
    name_thing(p, alias);
    const char *attribute = draw_attribute(p);
    const unsigned value = draw_value(p);
    strlist_addf(&turn_of_piece(p, t, 0, 2)->evidence, "The keeper of %s is %s.", name, alias);
    strlist_addf(&turn_of_piece(p, t, 1, 2)->evidence, "The %s of %s is %u.", attribute, alias,
                 value);
    strbuf_addf(&p->turn[t].question, "What is the %s of the keeper of %s?", attribute, name);
    strbuf_addf(&p->turn[t].prefix, "The %s of the keeper of %s is", attribute, name);
    strlist_addf(&p->turn[t].expected, "%u", value);
    rng_next(&p->rng);
}

static void plan_collect(struct plan *p, uint32_t t)
{
    const uint32_t n_piece = 3;
    char topic[64];
    name_thing(p, topic);
    for (uint32_t i = 0; i < n_piece; i++) {
        const unsigned value = draw_value(p);
        strlist_addf(&p->turn[t].expected, "%u", value);
    }
    for (uint32_t i = 0; i < n_piece && p->turn[t].expected.n == n_piece; i++)
        strlist_addf(&turn_of_piece(p, t, i, n_piece)->evidence,
                     "One of the numbers that belong to %s is %s.", topic,
                     p->turn[t].expected.item[i]);
    strbuf_addf(&p->turn[t].question, "Which three numbers belong to %s?", topic);
    strbuf_addf(&p->turn[t].prefix, "The three numbers that belong to %s are", topic);
    rng_next(&p->rng);
}

/* Things of the first turn get new values in later ones. */
static void plan_update(struct plan *p, uint32_t t)
{
    if (t == 0) {
        plan_fact(p, t);
        return;
    }
    char name[64];
    name_thing(p, name);
    const char *attribute = draw_attribute(p);
    const unsigned old = draw_value(p), value = draw_value(p);
    strlist_addf(&p->turn[rng_below(&p->rng, t)].evidence, "The %s of %s is %u.", attribute, name,
                 old);
    strlist_addf(&p->turn[t].evidence, "From now on the %s of %s is %u.", attribute, name, value);
    strbuf_addf(&p->turn[t].question, "What is the %s of %s now?", attribute, name);
    strbuf_addf(&p->turn[t].prefix, "The %s of %s is now", attribute, name);
    strlist_addf(&p->turn[t].expected, "%u", value);
}

/* Examples in both turns; the same question twice, so that the second answer may be better. */
static void plan_rule(struct plan *p, uint32_t t)
{
    const uint32_t n_example = 20;
    uint32_t category;
    for (uint32_t i = 0; i < n_example; i++) {
        const char *noun = words_noun(p->thing[p->n_thing++], &category);
        strlist_addf(&p->turn[t].evidence, "Thing: %s. Kind: %s.", noun, words_category(category));
    }
    const char *asked = words_noun(p->thing[N_THING - 1], &category);
    strbuf_addf(&p->turn[t].question, "Which kind is this? Thing: %s.", asked);
    strbuf_adds(&p->turn[t].prefix, "Kind:");
    strlist_add(&p->turn[t].expected, words_category(category));
}

/* Sentences with the tag are the report; they are the reference, in order. */
static void plan_summary(struct plan *p, uint32_t t)
{
    const uint32_t n_piece = 5;
    struct strbuf reference = {0};
    char tag[64];
    name_thing(p, tag);
    for (uint32_t i = 0; i < n_piece; i++) {
        const char *verb = words_verb((uint32_t)rng_below(&p->rng, words_n_verb()));
        const char *noun = words_noun((uint32_t)rng_below(&p->rng, words_n_noun()), NULL);
        struct planned_turn *turn = &p->turn[i * (t + 1) / n_piece];
        strlist_addf(&turn->evidence, "Report on %s: they had to %s the %s.", tag, verb, noun);
        strbuf_addf(&reference, "%sthey had to %s the %s.", i ? " " : "", verb, noun);
    }
    strbuf_addf(&p->turn[t].question, "Summarise all that the text reports on %s.", tag);
    strbuf_addf(&p->turn[t].prefix, "The text reports on %s that", tag);
    p->turn[t].expected.failed |= reference.failed;
    if (reference.data) strlist_add(&p->turn[t].expected, reference.data);
    strbuf_deinit(&reference);
}

static void plan_turn(struct plan *p, uint32_t t)
{
    switch (p->shape->kind) {
    case KIND_FACTS: plan_fact(p, t); break;
    case KIND_HOP: plan_hop(p, t); break;
    case KIND_COLLECT: plan_collect(p, t); break;
    case KIND_UPDATE: plan_update(p, t); break;
    case KIND_RULE: plan_rule(p, t); break;
    case KIND_SUMMARY: plan_summary(p, t); break;
    }
}

static void plan_init(struct plan *p, const struct shape *shape, const struct task_cell *cell,
                      uint64_t seed)
{
    *p = (struct plan){.shape = shape, .subset = cell->index};
    p->rng = rng_stream(shape->name, cell->ctx, seed, cell->index);
    rng_sample(&p->rng, p->thing, N_THING, words_n_noun());
    for (uint32_t t = 0; t < shape->n_turn; t++) plan_turn(p, t);
    if (shape->kind == KIND_RULE || shape->kind == KIND_SUMMARY) return;
    for (uint32_t t = 0; t < shape->n_turn; t++)
        for (uint32_t i = 0; i < N_DECOY; i++) {
            char name[64];
            name_thing(p, name);
            strlist_addf(&p->turn[t].evidence, "The %s of %s is %u.", draw_attribute(p), name,
                         draw_value(p));
        }
}

/* ---- The text ---- */

struct build {
    const struct plan *plan;
    const struct task_cell *cell;
    enum metric metric;
};

static enum metric metric_of(enum turns_kind kind)
{
    if (kind == KIND_RULE) return METRIC_CLASSIFICATION;
    return kind == KIND_SUMMARY ? METRIC_ROUGE_L_RECALL : METRIC_ALL_MATCH;
}

/* The order of sentences `first` to `last` of the turn: its evidence, in order, at drawn places
 * among prose. */
struct sentence_order {
    uint32_t at[EVIDENCE_MAX], n, n_all;
};

static void add_sentences(struct strbuf *out, struct rng *r, const struct strlist *evidence,
                          const struct sentence_order *o, uint32_t first, uint32_t last)
{
    uint32_t next = 0;
    while (next < o->n && o->at[next] < first) next++;
    for (uint32_t i = first; i < last; i++) {
        if (next < o->n && o->at[next] == i)
            strbuf_adds(out, evidence->item[next++]);
        else
            prose_sentence(out, r);
        strbuf_adds(out, i % 8 == 7 ? "\n\n" : " ");
    }
}

/* Returns the offset at which the text after the documents begins: the question, or the request to
 * answer it. */
static size_t add_user(struct strbuf *out, struct rng *r, const struct planned_turn *turn,
                       const char *place, uint32_t n_prose)
{
    struct sentence_order o = {.n = (uint32_t)turn->evidence.n};
    o.n_all = o.n + n_prose;
    assert(o.n <= EVIDENCE_MAX);
    rng_sample_sorted(r, o.at, o.n, o.n_all);
    const bool begin = strcmp(place, "begin") == 0, end = strcmp(place, "end") == 0;
    const uint32_t cut = begin ? 0 : end ? o.n_all : o.n_all / 2;
    add_sentences(out, r, &turn->evidence, &o, 0, cut);
    if (!begin) strbuf_adds(out, "\n\n");
    const size_t question_at = out->n;
    strbuf_addf(out, "Question: %s\n\n", turn->question.data);
    add_sentences(out, r, &turn->evidence, &o, cut, o.n_all);
    if (!end) strbuf_adds(out, "\n\n");
    const size_t call_at = out->n;
    strbuf_adds(out, "Answer the question with the help of all texts so far.");
    return end ? question_at : call_at;
}

static sac_status build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct build *b = arg;
    const struct plan *p = b->plan;
    /* Not the plan's own stream, because the size must not change what is asked. */
    struct rng r = p->rng;
    out->metric = b->metric;
    for (uint32_t c = 0; b->metric == METRIC_CLASSIFICATION && c < WORDS_N_CATEGORY; c++)
        strlist_add(&out->classes, words_category(c));
    bool failed = out->classes.failed;
    for (uint32_t t = 0; t < p->shape->n_turn; t++) {
        struct strbuf user = {0};
        struct task_turn *turn = task_add_turn(out);
        turn->question_at = add_user(&user, &r, &p->turn[t], b->cell->place, size);
        turn->user = strbuf_detach(&user, NULL);
        struct strbuf prefix = {0};
        strbuf_adds(&prefix, p->turn[t].prefix.data);
        turn->prefix = strbuf_detach(&prefix, NULL);
        for (size_t i = 0; i < p->turn[t].expected.n; i++)
            strlist_add(&turn->expected, p->turn[t].expected.item[i]);
        turn->new_tok = p->shape->kind == KIND_SUMMARY ? 128 : 32;
        turn->first_line = p->shape->kind == KIND_RULE;
        failed |= !turn->user || !turn->prefix || turn->expected.failed;
    }
    return failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a conversation") : SAC_OK;
}

sac_status turns_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err)
{
    const struct turns_args *a = arg;
    struct plan p;
    const struct shape *shape = find_shape(cell->task);
    assert(shape && cell->place[0]);
    plan_init(&p, shape, cell, a->seed);
    const struct build b = {.plan = &p, .cell = cell, .metric = metric_of(shape->kind)};
    const struct task_builder builder = {.build = build, .arg = &b, .size_min = 4};
    const sac_status status = plan_failed(&p)
                                  ? error_set(err, SAC_ERR_MEMORY, "out of memory for a plan")
                                  : task_fit(t, &builder, cell->ctx, out, err);
    plan_deinit(&p);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "%s", cell->task);
}
