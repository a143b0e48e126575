/* fuzz_tool_parser.c: the text of an answer in pieces. The first byte chooses the family and the
 * size of the pieces. Calls come in order, each begun before it ends; text is never more than was
 * given, and all of it where there is no call. */
#include "grammar/tool_parser.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct heard {
    size_t n_text;
    uint32_t n_call;
    bool open;
};

static void on_event(void *user, const struct tool_parser_event *e)
{
    struct heard *const h = user;
    if (e->index != h->n_call) __builtin_trap();
    if ((e->kind == TOOL_PARSER_ARGS || e->kind == TOOL_PARSER_END) != h->open) __builtin_trap();
    if (e->kind == TOOL_PARSER_TEXT) h->n_text += e->n;
    if (e->kind == TOOL_PARSER_BEGIN) h->open = true;
    if (e->kind == TOOL_PARSER_BEGIN && strlen(e->name) >= TOOL_PARSER_NAME_MAX) __builtin_trap();
    if (e->kind == TOOL_PARSER_END) {
        h->open = false;
        h->n_call++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tool_parser *t;
    struct heard heard = {0};
    if (n == 0) return 0;
    const size_t step = 1 + data[0] / 4;
    if (tool_parser_create(&t, (enum tool_parser_family)(data[0] % 4), on_event, &heard, NULL) !=
        SAC_OK)
        return 0;
    for (size_t i = 1; i < n; i += step)
        if (tool_parser_feed(t, (const char *)data + i, n - i < step ? n - i : step, NULL) !=
            SAC_OK)
            __builtin_trap();
    if (tool_parser_finish(t, NULL) != SAC_OK || heard.open || heard.n_call != tool_parser_count(t))
        __builtin_trap();
    if (heard.n_text > n - 1 || (heard.n_call == 0 && heard.n_text != n - 1)) __builtin_trap();
    tool_parser_free(t);
    return 0;
}
