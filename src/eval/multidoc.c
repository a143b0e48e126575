/* multidoc.c: see the header. After SamKV's setting (many passages, a question that needs one or
 * two of them), with invented facts in prose that says nothing.
 *
 * Each document holds facts of its own things in all three parts, so that a part's place alone
 * gives nothing away; the one that is asked for stands in the part that the cell names. */
#include "eval/multidoc.h"

#include "base/strbuf.h"
#include "eval/prose.h"
#include "eval/rng.h"
#include "eval/words.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define N_PART       3u
#define DOCUMENT_MAX 64u
#define DECOY        400u /* things from here on are decoys */

static const char *const names[] = {"docs_facts", "docs_hop"};
static const char *const places[] = {"first", "middle", "last"};
static const char *const attributes[] = {"code", "price", "weight", "age", "number", "rank"};

#define N(list) (sizeof(list) / sizeof(list)[0])

const char *multidoc_name(uint32_t i)
{
    return i < N(names) ? names[i] : NULL;
}

const char *multidoc_place(uint32_t i)
{
    return i < N(places) ? places[i] : NULL;
}

struct build {
    const struct multidoc_args *args;
    const struct task_cell *cell;
    bool hop;
    uint32_t part; /* of the evidence */
};

/* "brave otter": all of a sample differ, the index says which. */
static void name_thing(char name[64], uint32_t first, uint32_t i)
{
    snprintf(name, 64, "%s %s", words_adjective((first / 7 + i) % words_n_adjective()),
             words_noun((first + i) % words_n_noun(), NULL));
}

struct asked {
    struct rng decoys;
    uint32_t length[DOCUMENT_MAX], length_sum; /* of the documents, in proportion */
    char thing[64], keeper[64];
    const char *attribute;
    unsigned value;
    uint32_t document[2]; /* of the keeper's name, and of the value */
};

/* What part `part` of document `d` says beside prose. */
static void add_facts(struct strbuf *out, struct asked *q, const struct build *b, uint32_t d,
                      uint32_t part)
{
    char name[64];
    /* A decoy first, drawn whether or not evidence follows: places differ in nothing else. */
    name_thing(name, DECOY + N_PART * d + part, 0);
    const char *attribute = attributes[rng_below(&q->decoys, N(attributes))];
    strbuf_addf(out, " The %s of the %s is %u.", attribute, name,
                10000u + (unsigned)rng_below(&q->decoys, 90000));
    if (part != b->part) return;
    if (b->hop && d == q->document[0])
        strbuf_addf(out, " The keeper of the %s is the %s.", q->thing, q->keeper);
    if (d == q->document[1])
        strbuf_addf(out, " The %s of the %s is %u.", q->attribute, b->hop ? q->keeper : q->thing,
                    q->value);
}

/* Its prose comes from a stream of its own, so that one sentence more changes none before it. */
static void add_document(struct strbuf *out, struct asked *q, const struct build *b, uint32_t d,
                         uint32_t n_sentence)
{
    struct rng r = rng_stream("docs_prose", d, b->args->seed, b->cell->index);
    strbuf_addf(out, "Document %u:\n", d + 1);
    for (uint32_t part = 0; part < N_PART; part++) {
        /* Evidence of the first part stands early, of the last late, of the middle in its middle.
         */
        const uint32_t n = n_sentence / N_PART + (part < n_sentence % N_PART);
        const uint32_t before = part == 0 ? 1 : part == 1 ? n / 2 : n - 1;
        prose_paragraph(out, &r, before < n ? before : n);
        add_facts(out, q, b, d, part);
        if (before < n) {
            strbuf_adds(out, " ");
            prose_paragraph(out, &r, n - before);
        }
        strbuf_adds(out, "\n\n");
    }
}

static void draw(struct asked *q, struct rng *r, const struct build *b)
{
    const uint32_t n = b->args->n_document;
    const uint32_t first = (uint32_t)rng_below(r, DECOY - 10); /* below the decoys */
    uint32_t two[2] = {0, 0};
    rng_sample(r, two, n > 1 ? 2 : 1, n);
    q->document[1] = two[0];
    q->document[0] = n > 1 ? two[1] : 0;
    name_thing(q->thing, first, 0);
    name_thing(q->keeper, first, 5);
    q->attribute = attributes[rng_below(r, N(attributes))];
    q->value = 10000u + (unsigned)rng_below(r, 90000);
    for (uint32_t d = 0; d < n; d++) {
        q->length[d] = 700 + (uint32_t)rng_below(r, 601); /* 70 to 130 percent of the mean */
        q->length_sum += q->length[d];
    }
    q->decoys = *r;
}

static sac_status build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct build *b = arg;
    struct rng r = rng_stream(b->cell->task, b->cell->ctx, b->args->seed, b->cell->index);
    struct asked q = {0};
    struct strbuf user = {0}, prefix = {0};
    draw(&q, &r, b);
    strbuf_adds(&user, "Read the documents, then answer the question.\n\n");
    for (uint32_t d = 0; d < b->args->n_document; d++) {
        const uint32_t n = (uint32_t)((uint64_t)size * q.length[d] / q.length_sum);
        add_document(&user, &q, b, d, n < N_PART ? N_PART : n);
    }
    const char *of = b->hop ? "keeper of the " : "";
    const size_t question_at = user.n;
    strbuf_addf(&user, "Question: What is the %s of the %s%s?", q.attribute, of, q.thing);
    strbuf_addf(&prefix, "The %s of the %s%s is", q.attribute, of, q.thing);
    struct task_turn *turn = task_add_turn(out);
    const bool failed = user.failed || prefix.failed;
    out->metric = METRIC_ALL_MATCH;
    turn->user = strbuf_detach(&user, NULL);
    turn->question_at = question_at;
    turn->prefix = strbuf_detach(&prefix, NULL);
    turn->new_tok = 32;
    strlist_addf(&turn->expected, "%u", q.value);
    if (failed || !turn->user || !turn->prefix || turn->expected.failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for documents");
    return SAC_OK;
}

sac_status multidoc_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                         struct task_sample *out, sac_error *err)
{
    struct build b = {.args = arg, .cell = cell, .hop = strcmp(cell->task, "docs_hop") == 0};
    while (b.part < N_PART && strcmp(places[b.part], cell->place) != 0) b.part++;
    assert(b.part < N_PART);
    if (b.args->n_document == 0 || b.args->n_document > DOCUMENT_MAX)
        return error_set(err, SAC_ERR_ARG, "%u documents: 1 to %u are possible", b.args->n_document,
                         DOCUMENT_MAX);
    const struct task_builder builder = {.build = build, .arg = &b, .size_min = N_PART};
    return task_fit(t, &builder, cell->ctx, out, err);
}
