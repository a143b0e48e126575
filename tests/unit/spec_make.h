/* spec_make.h: settings of methods, whatever they are, for contexts of a few hundred tokens: made
 * of what each says of itself (struct method_facts). */
#ifndef SAC_TESTS_SPEC_MAKE_H
#define SAC_TESTS_SPEC_MAKE_H

#include "methods/method.h"
#include "saccade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_MAKE_BYTES 160

static inline bool method_has_budget(const struct method *m)
{
    for (uint32_t i = 0; m->params && i < m->params->n; i++)
        if (m->params->row[i].type == SAC_PARAM_BUDGET) return true;
    return false;
}

/* One that reads a part: `budget` tokens, or as the method says. */
static inline void spec_make_part(char spec[SPEC_MAKE_BYTES], const struct method *m,
                                  uint32_t budget)
{
    const char *part = m->facts.part;
    int n = snprintf(spec, SPEC_MAKE_BYTES, "%s%s%s", m->name, part ? ":" : "", part ? part : "");
    if (method_has_budget(m))
        snprintf(spec + n, SPEC_MAKE_BYTES - (size_t)n, "%cbudget=%u", part ? ',' : ':', budget);
}

/* One that reads everything. */
static inline void spec_make_whole(char spec[SPEC_MAKE_BYTES], const struct method *m)
{
    const char *whole = m->facts.whole ? m->facts.whole : "budget=100%";
    const bool is_dense = !m->decode && !m->prefill;
    snprintf(spec, SPEC_MAKE_BYTES, "%s%s%s", m->name, is_dense ? "" : ":", is_dense ? "" : whole);
}

/* Whether a test of all methods looks at this one: SAC_TEST_METHODS="a,b" leaves out others. */
static inline bool method_tested(const struct method *m)
{
    const char *list = getenv("SAC_TEST_METHODS");
    const size_t n = strlen(m->name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, m->name, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
    }
    return !list;
}

#endif
