/* choices.c: see the header. */
#include "eval/choices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool choices_are_made(const char *decode)
{
    const size_t n = strcspn(decode, ":");
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        if (strcmp(m.kind, "decode") == 0 && strlen(m.name) == n && memcmp(m.name, decode, n) == 0)
            return m.chooses;
    return false;
}

double choices_mean(const sac_reads *before, const sac_reads *after, bool chooses)
{
    const uint64_t n_dense = after->n_select_dense - before->n_select_dense;
    const uint64_t n = after->n_select - before->n_select - n_dense;
    if (!chooses || n == 0) return (double)NAN;
    return (double)(after->n_tok_chosen - before->n_tok_chosen) / (double)n;
}

void choices_print(struct strbuf *out, double mean)
{
    if (!isfinite(mean))
        strbuf_adds(out, "-");
    else if (mean > 0)
        strbuf_addf(out, "%.1f", mean);
    else
        strbuf_adds(out, "nothing");
}

void choices_add_idle(struct strbuf *list, double mean, const char *method, uint32_t ctx)
{
    if (mean <= 0) /* also false if nothing was counted */
        strbuf_addf(list, "%s'%s' at %u tokens", list->n ? ", " : "", method, ctx);
}

sac_status choices_refuse_idle(const struct strbuf *list, sac_error *err)
{
    if (list->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a list of methods");
    if (list->n == 0) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "rows in which nothing was chosen by score say nothing of a method (a larger "
                     "budget helps; --allow-idle takes the table as it is): %s",
                     list->data);
}

void choices_add_whole(struct strbuf *list, double share_read, const char *method, uint32_t ctx)
{
    static const char *const dense[] = {"full", "dense", "dense+full"};
    char item[320];
    for (size_t i = 0; i < sizeof dense / sizeof dense[0]; i++)
        if (strcmp(method, dense[i]) == 0) return;
    if (share_read < 1) return;
    snprintf(item, sizeof item, "'%s' at %u tokens", method, ctx);
    if (list->n == 0 || !strstr(list->data, item))
        strbuf_addf(list, "%s%s", list->n ? ", " : "", item);
}
