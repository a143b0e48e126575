/* compress.h: prompt compression as SnapKV has it: the last rows of the prompt vote once for the
 * tokens that are kept, all that came later is read, and nothing is chosen again. What methods of
 * this kind differ in is how many tokens each head keeps.
 *
 * The vote of a token is its softmax share, summed over the window's rows, mean over the query
 * heads, then pooled along the positions. The first decode row behind a prompt makes the choice;
 * while the context is too short for methods to be asked none is made, and the window moves on with
 * it. */
#ifndef SAC_METHODS_COMPRESS_H
#define SAC_METHODS_COMPRESS_H

#include "methods/method.h"

/* Parameters of such methods: all have the first four, one each of the others. */
struct compress_param {
    struct param_budget budget;
    uint32_t window, kernel;
    uint32_t pool; /* mean, max */
    double alpha;  /* adakv */
    uint32_t beta; /* pyramidkv */
};

/* What the heads of a layer voted, and how many tokens there are to keep. */
struct compress_votes {
    const struct method_lane *lane;
    uint32_t n_tok;  /* candidates: tokens 0 .. n_tok - 1, before the window */
    uint32_t n_keep; /* of them, for the mean head */
    float *all;      /* [n_kv_head, n_tok], where `every_head` was asked for */
};

struct compress_policy {
    bool every_head; /* wants the votes of the layer's other heads */
    /* Tokens that the lane's head keeps, at most n_tok. */
    uint32_t (*keep)(const struct compress_votes *v);
};

/* Where all methods of this kind are not what their papers describe. */
#define COMPRESS_DEVIATIONS                                                                        \
    {"votes and tokens for each query head, keys copied for all of them",                          \
     "one set for a KV head, by the mean of its query heads' shares",                              \
     "keys are stored once for them",                                                              \
     "others report a change of 0.3 points on average in six LongBench tasks"},                    \
        {"the first answer token sees the whole prompt", "it sees the compressed one",             \
         "the choice is made at the first decode row", NULL},                                      \
    {                                                                                              \
        "one prompt",                                                                              \
            "behind a further prompt the rows of that one choose anew among what still lives",     \
            "conversations have several", NULL                                                     \
    }

size_t compress_state_bytes(const struct method_shape *s, const void *param);
size_t compress_scratch_bytes(const struct method_shape *s, const void *param);
uint32_t compress_past_rows(const struct method_shape *s, const void *param);
void compress_see(const struct method_lane *l);
void compress_select(const struct method_lane *l, struct method_pick *out,
                     const struct compress_policy *policy);
void compress_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok);
bool compress_sound(const struct method_loaded *l);

#endif
