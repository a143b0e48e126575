/* fuzz_toolstream.c: the text of an answer in pieces. The first byte chooses the family and the
 * size of the pieces. Calls come in order, each begun before it ends; text is never more than was
 * given, and all of it where there is no call. */
#include "grammar/toolstream.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct heard {
    size_t n_text;
    uint32_t n_call;
    bool open;
};

static void on_event(void *user, const struct toolstream_event *e)
{
    struct heard *const h = user;
    if (e->index != h->n_call) __builtin_trap();
    if ((e->kind == TOOLSTREAM_ARGS || e->kind == TOOLSTREAM_END) != h->open) __builtin_trap();
    if (e->kind == TOOLSTREAM_TEXT) h->n_text += e->n;
    if (e->kind == TOOLSTREAM_BEGIN) h->open = true;
    if (e->kind == TOOLSTREAM_BEGIN && strlen(e->name) >= TOOLSTREAM_NAME_MAX) __builtin_trap();
    if (e->kind == TOOLSTREAM_END) {
        h->open = false;
        h->n_call++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct toolstream *t;
    struct heard heard = {0};
    if (n == 0) return 0;
    const size_t step = 1 + data[0] / 4;
    if (toolstream_create(&t, (enum toolstream_family)(data[0] % 4), on_event, &heard, NULL) !=
        SAC_OK)
        return 0;
    for (size_t i = 1; i < n; i += step)
        if (toolstream_feed(t, (const char *)data + i, n - i < step ? n - i : step, NULL) != SAC_OK)
            __builtin_trap();
    if (toolstream_finish(t, NULL) != SAC_OK || heard.open || heard.n_call != toolstream_count(t))
        __builtin_trap();
    if (heard.n_text > n - 1 || (heard.n_call == 0 && heard.n_text != n - 1)) __builtin_trap();
    toolstream_free(t);
    return 0;
}
