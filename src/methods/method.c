/* method.c: the table made from methods.def, and its public view.
 *
 * Invariant: (kind, name) is unique; tests/unit/test_method.c checks it. A method that is in the
 * list works; there are no placeholders. What a method does is in its own file. */
#include "methods/method.h"

#include "saccade.h"

#include <string.h>

static const struct method *const methods[] = {
#define METHOD(symbol) &symbol,
#include "methods/methods.def"
#undef METHOD
};

const struct method *method_at(size_t i)
{
    return i < sizeof methods / sizeof methods[0] ? methods[i] : NULL;
}

const struct method *method_find(const char *kind, const char *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(methods[i]->kind, kind) == 0 && strcmp(methods[i]->name, name) == 0)
            return methods[i];
    return NULL;
}

bool sac_method_at(size_t i, sac_method_info *out)
{
    const struct method *m = method_at(i);
    if (!m) return false;
    *out = (sac_method_info){.kind = m->kind,
                             .name = m->name,
                             .summary = m->summary,
                             .paper = m->paper,
                             .about = m->about,
                             .param = m->param,
                             .n_param = m->n_param};
    return true;
}
