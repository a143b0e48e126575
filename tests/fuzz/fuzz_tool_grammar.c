/* fuzz_tool_grammar.c: a list of tools of an unknown user. The first byte chooses family and
 * choice. */
#include "base/mem.h"
#include "grammar/tool_grammar.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct program *p = NULL;
    sac_error err = {0};
    if (n == 0) return 0;
    char *const json = mem_strndup((const char *)data + 1, n - 1);
    if (!json) return 0;
    const struct tool_grammar set = {.family = (enum tool_parser_family)(data[0] % 4),
                                     .choice = (enum tool_grammar_choice)(data[0] / 4 % 3),
                                     .tools_json = json,
                                     .name = "f",
                                     .parallel = data[0] & 64};
    if (tool_grammar_compile(&p, &set, &err) == SAC_OK)
        program_free(p);
    else if (err.msg[0] == '\0')
        __builtin_trap();
    mem_free(json);
    return 0;
}
