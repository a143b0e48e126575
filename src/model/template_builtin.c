/* template_builtin.c: chat formats by name, for models whose file has no template.
 *
 * Each writes the turns as the family was trained on them. None has a form for tools: where formats
 * differ that much, only the model's own template will do, so asking for them is an error. Families
 * without a system role get its text in front of the first question. */
#include "model/template.h"

#include <string.h>

#define NO_TOOLS                                                                                   \
    "{%- if tools %}{{ raise_exception('the built-in templates have no form for tools') }}"        \
    "{% endif -%}\n"

/* Sets `system` to the text of a first system message and `turns` to the other messages. */
#define SPLIT_SYSTEM                                                                               \
    "{%- set system = '' %}\n"                                                                     \
    "{%- set turns = messages %}\n"                                                                \
    "{%- if messages and messages[0].role == 'system' %}\n"                                        \
    "    {%- set system = messages[0].content %}\n"                                                \
    "    {%- set turns = messages[1:] %}\n"                                                        \
    "{%- endif %}\n"

#define REFUSE_ROLE                                                                                \
    "    {%- else %}\n"                                                                            \
    "        {{- raise_exception('the template has no role ' ~ message.role) }}\n"                 \
    "    {%- endif %}\n"

static const char chatml[] = NO_TOOLS
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

static const char llama2[] = NO_TOOLS SPLIT_SYSTEM
    "{%- if system %}{% set system = '<<SYS>>\\n' ~ system ~ '\\n<</SYS>>\\n\\n' %}{% endif %}\n"
    "{%- for message in turns %}\n"
    "    {%- if message.role == 'user' %}\n"
    "        {{- bos_token ~ '[INST] ' ~ (system if loop.first else '') }}\n"
    "        {{- message.content | trim ~ ' [/INST]' }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- ' ' ~ message.content | trim ~ ' ' ~ eos_token }}\n" REFUSE_ROLE "{%- endfor %}\n";

static const char llama3[] =
    NO_TOOLS "{{- bos_token }}\n"
             "{%- for message in messages %}\n"
             "    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}\n"
             "    {{- message.content | trim ~ '<|eot_id|>' }}\n"
             "{%- endfor %}\n"
             "{%- if add_generation_prompt %}\n"
             "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
             "{%- endif %}\n";

static const char mistral[] = NO_TOOLS SPLIT_SYSTEM
    "{{- bos_token }}\n"
    "{%- for message in turns %}\n"
    "    {%- if message.role == 'user' %}\n"
    "        {{- '[INST] ' ~ (system ~ '\\n\\n' if system and loop.first else '') }}\n"
    "        {{- message.content ~ '[/INST]' }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- ' ' ~ message.content | trim ~ eos_token }}\n" REFUSE_ROLE "{%- endfor %}\n";

static const char gemma[] = NO_TOOLS SPLIT_SYSTEM
    "{{- bos_token }}\n"
    "{%- for message in turns %}\n"
    "    {%- if message.role == 'user' %}\n"
    "        {{- '<start_of_turn>user\\n' }}\n"
    "        {{- system ~ '\\n\\n' if system and loop.first }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- '<start_of_turn>model\\n' }}\n" REFUSE_ROLE
    "    {{- message.content | trim ~ '<end_of_turn>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}\n";

static const char phi3[] =
    NO_TOOLS "{%- for message in messages %}\n"
             "    {{- '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '<|end|>\\n' }}\n"
             "{%- endfor %}\n"
             "{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}\n";

static const char phi4[] =
    NO_TOOLS "{%- for message in messages %}\n"
             "    {{- '<|im_start|>' ~ message.role ~ '<|im_sep|>' ~ message.content }}\n"
             "    {{- '<|im_end|>' }}\n"
             "{%- endfor %}\n"
             "{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}\n";

static const char deepseek[] = NO_TOOLS SPLIT_SYSTEM
    "{{- bos_token ~ system }}\n"
    "{%- for message in turns %}\n"
    "    {%- if message.role == 'user' %}\n"
    "        {{- '<｜User｜>' ~ message.content }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- '<｜Assistant｜>' ~ message.content ~ '<｜end▁of▁sentence｜>' }}\n" REFUSE_ROLE
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}\n";

static const struct {
    const char *name, *source;
} templates[] = {
    {"chatml", chatml}, {"llama2", llama2}, {"llama3", llama3}, {"mistral", mistral},
    {"gemma", gemma},   {"phi3", phi3},     {"phi4", phi4},     {"deepseek", deepseek},
};

const char *template_builtin_at(size_t i)
{
    return i < sizeof templates / sizeof *templates ? templates[i].name : NULL;
}

const char *template_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (strcmp(templates[i].name, name) == 0) return templates[i].source;
    return NULL;
}
