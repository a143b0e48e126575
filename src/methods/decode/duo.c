/* duo.c: some heads keep everything, the others sinks and a window, DuoAttention (Xiao et al., ICLR
 * 2025).
 *
 * The paper learns a gate for each KV head by training on synthetic passkeys. Here a head's gate is
 * measured once per prompt, at its end: the share of the attention of its last `window` rows that
 * lies between sinks and recent tokens. Heads above `gate` are retrieval heads and read everything,
 * the others drop what streaming drops. This measures what a head does with this prompt, not what
 * it could do; a head that would look back only later is a streaming head here. The sparsity
 * follows from `gate` and is not set. */
#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"

enum role { UNKNOWN, RETRIEVAL, STREAMING };

#define PARAMS(P)                                                                                  \
    P(SHARE, gate, "0.2",                                                                          \
      "share of attention outside sinks and recent tokens above which a head reads everything")    \
    P(TOKENS, sink, "128", 0, 4096, "first tokens, read by the other heads")                       \
    P(TOKENS, recent, "256", 1, 65536, "most recent tokens, read by the other heads")              \
    P(COUNT, window, "32", 1, 1024, "last prompt tokens whose attention is measured")
METHOD_PARAMS(duo, PARAMS)

struct duo_state {
    uint32_t role;
};

static size_t duo_state_bytes(const struct method_shape *s, const void *param)
{
    (void)s;
    (void)param;
    return sizeof(struct duo_state);
}

static size_t duo_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL);
}

static uint32_t duo_past_rows(const struct method_shape *s, const void *param)
{
    const struct duo_param *set = param;
    (void)s;
    return set->window;
}

/* Classifies the lane's head by the attention of rows begin .. pos - 1. What is recent to the first
 * of these rows counts as recent for all of them. False: not finite. */
static bool find_role(const struct method_lane *l, struct duo_state *s, uint32_t begin)
{
    const struct duo_param *set = l->param;
    const uint32_t sink = set->sink, recent = set->recent;
    struct observe o;
    double far = 0, all = 0;
    observe_make(&o, l->shape, l->scratch);
    if (!observe_rows(&o, l, begin, l->pos)) return false;
    for (uint32_t t = 0; t < l->pos; t++) {
        all += (double)o.sum[t];
        if (t >= sink && t + recent < begin) far += (double)o.sum[t];
    }
    s->role = far > set->gate * all ? RETRIEVAL : STREAMING;
    return true;
}

static void duo_select(const struct method_lane *l, struct method_pick *out)
{
    const struct duo_param *set = l->param;
    const uint32_t sink = set->sink, recent = set->recent;
    const uint32_t window = set->window;
    struct duo_state *s = l->state;
    const uint32_t begin = max_u32(l->past.begin, l->pos > window ? l->pos - window : 0);
    if (sink + recent > l->pos || set->gate <= 0 || begin == l->pos) {
        pick_dense(out);
        return;
    }
    if (s->role == UNKNOWN) {
        meter_build(l);
        const bool finite = find_role(l, s, begin);
        meter_choose(l);
        if (!finite) {
            pick_not_finite(out);
            return;
        }
    }
    if (s->role == RETRIEVAL)
        pick_dense(out);
    else
        pick_ends(out, l, sink, recent);
}

/* A role stays: a streaming head has evicted what a retrieval head would read. */
static void duo_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    (void)state;
    (void)s;
    (void)param;
    (void)n_tok;
}

static bool duo_sound(const struct method_loaded *l)
{
    return ((const struct duo_state *)l->state)->role <= STREAMING;
}

static const struct method_decode hooks = {
    .state_bytes = duo_state_bytes,
    .scratch_bytes = duo_scratch_bytes,
    .past_rows = duo_past_rows,
    .select = duo_select,
    .cut = duo_cut,
    .sound = duo_sound,
};

static const sac_method_deviation deviations[] = {
    {"a gate for each KV head is trained on synthetic passkeys",
     "it is measured for each prompt: the share of the last rows' attention between sinks and "
     "recent tokens",
     "no training, any model", NULL},
    {"the share of heads that read everything is fixed", "the gate is fixed, and the share follows",
     "it depends on the prompt", NULL},
};

const struct method duo_method = {
    METHOD_DECODE(duo, "retrieval heads read everything, the others sinks and a recent window"),
    .paper = "Xiao et al., DuoAttention: Efficient Long-Context LLM Inference with Retrieval and "
             "Streaming Heads, arXiv 2410.10819",
    .about = "Classifies heads once per prompt, by how much of the attention of its last rows lies "
             "between sinks and recent tokens. The paper trains its gates; these are measured. "
             "Retrieval heads keep all tokens and can answer a question asked late. The others "
             "evict everything but sinks and window, and free those pages.",
    METHOD_DEVIATIONS(deviations),
    .fixed = true,
    .token_grain = true,
    .evicts = true,
    .needs_question = true,
    .facts = {.part = "gate=1,sink=4,recent=40",
              .whole = "gate=0",
              .n_forced = 4 + 39,
              .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
