/* ruler_task.h: what the files ruler_*.c share: each family of tasks is one builder. */
#ifndef SAC_EVAL_RULER_TASK_H
#define SAC_EVAL_RULER_TASK_H

#include "base/strbuf.h"
#include "eval/rng.h"
#include "eval/ruler.h"

enum ruler_haystack { RULER_NOISE, RULER_ESSAY, RULER_NEEDLES };
enum ruler_kind { RULER_WORD, RULER_NUMBER, RULER_UUID };

struct ruler_spec {
    const char *name;
    sac_status (*build)(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
    uint32_t new_tok, size_min;
    enum metric metric;
    /* Of the needle tasks: the haystack; types of keys and values; numbers of keys, of values per
     * key, and of keys that are asked for. */
    enum ruler_haystack haystack;
    enum ruler_kind key, value;
    uint32_t n_key, n_value, n_query;
};

/* `arg` of a builder. */
struct ruler_draw {
    const struct ruler_spec *spec;
    const struct ruler_args *args;
    const struct task_cell *cell;
};

/* The sample's stream, from its start: samples of different sizes differ in nothing else. */
struct rng ruler_rng(const struct ruler_draw *d);
/* The result of a builder. */
struct ruler_text {
    struct strbuf user, prefix;
    size_t question_at; /* as in struct task_turn */
    struct strlist expected;
};
void ruler_text_deinit(struct ruler_text *t);
/* Turns `t`, which becomes empty, into the sample's only turn. */
sac_status ruler_finish(const struct ruler_draw *d, struct task_sample *out, struct ruler_text *t,
                        sac_error *err);

sac_status ruler_niah_build(const void *arg, uint32_t size, struct task_sample *out,
                            sac_error *err);
sac_status ruler_vt_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
sac_status ruler_cwe_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
sac_status ruler_fwe_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
sac_status ruler_qa_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
sac_status ruler_qa_hop_build(const void *arg, uint32_t size, struct task_sample *out,
                              sac_error *err);

#endif
