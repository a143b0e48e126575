/* output.c: see the header. stdout belongs to the whole process, and so does its error flag, which
 * does not say why: the reason of the first failure is kept beside it. */
#include "app/output.h"

#include "app/app.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int first_errno; /* of a failed write to stdout */

bool output_write(const char *text, size_t n)
{
    /* Ctrl-C ends no write: what the stream held would be lost, and the program with it. */
    sigset_t ctrl_c, before;
    sigemptyset(&ctrl_c);
    sigaddset(&ctrl_c, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ctrl_c, &before);
    errno = 0;
    const bool done = fwrite(text, 1, n, stdout) == n && fflush(stdout) == 0;
    if (!done && !first_errno) first_errno = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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

int output_finish(int code)
{
    const bool failed_before = ferror(stdout) != 0;
    if (output_write("", 0) && !failed_before) return code;
    /* A write inside printf has kept its reason to itself: ask for it once more. */
    clearerr(stdout);
    if (!first_errno) output_write("\n", 1);
    const int failed = code == EXIT_OK ? EXIT_RUNTIME : code;
    if (first_errno == EPIPE) return failed; /* `| head` has what it wanted */
    fprintf(stderr, "saccade: cannot write to the standard output%s%s\n", first_errno ? ": " : "",
            first_errno ? strerror(first_errno) : "");
    return failed;
}
