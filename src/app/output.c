/* output.c: see the header. stdio keeps the error flag of stdout; the reason is in errno only at
 * the failing call, so it is asked for again with a flush. */
#include "app/output.h"

#include "app/app.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool output_write(const char *text, size_t n)
{
    return fwrite(text, 1, n, stdout) == n && fflush(stdout) == 0;
}

int output_json(cJSON *json)
{
    char *text = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) {
        fprintf(stderr, "saccade: out of memory for the JSON output\n");
        return EXIT_RUNTIME;
    }
    puts(text);
    cJSON_free(text);
    return EXIT_OK;
}

int output_finish(int code)
{
    errno = 0;
    const bool failed_before = ferror(stdout) != 0;
    if (fflush(stdout) == 0 && !failed_before) return code;
    fprintf(stderr, "saccade: cannot write to the standard output%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return code == EXIT_OK ? EXIT_RUNTIME : code;
}
