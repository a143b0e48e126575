/* optfile.c: see the header. Names are those of the command line without dashes, and values are
 * taken literally, without quotes. Errors name the file and the line. */
#include "app/optfile.h"

#include "base/input.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <string.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)
#define BLANK          " \t\r"

/* Strips blanks at both ends, in place. */
static char *trim(char *text)
{
    text += strspn(text, BLANK);
    size_t n = strlen(text);
    while (n > 0 && strchr(BLANK, text[n - 1])) n--;
    text[n] = 0;
    return text;
}

/* A name alone sets a flag. */
static bool read_line(struct options *o, char *line, char why[256])
{
    char name[80], *equals = strchr(line, '=');
    if (equals) *equals = 0;
    snprintf(name, sizeof name, "--%s", trim(line));
    if (strcmp(name, OPTIONS_CONFIG) == 0) {
        snprintf(why, 256, "a file of options names no other");
        return false;
    }
    if (!equals && strcspn(name, BLANK ":") < strlen(name)) {
        snprintf(why, 256, "'%.60s' is no 'name = value'", name + 2);
        return false;
    }
    const char *value = equals ? trim(equals + 1) : options_is_flag(o, name) ? "on" : NULL;
    return options_set(o, name, strlen(name), value, why);
}

sac_status optfile_read(struct options *o, const char *path, sac_error *err)
{
    static struct strbuf text;
    char why[256];
    strbuf_reset(&text);
    const sac_status status = input_read_most(&text, path, FILE_MAX_BYTES, err);
    if (status != SAC_OK) return status;
    if (strlen(text.data) != text.n)
        return error_set(err, SAC_ERR_ARG, "%s has a NUL byte: it is no file of options", path);
    static const char mark[] = "\xef\xbb\xbf"; /* UTF-8's, which some editors write */
    char *line = text.data + (strncmp(text.data, mark, 3) == 0 ? 3 : 0);
    for (size_t i = 1; line; i++) {
        char *end = strchr(line, '\n'), *rest = end ? end + 1 : NULL;
        if (end) *end = 0;
        line += strspn(line, BLANK);
        if (*line && *line != '#' && !read_line(o, line, why))
            return error_set(err, SAC_ERR_ARG, "%s:%zu: %s", path, i, why);
        line = rest;
    }
    return SAC_OK;
}
