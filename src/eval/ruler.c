/* ruler.c: the table of RULER's tasks, and what they share. The builders are in ruler_niah.c,
 * ruler_vt.c, ruler_words.c and ruler_qa.c.
 *
 * Deviations from the original: the wording and the word lists are ours; the random numbers are
 * SplitMix64's; lengths are fitted by bisection; the essays are the user's file, or generated
 * prose; the two QA tasks ask about paragraphs written for this project. */
#include "eval/ruler.h"

#include "base/mem.h"
#include "eval/ruler_task.h"

#include <assert.h>
#include <string.h>

#define NIAH(haystack_, key_, value_, k, v, q)                                                     \
    .build = ruler_niah_build, .new_tok = 128, .metric = METRIC_ALL_MATCH, .size_min = 4,          \
    .haystack = (haystack_), .key = (key_), .value = (value_), .n_key = (k), .n_value = (v),       \
    .n_query = (q)

static const struct ruler_spec specs[] = {
    {"niah_single_1", NIAH(RULER_NOISE, RULER_WORD, RULER_NUMBER, 1, 1, 1)},
    {"niah_single_2", NIAH(RULER_ESSAY, RULER_WORD, RULER_NUMBER, 1, 1, 1)},
    {"niah_single_3", NIAH(RULER_ESSAY, RULER_WORD, RULER_UUID, 1, 1, 1)},
    {"niah_multikey_1", NIAH(RULER_ESSAY, RULER_WORD, RULER_NUMBER, 4, 1, 1)},
    {"niah_multikey_2", NIAH(RULER_NEEDLES, RULER_WORD, RULER_NUMBER, 1, 1, 1)},
    {"niah_multikey_3", NIAH(RULER_NEEDLES, RULER_UUID, RULER_UUID, 1, 1, 1)},
    {"niah_multivalue", NIAH(RULER_ESSAY, RULER_WORD, RULER_NUMBER, 1, 4, 1)},
    {"niah_multiquery", NIAH(RULER_ESSAY, RULER_WORD, RULER_NUMBER, 4, 1, 4)},
    {"vt", ruler_vt_build, .new_tok = 30, .size_min = 10, .metric = METRIC_ALL_MATCH},
    {"cwe", ruler_cwe_build, .new_tok = 120, .size_min = 20, .metric = METRIC_ALL_MATCH},
    {"fwe", ruler_fwe_build, .new_tok = 50, .size_min = 200, .metric = METRIC_ALL_MATCH},
    {"qa_1", ruler_qa_build, .new_tok = 32, .size_min = 1, .metric = METRIC_ANY_MATCH},
    {"qa_2", ruler_qa_hop_build, .new_tok = 32, .size_min = 2, .metric = METRIC_ANY_MATCH},
};

#define N_SPEC (sizeof specs / sizeof specs[0])

static const struct ruler_spec *find(const char *name)
{
    for (size_t i = 0; i < N_SPEC; i++)
        if (strcmp(specs[i].name, name) == 0) return &specs[i];
    return NULL;
}

const char *ruler_name(uint32_t i)
{
    return i < N_SPEC ? specs[i].name : NULL;
}

bool ruler_has(const char *name)
{
    return find(name) != NULL;
}

bool ruler_rules(const char *name, uint32_t *out_new_tok, enum metric *out_metric)
{
    const struct ruler_spec *s = find(name);
    if (!s) return false;
    *out_new_tok = s->new_tok;
    *out_metric = s->metric;
    return true;
}

struct rng ruler_rng(const struct ruler_draw *d)
{
    return rng_stream(d->spec->name, d->cell->ctx, d->args->seed, d->cell->index);
}

void ruler_text_deinit(struct ruler_text *t)
{
    strbuf_deinit(&t->user);
    strbuf_deinit(&t->prefix);
    strlist_deinit(&t->expected);
}

sac_status ruler_finish(const struct ruler_draw *d, struct task_sample *out, struct ruler_text *t,
                        sac_error *err)
{
    const bool failed = t->user.failed || t->prefix.failed || t->expected.failed;
    struct task_turn *turn = task_add_turn(out);
    turn->user = strbuf_detach(&t->user, NULL);
    turn->prefix = strbuf_detach(&t->prefix, NULL);
    turn->question_at = t->question_at;
    turn->expected = t->expected;
    t->expected = (struct strlist){0};
    turn->new_tok = d->spec->new_tok;
    out->metric = d->spec->metric;
    if (failed || !turn->user || !turn->prefix)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a sample of %s", d->spec->name);
    return SAC_OK;
}

sac_status ruler_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err)
{
    const struct ruler_draw d = {.spec = find(cell->task), .args = arg, .cell = cell};
    assert(d.spec);
    const struct task_builder b = {.build = d.spec->build, .arg = &d, .size_min = d.spec->size_min};
    const sac_status status = task_fit(t, &b, cell->ctx, out, err);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "%s", cell->task);
}
