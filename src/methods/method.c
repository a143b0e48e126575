/* method.c: the table made from methods.def, and its public view.
 *
 * Invariant: (kind, name) is unique; tests/unit/test_method.c checks it. A method that is in the
 * list works; there are no placeholders. What a method does is in its own file. */
#include "methods/method.h"

#include "base/half.h"
#include "methods/context.h"
#include "methods/method_spec.h"
#include "methods/registered.h"
#include "saccade.h"

#include <string.h>

static const struct method *const methods[] = {
#define METHOD(symbol) &symbol,
#include "methods/methods.def"
#undef METHOD
};

const struct method *method_at(size_t i)
{
    const size_t n = sizeof methods / sizeof methods[0];
    return i < n ? methods[i] : registered_at(i - n);
}

const struct method *method_find(const char *kind, const char *name)
{
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++)
        if (strcmp(m->kind, kind) == 0 && strcmp(m->name, name) == 0) return m;
    return NULL;
}

size_t method_hook_bytes(size_t (*hook)(const struct method_shape *, const void *),
                         const struct method_shape *shape, const void *param)
{
    return hook ? (hook(shape, param) + 63) & ~(size_t)63 : 0;
}

bool method_queries_finite(const struct method_lane *lane)
{
    /* By bits, so that the loop has neither branches nor an order of sums and is vectorised. Only
     * an exponent of all ones carries into the sign. */
    const size_t n = (size_t)lane->shape->group * lane->shape->geom->head_dim;
    uint32_t all = 0;
    for (uint32_t r = 0; r < lane->n_row; r++) {
        const float *q = lane->q + r * lane->q_stride;
        method_fetch_row(lane, r + 4);
        for (size_t i = 0; i < n; i++) all |= (float_bits(q[i]) & 0x7fffffffu) + 0x00800000u;
    }
    return all >> 31 == 0;
}

/* Whether a composer, with default parameters, uses the question. */
static bool asks(const struct method *m)
{
    const struct method_context *hooks = m->context;
    struct method_spec spec;
    if (!hooks) return false;
    if (hooks->probe || hooks->reads) return true;
    if (!hooks->question) return false;
    return method_spec_parse(&spec, m->kind, m->name, NULL) == SAC_OK &&
           hooks->question(spec.param) != CONTEXT_QUESTION_NONE;
}

bool method_reads_joined_on_device(const struct method *m)
{
    return !m->decode;
}

/* Without hooks nothing is selected. Context methods select rows on the host, from documents in any
 * memory. */
bool method_on_any_backend(const struct method *m)
{
    const struct method_decode *d = m->decode;
    const struct method_prefill *p = m->prefill;
    if (m->context && m->context->decode)
        return method_reads_joined_on_device(method_find("decode", m->context->decode));
    if (p)
        return p->by_place ||
               ((p->sample || p->blocks || p->trace || p->antidiag) && (!p->seal || p->note));
    return !d || ((d->choose || d->device) && (!d->seal || d->note));
}

bool sac_method_at(size_t i, sac_method_info *out)
{
    const struct method *m = method_at(i);
    if (!m) return false;
    const bool is_prefill = strcmp(m->kind, "prefill") == 0;
    *out = (sac_method_info){.kind = m->kind,
                             .name = m->name,
                             .summary = m->summary,
                             .paper = m->paper,
                             .about = m->about,
                             .param = m->params ? m->params->row : NULL,
                             .n_param = m->params ? m->params->n : 0,
                             .deviation = m->deviation,
                             .n_deviation = m->n_deviation,
                             .chooses = m->decode && !m->fixed,
                             .needs_question = m->needs_question || asks(m),
                             /* Without hooks it is dense attention. */
                             .any_chunk = is_prefill && (!m->prefill || m->prefill->any_chunk),
                             .any_backend = method_on_any_backend(m),
                             .decode = m->context ? m->context->decode : NULL};
    return true;
}
