/* source.c: see the header. */
#include "app/source.h"

#include "base/input.h"
#include "text/extract.h"

#include <stdio.h>

sac_status source_read(struct strbuf *out, const char *path, bool as_is, sac_error *err)
{
    struct extract_info info;
    if (as_is) return input_read(out, path, err);
    TRY(extract_file(out, path, &info, err));
    source_tell_doubts(path, &info);
    return SAC_OK;
}

void source_tell_doubts(const char *path, const struct extract_info *info)
{
    if (info->guessed) fprintf(stderr, "(%s: its encoding looks like %s)\n", path, info->encoding);
    if (info->n_replace)
        fprintf(stderr, "(%s: %zu bytes that are no UTF-8 were replaced)\n", path, info->n_replace);
}
