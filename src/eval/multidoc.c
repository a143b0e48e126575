/* multidoc.c: see the header. After SamKV's setting (many passages, a question that needs one or
 * two of them), with invented facts in prose that says nothing.
 *
 * Each document holds facts of its own things in all three parts, so that a part's place alone
 * gives nothing away; the one that is asked for stands in the part that the cell names. Every
 * document draws from streams of its own, so that what one says changes no other. */
#include "eval/multidoc.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/haystack.h"
#include "eval/prose.h"
#include "eval/rng.h"
#include "eval/words.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define N_PART       3u
#define DECOY        400u /* things with this index or a higher one are decoys */
#define SENTENCES    40u  /* sentences by which a document's length is estimated */
#define SENTENCE_MIN 100u /* of the filler: with fewer, documents would resemble each other */
#define NOBODY       UINT32_MAX

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

/* ---- Fillers ---- */

sac_status multidoc_filler_init(struct multidoc_filler *f, const char *text, size_t n,
                                sac_error *err)
{
    *f = (struct multidoc_filler){.text = mem_strndup(text, n)};
    if (!f->text) return error_set(err, SAC_ERR_MEMORY, "out of memory for a text");
    const sac_status status = haystack_sentences(&f->sentence, &f->n_sentence, text, n, err);
    if (status == SAC_OK && f->n_sentence >= SENTENCE_MIN) return SAC_OK;
    const size_t n_sentence = f->n_sentence;
    multidoc_filler_deinit(f);
    if (status != SAC_OK) return status;
    return error_set(err, SAC_ERR_ARG, "%zu sentences: documents need a text of at least %u",
                     n_sentence, SENTENCE_MIN);
}

void multidoc_filler_deinit(struct multidoc_filler *f)
{
    mem_free(f->text);
    mem_free(f->sentence);
    *f = (struct multidoc_filler){0};
}

/* ---- Question and facts ---- */

struct thing {
    const char *adjective, *noun;
};

/* "brave otter": things of a sample differ; the index tells which it is. */
static struct thing thing_of(uint32_t first, uint32_t i)
{
    return (struct thing){words_adjective((first / 7 + i) % words_n_adjective()),
                          words_noun((first + i) % words_n_noun(), NULL)};
}

struct build {
    const struct multidoc_args *args;
    const struct multidoc_cell *cell;
    const sac_model *model;
    struct multidoc *out;
    bool hop;
    uint32_t part; /* the part that has the evidence */
    uint32_t n_tok[MULTIDOC_MAX];
    uint32_t copy_of[MULTIDOC_MAX];                  /* NOBODY: it is no copy */
    uint32_t distractor[MULTIDOC_MAX], n_distractor; /* documents */
    struct thing thing, keeper, other; /* `other` is a thing similar to the one that is asked for */
    uint32_t attribute;
    unsigned value;
};

static bool has_evidence(const struct build *b, uint32_t d)
{
    return d == b->out->evidence[1] || (b->hop && d == b->out->evidence[0]);
}

static uint32_t distractor_of(const struct build *b, uint32_t d)
{
    uint32_t i = 0;
    while (i < b->n_distractor && b->distractor[i] != d) i++;
    return i < b->n_distractor ? i : NOBODY;
}

static unsigned draw_value(struct rng *r)
{
    return 10000u + (unsigned)rng_below(r, 90000);
}

/* A sentence that almost answers the question: the attribute of a similar thing, or another
 * attribute of the thing. */
static void add_distractor(struct strbuf *out, const struct build *b, uint32_t i)
{
    struct rng r = rng_stream("docs_distractor", i, b->args->seed, b->cell->index);
    const struct thing asked = b->hop ? b->keeper : b->thing;
    const struct thing t = i % 2 ? asked : b->other;
    strbuf_addf(out, " The %s of the %s %s is %u.",
                attributes[(b->attribute + i % 2) % N(attributes)], t.adjective, t.noun,
                draw_value(&r));
}

/* The facts of part `part` of document `d`. */
static void add_facts(struct strbuf *out, const struct build *b, uint32_t d, uint32_t part,
                      struct rng *r)
{
    /* The decoy is drawn first, whether or not evidence follows, so that places differ in nothing
     * else. */
    const struct thing decoy = thing_of(DECOY + N_PART * d + part, 0);
    const char *attribute = attributes[rng_below(r, N(attributes))];
    const uint32_t distractor = distractor_of(b, d);
    strbuf_addf(out, " The %s of the %s %s is %u.", attribute, decoy.adjective, decoy.noun,
                draw_value(r));
    if (part != b->part) return;
    if (distractor != NOBODY) add_distractor(out, b, distractor);
    if (b->hop && d == b->out->evidence[0])
        strbuf_addf(out, " The keeper of the %s %s is the %s %s.", b->thing.adjective,
                    b->thing.noun, b->keeper.adjective, b->keeper.noun);
    const struct thing asked = b->hop ? b->keeper : b->thing;
    if (d == b->out->evidence[1])
        strbuf_addf(out, " The %s of the %s %s is %u.", attributes[b->attribute], asked.adjective,
                    asked.noun, b->value);
}

/* ---- One document ---- */

/* The source of a document's sentences: the generator, or a passage of the filler. */
struct voice {
    struct rng r;
    const struct multidoc_filler *filler;
    size_t at;
};

static struct voice voice_of(const struct build *b, uint32_t d)
{
    struct voice v = {.r = rng_stream("docs_prose", d, b->args->seed, b->cell->index)};
    if (d % 2 == 0 || !b->args->filler) return v;
    v.filler = b->args->filler;
    v.at = (size_t)rng_below(&v.r, v.filler->n_sentence);
    return v;
}

static void speak(struct strbuf *out, struct voice *v, uint32_t n_sentence)
{
    if (!v->filler) {
        prose_paragraph(out, &v->r, n_sentence);
        return;
    }
    for (uint32_t i = 0; i < n_sentence; i++) {
        const struct multidoc_filler *f = v->filler;
        const size_t begin = f->sentence[v->at];
        v->at = (v->at + 1) % f->n_sentence;
        size_t end = v->at ? f->sentence[v->at] : strlen(f->text);
        while (end > begin && strchr(" \t\r\n\f", f->text[end - 1])) end--;
        if (i > 0) strbuf_adds(out, " ");
        strbuf_add(out, f->text + begin, end - begin);
    }
}

static void write_document(struct strbuf *out, const struct build *b, uint32_t d,
                           uint32_t n_sentence)
{
    struct voice v = voice_of(b, d);
    struct rng facts = rng_stream("docs_decoys", d, b->args->seed, b->cell->index);
    strbuf_adds(out, "Document:\n");
    for (uint32_t part = 0; part < N_PART; part++) {
        /* Evidence of the first part comes early in it, that of the last part late, that of the
         * middle part in its middle. */
        const uint32_t n = n_sentence / N_PART + (part < n_sentence % N_PART);
        const uint32_t before = part == 0 ? 1 : part == 1 ? n / 2 : n - 1;
        speak(out, &v, before < n ? before : n);
        add_facts(out, b, d, part, &facts);
        if (before < n) {
            strbuf_adds(out, " ");
            speak(out, &v, n - before);
        }
        strbuf_adds(out, part + 1 < N_PART ? "\n\n" : "");
    }
}

static sac_status try_document(struct strbuf *out, const struct build *b, uint32_t d, uint32_t n,
                               size_t *out_n_tok, sac_error *err)
{
    int32_t *tok = NULL;
    strbuf_deinit(out);
    *out = (struct strbuf){0};
    write_document(out, b, d, n);
    if (out->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for documents");
    TRY(sac_tokenize(b->model, out->data, out->n, 0, &tok, out_n_tok, err));
    sac_free(tok);
    return SAC_OK;
}

/* Builds the document from the number of sentences whose tokens come closest to the wanted number:
 * estimated, then corrected by the result. Documents of different places get the same sentences,
 * and their lengths differ by the tokens of a fact at most. */
static sac_status make_document(struct build *b, uint32_t d, sac_error *err)
{
    struct strbuf text = {0};
    size_t n_tok = 0;
    uint32_t n = SENTENCES;
    struct build plain = *b;
    plain.part = NOBODY; /* without the facts in which places differ */
    sac_status status = SAC_OK;
    for (int round = 0; status == SAC_OK && round < 3; round++) {
        status = try_document(&text, &plain, d, n, &n_tok, err);
        const uint64_t next = (uint64_t)n * b->n_tok[d] / (n_tok ? n_tok : 1);
        n = next < N_PART ? N_PART : (uint32_t)next;
    }
    if (status == SAC_OK) status = try_document(&text, b, d, n, &n_tok, err);
    b->out->document[d] = status == SAC_OK ? strbuf_detach(&text, NULL) : NULL;
    strbuf_deinit(&text);
    if (status == SAC_OK && !b->out->document[d])
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for documents");
    return status;
}

/* ---- All documents ---- */

/* Draws which documents hold evidence, which almost answer the question, and which occur twice. */
static void draw_roles(struct build *b, struct rng *r)
{
    const uint32_t n = b->args->n_document;
    uint32_t order[MULTIDOC_MAX], n_free = 0, role = 0;
    for (uint32_t d = 0; d < n; d++) order[d] = d;
    rng_shuffle(r, order, n);
    b->out->evidence[1] = order[0];
    b->out->evidence[0] = order[n > 1 ? 1 : 0];
    for (uint32_t d = 0; d < n; d++) b->copy_of[d] = NOBODY;
    for (uint32_t i = 0; i < n; i++)
        if (!has_evidence(b, order[i])) order[n_free++] = order[i];
    while (role < n_free && role < b->args->n_distractor) b->distractor[role] = order[role], role++;
    b->n_distractor = role;
    /* Pairs of a document and its copy. */
    for (uint32_t i = 0; i < b->args->n_duplicate && role + 2 <= n_free; i++, role += 2)
        b->copy_of[order[role]] = order[role + 1];
}

static void draw(struct build *b)
{
    const uint32_t n = b->args->n_document;
    struct rng r = rng_stream(b->cell->task, n, b->args->seed, b->cell->index);
    const uint32_t first = (uint32_t)rng_below(&r, DECOY - 10); /* below the decoys */
    uint64_t sum = 0;
    draw_roles(b, &r);
    b->thing = thing_of(first, 0);
    b->keeper = thing_of(first, 5);
    b->other = (struct thing){thing_of(first, 9).adjective, (b->hop ? b->keeper : b->thing).noun};
    b->attribute = (uint32_t)rng_below(&r, N(attributes));
    b->value = draw_value(&r);
    for (uint32_t d = 0; d < n; d++)
        sum += b->n_tok[d] = 700 + (uint32_t)rng_below(&r, 601); /* 70 to 130 percent of the mean */
    for (uint32_t d = 0; d < n; d++)
        b->n_tok[d] = (uint32_t)((uint64_t)b->n_tok[d] * b->args->n_tok * n / sum);
}

static void ask(const struct build *b)
{
    const char *of = b->hop ? "keeper of the " : "", *attribute = attributes[b->attribute];
    struct multidoc *m = b->out;
    snprintf(m->question, sizeof m->question, "Question: What is the %s of the %s%s %s?", attribute,
             of, b->thing.adjective, b->thing.noun);
    snprintf(m->prefix, sizeof m->prefix, "The %s of the %s%s %s is", attribute, of,
             b->thing.adjective, b->thing.noun);
    snprintf(m->expected, sizeof m->expected, "%u", b->value);
}

sac_status multidoc_make(struct multidoc *out, const struct multidoc_args *args,
                         const struct multidoc_cell *cell, const sac_model *model, sac_error *err)
{
    struct build b = {.args = args,
                      .cell = cell,
                      .model = model,
                      .out = out,
                      .hop = strcmp(cell->task, "docs_hop") == 0};
    *out = (struct multidoc){.n = args->n_document};
    while (b.part < N_PART && strcmp(places[b.part], cell->place) != 0) b.part++;
    assert(b.part < N_PART);
    if (args->n_document == 0 || args->n_document > MULTIDOC_MAX)
        return error_set(err, SAC_ERR_ARG, "%u documents: 1 to %u are possible", args->n_document,
                         MULTIDOC_MAX);
    draw(&b);
    ask(&b);
    sac_status status = SAC_OK;
    for (uint32_t d = 0; status == SAC_OK && d < out->n; d++)
        if (b.copy_of[d] == NOBODY) status = make_document(&b, d, err);
    for (uint32_t d = 0; status == SAC_OK && d < out->n; d++) {
        if (b.copy_of[d] == NOBODY) continue;
        const char *from = out->document[b.copy_of[d]];
        out->document[d] = mem_strndup(from, strlen(from));
        if (!out->document[d])
            status = error_set(err, SAC_ERR_MEMORY, "out of memory for documents");
    }
    if (status != SAC_OK) multidoc_deinit(out);
    return status;
}

void multidoc_deinit(struct multidoc *m)
{
    for (uint32_t d = 0; d < MULTIDOC_MAX; d++) mem_free(m->document[d]);
    *m = (struct multidoc){0};
}
