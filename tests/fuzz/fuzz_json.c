/* fuzz_json.c: JSON that a user of chat templates gives: tool definitions, template variables and
 * the further fields of a message. The template walks everything that was read and writes it back
 * with tojson, so the reader, the conversion to values and the writer all see hostile input.
 *
 * The first byte chooses which of the three places gets the text. */
#include "base/mem.h"
#include "model/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char walk[] =
    "{{ tools | tojson }}{{ v | tojson(indent=2) }}"
    "{% for m in messages %}{{ m | tojson }}{% for k, x in m.items() %}{{ k }}={{ x }},{% endfor %}"
    "{% for call in m.tool_calls %}{{ call.function.name }}{{ call.function.arguments }}"
    "{% endfor %}{% endfor %}"
    "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters | length }}{% endfor %}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    char *json = mem_strndup((const char *)data + 1, n - 1);
    if (!json) return 0;
    const unsigned place = data[0] % 3u;
    const sac_message msg = {
        .role = "user", .content = "x", .extra_json = place == 0 ? json : NULL};
    const struct template_input in = {.msgs = &msg,
                                      .n_msg = 1,
                                      .tools_json = place == 1 ? json : NULL,
                                      .vars_json = place == 2 ? json : NULL,
                                      .bos = "<s>",
                                      .eos = "</s>",
                                      .now = 0};
    char *text = NULL;
    sac_error err = {0};
    const sac_status status = template_render(walk, sizeof walk - 1, &in, &text, &err);
    /* A refusal says why; success gives text of its own length at most TEMPLATE_OUTPUT_MAX. */
    if (status != SAC_OK && err.msg[0] == '\0') __builtin_trap();
    if (status == SAC_OK && strlen(text) > TEMPLATE_OUTPUT_MAX) __builtin_trap();
    if (status == SAC_OK) mem_free(text);
    mem_free(json);
    return 0;
}
