/* fuzz_template.c: template source, as a model's file gives it, over a conversation that has every
 * field. A refusal must say why; what is rendered must keep to the limit on output. */
#include "base/mem.h"
#include "model/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char calls[] =
    "{\"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": "
    "{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": [2.5, null]}}}]}";
static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                            "\"parameters\": {\"properties\": {\"x\": {\"type\": \"integer\"}}}}}]";
static const char vars[] = "{\"n\": 7, \"f\": 2.5, \"t\": true, \"nil\": null, \"l\": [3, 1, 2], "
                           "\"s\": \"Hello, W\u00f6rld\", \"d\": {\"b\": 1, \"a\": {\"c\": []}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const sac_message msgs[] = {
        {"system", "Be brief.", NULL},
        {"user", " What? \n", NULL},
        {"assistant", NULL, calls},
        {"tool", "{\"t\": 1}", "{\"name\": \"f\", \"tool_call_id\": \"c1\"}"},
    };
    const struct template_input in = {.msgs = msgs,
                                      .n_msg = sizeof msgs / sizeof *msgs,
                                      .tools_json = tools,
                                      .vars_json = vars,
                                      .add_generation_prompt = true,
                                      .bos = "<s>",
                                      .eos = "</s>",
                                      .now = 1770000000};
    char *text = NULL;
    sac_error err = {0};
    const sac_status status = template_render((const char *)data, n, &in, &text, &err);
    if (status != SAC_OK && err.msg[0] == '\0') __builtin_trap();
    if (status == SAC_OK && strlen(text) > TEMPLATE_OUTPUT_MAX + 4096) __builtin_trap();
    if (status == SAC_OK) mem_free(text);
    return 0;
}
