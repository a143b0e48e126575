/* lfps.h: the parameters of LFPS and its rules, shared by the host (lfps.c) and devices
 * (lfps_device.c); private to these. */
#ifndef SAC_METHODS_DECODE_LFPS_H
#define SAC_METHODS_DECODE_LFPS_H

#include "methods/decode/lfps_table.h"
#include "methods/method_spec.h"

#define LFPS_LOCAL 6u /* the local window of Eq. 5, t-6 .. t-1: always candidates */

#define LFPS_PARAMS(P)                                                                             \
    P(BUDGET, budget, "2%", 1, "tokens read, sinks not counted")                                   \
    P(NUMBER, a, "0.2", 0, 10, "factor of the thresholds: larger, fewer candidates")               \
    P(NUMBER, decay, "0.95", 0.5, 0.999, "factor by which a step decays the tables")               \
    P(SHARE, bypass, "0.85",                                                                       \
      "share of attention on the sinks above which a head reads little else; 1: never")            \
    P(COUNT, past, "32", 1, 1024, "last prompt tokens that fill the tables")                       \
    P(TOKENS, sink, "4", 1, 1024, "first tokens, always read and not in the tables")               \
    P(CHOICE, heads, "query", "query|group", "a pair of tables per query head, or per KV head")    \
    P(CHOICE, rest, "mean", "mean|none",                                                           \
      "what stands for the tokens of a bypassed head: their mean value, or nothing")               \
    P(COUNT, refresh, "0", 0, 1 << 20,                                                             \
      "steps between those in which all tokens are candidates; 0: never")                          \
    P(FLAG, guard, "off",                                                                          \
      "make all tokens candidates when those read hold too little of the attention")
PARAM_STRUCT(lfps, LFPS_PARAMS)

/* Selection on a device. */
extern const struct method_device lfps_device;

static inline struct lfps_rule lfps_rule_of(const struct method_shape *s, const void *param)
{
    const struct lfps_param *set = param;
    return (struct lfps_rule){.n_table = set->heads > 0 ? 1 : s->group,
                              .sink = set->sink,
                              .past = set->past,
                              .decay = set->decay};
}

/* The first token of the local window: it and later ones are always candidates. */
static inline uint32_t lfps_local_begin(const struct method_lane *l)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink;
    return max_u32(l->pos > LFPS_LOCAL ? l->pos - LFPS_LOCAL : 0, sink);
}

/* Whether sinks, local window and budget cover the whole context, so that attention is dense. */
static inline bool lfps_reads_all(const struct method_lane *l)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink;
    return l->pos <= sink + LFPS_LOCAL ||
           method_spec_budget(set->budget, l->pos + 1 - sink) > l->pos - sink;
}

#endif
