/* ruler_qa.c: RULER's two question tasks: the paragraphs that hold the answer among others.
 *
 * Deviation: SQuAD (one paragraph) and HotpotQA (two) are replaced by the paragraphs of facts.h,
 * which no model has read. Their other paragraphs come first as distractors, then generated ones.
 */
#include "eval/ruler_task.h"

#include "base/mem.h"
#include "eval/facts.h"
#include "eval/prose.h"

#include <string.h>

#define PROSE_SENTENCES 4u

/* Paragraph number `i`: those of the facts' pairs, each place before its person, then prose. */
static void add_document(struct strbuf *out, struct rng *r, uint32_t i)
{
    if (i >= 2 * facts_n_pair()) {
        prose_paragraph(out, r, PROSE_SENTENCES);
        return;
    }
    const struct fact_pair *p = facts_pair(i / 2);
    strbuf_adds(out, i % 2 ? p->person.text : p->place.text);
}

/* Puts `size` paragraph numbers into `order`, shuffled: the first n_gold of `gold`, then facts in
 * random order, then generated paragraphs. */
static void draw_order(uint32_t *order, uint32_t size, const uint32_t *gold, uint32_t n_gold,
                       struct rng *r)
{
    uint32_t other[64], n = 0, n_other = 0;
    for (uint32_t i = 0; i < 2 * facts_n_pair() && n_other < 64; i++)
        if (i != gold[0] && (n_gold < 2 || i != gold[1])) other[n_other++] = i;
    rng_shuffle(r, other, n_other);
    for (; n < n_gold; n++) order[n] = gold[n];
    for (uint32_t i = 0; n < size; i++, n++)
        order[n] = i < n_other ? other[i] : 2 * facts_n_pair() + i;
    rng_shuffle(r, order, size);
}

static sac_status build(const struct ruler_draw *d, bool two, uint32_t size,
                        struct task_sample *out, sac_error *err)
{
    struct rng r = ruler_rng(d);
    struct ruler_text text = {0};
    /* Samples go through the questions in order, so few questions are repeated. */
    const uint32_t n_question = (two ? 1 : 2) * facts_n_pair();
    const uint32_t first = (uint32_t)rng_hash(&d->args->seed, sizeof d->args->seed) % n_question;
    const uint32_t q = (first + d->cell->index) % n_question;
    const uint32_t gold[2] = {two ? 2 * q : q, 2 * q + 1};
    const struct fact_pair *pair = facts_pair(gold[0] / 2);
    const struct fact *fact = gold[0] % 2 ? &pair->person : &pair->place;
    uint32_t *order = mem_alloc(size * sizeof *order);
    if (!order) return error_set(err, SAC_ERR_MEMORY, "out of memory for documents");
    draw_order(order, size, gold, two ? 2 : 1, &r);
    strbuf_adds(&text.user,
                "Answer the question with the help of the documents. Give the answer only, "
                "without any other words.\n\n");
    for (uint32_t i = 0; i < size; i++) {
        strbuf_addf(&text.user, "Document %u:\n", i + 1);
        add_document(&text.user, &r, order[i]);
        strbuf_adds(&text.user, "\n\n");
    }
    text.question_at = text.user.n;
    strbuf_addf(&text.user, "Question: %s", two ? pair->question : fact->question);
    strbuf_adds(&text.prefix, "Answer:");
    strlist_add(&text.expected, two ? pair->answer : fact->answer);
    mem_free(order);
    const sac_status status = ruler_finish(d, out, &text, err);
    ruler_text_deinit(&text);
    return status;
}

sac_status ruler_qa_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    return build(arg, false, size, out, err);
}

sac_status ruler_qa_hop_build(const void *arg, uint32_t size, struct task_sample *out,
                              sac_error *err)
{
    return build(arg, true, size, out, err);
}
