/* output.c: see the header. stdout and its error flag belong to the whole process. The flag does
 * not give a reason, so the reason of the first failure is stored with it. */
#include "app/output.h"

#include "app/app.h"
#include "app/interrupt.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int first_errno; /* of the first failed write to stdout */

bool output_write(const char *text, size_t n)
{
    bool done = fflush(stdout) == 0;
    while (done && n > 0) {
        const ssize_t part = write(STDOUT_FILENO, text, n);
        if (part >= 0) {
            text += part;
            n -= (size_t)part;
        } else { /* a single Ctrl-C ends the answer, but does not interrupt the write */
            done = errno == EINTR && !interrupt_insists();
        }
    }
    if (!done && !first_errno) first_errno = errno;
    return done;
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

bool output_is_lost(void)
{
    return first_errno || ferror(stdout);
}

int output_finish(int code)
{
    if (output_write("", 0) && !output_is_lost()) return code;
    /* printf has not kept the error, so write again to obtain it. */
    clearerr(stdout);
    if (!first_errno) output_write("\n", 1);
    const int failed = code == EXIT_OK ? EXIT_RUNTIME : code;
    /* Silent if the reader closed the pipe (`| head`), or after two Ctrl-C. */
    if (first_errno == EPIPE || first_errno == EINTR) return failed;
    fprintf(stderr, "saccade: cannot write to the standard output%s%s\n", first_errno ? ": " : "",
            first_errno ? strerror(first_errno) : "");
    return failed;
}
