/* pathsize.c: see the header. */
#include "app/pathsize.h"

#include "app/options.h"
#include "app/units.h"

#include <string.h>

int pathsize_parse(const struct pathsize *want)
{
    const char *colon = strrchr(want->value, ':');
    if (!colon || colon == want->value || !units_bytes(colon + 1, want->out_bytes))
        return options_usage_error(want->command, "option '%s': '%s' is not %s", want->option,
                                   want->value, want->form);
    const size_t n = (size_t)(colon - want->value);
    if (n >= PATHSIZE_PATH_BYTES)
        return options_usage_error(want->command, "option '%s': the path is too long",
                                   want->option);
    memcpy(want->out_path, want->value, n);
    want->out_path[n] = 0;
    return OPTIONS_GO_ON;
}
