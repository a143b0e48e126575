/* param.h: the parameters of a method, declared once, with types, and what hooks read of them.
 *
 *     #define PARAMS(P)                                                                      \
 *         P(BUDGET, budget, "1024", 1, "tokens that are read, sinks included")               \
 *         P(TOKENS, sink, "4", 0, 4096, "first tokens that are always read")
 *     METHOD_PARAMS(streaming, PARAMS)
 *
 * makes `struct streaming_param` with a member for each, in which hooks find the values
 * (lane->param points to one), and a table, NAME_params, that parsing, help, docs and tests
 * read. A row is a type, a key, the default as one would type it, what the type needs, and a help
 * text:
 *
 *     COUNT    uint32_t              least, most      a whole number of layers, rows, steps ...
 *     TOKENS   uint32_t              least, most      a whole number of tokens
 *     BUDGET   struct param_budget   least            tokens, or a share of the context
 *     SHARE    double                                 from 0 to 1
 *     NUMBER   double                least, most      any other
 *     CHOICE   uint32_t              "first|second"   the place of the one that was named
 *     FLAG     bool                                   "off|on"
 *     PATH     bool                                   of a file: whether there is one (no default)
 *
 * One vocabulary: `sink` are first tokens and `recent` newest ones that are always read, in tokens.
 * Methods that read whole pages round both up to pages and say so. `dense` are first layers that
 * read everything, `mass` is a share of the attention, `budget` what may be chosen (pick.h). */
#ifndef SAC_METHODS_PARAM_H
#define SAC_METHODS_PARAM_H

#include "saccade.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARAM_BYTES      128u /* of its struct */
#define PARAM_BUDGET_MAX (1 << 24)

struct param_budget {
    uint32_t n_tok; /* 0: the share counts */
    double share;   /* of the context */
};

struct method_params {
    const sac_method_param *row; /* [n] */
    const uint16_t *at;          /* [n] where each value stands in the struct */
    uint32_t n;
};

#define PARAM_COUNT_MEMBER  uint32_t
#define PARAM_TOKENS_MEMBER uint32_t
#define PARAM_BUDGET_MEMBER struct param_budget
#define PARAM_SHARE_MEMBER  double
#define PARAM_NUMBER_MEMBER double
#define PARAM_CHOICE_MEMBER uint32_t
#define PARAM_FLAG_MEMBER   bool
#define PARAM_PATH_MEMBER   bool

#define PARAM_COUNT_ROW(key, value, min, max, help)                                                \
    {                                                                                              \
        key, SAC_PARAM_INT, value, min, max, NULL, help                                            \
    }
#define PARAM_TOKENS_ROW(key, value, min, max, help)                                               \
    {                                                                                              \
        key, SAC_PARAM_TOKENS, value, min, max, NULL, help                                         \
    }
#define PARAM_BUDGET_ROW(key, value, min, help)                                                    \
    {                                                                                              \
        key, SAC_PARAM_BUDGET, value, min, PARAM_BUDGET_MAX, NULL, help                            \
    }
#define PARAM_SHARE_ROW(key, value, help)                                                          \
    {                                                                                              \
        key, SAC_PARAM_SHARE, value, 0, 1, NULL, help                                              \
    }
#define PARAM_NUMBER_ROW(key, value, min, max, help)                                               \
    {                                                                                              \
        key, SAC_PARAM_FLOAT, value, min, max, NULL, help                                          \
    }
#define PARAM_CHOICE_ROW(key, value, choices, help)                                                \
    {                                                                                              \
        key, SAC_PARAM_CHOICE, value, 0, 0, choices, help                                          \
    }
#define PARAM_FLAG_ROW(key, value, help)                                                           \
    {                                                                                              \
        key, SAC_PARAM_FLAG, value, 0, 0, "off|on", help                                           \
    }
#define PARAM_PATH_ROW(key, help)                                                                  \
    {                                                                                              \
        key, SAC_PARAM_FILE, "", 0, 0, NULL, help                                                  \
    }

#define PARAM_MEMBER(type, key, ...) PARAM_##type##_MEMBER key;
#define PARAM_ROW(type, key, ...)    PARAM_##type##_ROW(#key, __VA_ARGS__),
#define PARAM_AT(type, key, ...)     offsetof(param_here, key),

#define PARAM_STRUCT(name, list)                                                                   \
    struct name##_param {                                                                          \
        list(PARAM_MEMBER)                                                                         \
    };
/* A table over members of an existing struct, which methods of one family share. */
#define PARAM_TABLE(name, type, list)                                                              \
    typedef type param_here;                                                                       \
    _Static_assert(sizeof(param_here) <= PARAM_BYTES, "raise PARAM_BYTES");                        \
    static const sac_method_param name##_param_row[] = {list(PARAM_ROW)};                          \
    static const uint16_t name##_param_at[] = {list(PARAM_AT)};                                    \
    static const struct method_params name##_params = {                                            \
        name##_param_row, name##_param_at, sizeof name##_param_at / sizeof name##_param_at[0]};
#define METHOD_PARAMS(name, list)                                                                  \
    PARAM_STRUCT(name, list)                                                                       \
    PARAM_TABLE(name, struct name##_param, list)

#endif
