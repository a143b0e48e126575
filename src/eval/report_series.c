/* report_series.c: see the header. "quest:budget=512" and "quest:budget=1024" belong to the family
 * "quest"; "minference:x=1+quest:budget=512" to "minference+quest"; "quest:budget=512 [folder]", as
 * with several folders, to "quest". */
#include "eval/report_series.h"

#include "base/mem.h"

#include <assert.h>
#include <stdbool.h>

/* Skips a parameter list: the next character that belongs to the method's name. */
static const char *skip_params(const char *s)
{
    if (*s == ':')
        while (*s && *s != '+' && *s != ' ') s++;
    return s;
}

static bool same_family(const char *a, const char *b)
{
    for (;; a++, b++) {
        a = skip_params(a);
        b = skip_params(b);
        if (*a != *b) return false;
        if (!*a) return true;
    }
}

sac_status report_series_make(struct plot_series **out, const struct strlist *methods,
                              sac_error *err)
{
    struct plot_series *s = mem_calloc(methods->n, sizeof *s);
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu methods", methods->n);
    unsigned n_family = 0;
    for (size_t i = 0; i < methods->n; i++) {
        s[i].name = methods->item[i];
        s[i].colour = n_family;
        for (size_t k = 0; k < i; k++) {
            if (!same_family(s[k].name, s[i].name)) continue;
            s[i].colour = s[k].colour;
            s[i].dash++;
        }
        s[i].mark = s[i].colour + s[i].dash;
        n_family += s[i].dash == 0;
    }
    assert(n_family <= methods->n);
    *out = s;
    return SAC_OK;
}
