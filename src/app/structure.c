/* structure.c: see the header. All answers of a command share one grammar; the automaton keeps its
 * cached states from one answer to the next. */
#include "app/structure.h"

#include "app/setup.h"
#include "base/input.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <string.h>

#define OPT(names, field, arg, help, ...)                                                          \
    {                                                                                              \
        names, OPTION_TEXT, offsetof(struct structure, field), arg, help, __VA_ARGS__              \
    }

const struct option_spec structure_specs[] = {
    OPT("--grammar", grammar, "FILE|TEXT",
        "grammar (GBNF) that the answer follows; a value with '::=' is the grammar itself, else a "
        "file",
        .env = "GRAMMAR"),
    OPT("--grammar-file", grammar_file, "FILE", "grammar, always a file", .env = "GRAMMAR_FILE"),
    OPT("-j --json-schema", schema, "FILE|TEXT",
        "JSON schema against which the answer validates; a value that begins with '{' is the "
        "schema itself, '{}' is any object",
        .env = "JSON_SCHEMA"),
    OPT("-jf --json-schema-file", schema_file, "FILE", "JSON schema, always a file",
        .env = "JSON_SCHEMA_FILE"),
    {0},
};

static bool is_schema_text(const char *s)
{
    return s[strspn(s, " \t\r\n")] == '{';
}

/* The option that was given: its kind, whether it is a file, its name for messages. */
struct source {
    const char *option, *value;
    enum constraint_kind kind;
    bool is_file;
};

static unsigned find_source(const struct structure *s, struct source *out)
{
    const struct source all[] = {
        {"--grammar", s->grammar, CONSTRAINT_GBNF, s->grammar && !strstr(s->grammar, "::=")},
        {"--grammar-file", s->grammar_file, CONSTRAINT_GBNF, true},
        {"--json-schema", s->schema, CONSTRAINT_SCHEMA, s->schema && !is_schema_text(s->schema)},
        {"--json-schema-file", s->schema_file, CONSTRAINT_SCHEMA, true},
    };
    unsigned n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].value) continue;
        *out = all[i];
        n++;
    }
    return n;
}

/* An error in a file is a runtime error, in a value a usage error. */
static sac_status error_code(const struct structure *s, sac_status status)
{
    return s->is_value && status != SAC_OK && status != SAC_ERR_MEMORY ? SAC_ERR_ARG : status;
}

int structure_check(struct structure *s, const char *command, bool ignore_eos)
{
    struct source from;
    struct strbuf text = {0};
    sac_error err = {0};
    const unsigned n = find_source(s, &from);
    if (n == 0) return OPTIONS_GO_ON;
    if (n > 1)
        return options_usage_error(command, "--grammar, --grammar-file, --json-schema and "
                                            "--json-schema-file exclude each other");
    if (ignore_eos)
        return options_usage_error(command, "--ignore-eos: an answer with a grammar ends with it");
    sac_status status = SAC_OK;
    if (from.is_file)
        status = input_read(&text, from.value, &err);
    else
        strbuf_adds(&text, from.value);
    strbuf_add(&text, "", 0);
    if (status == SAC_OK && text.failed)
        status = error_set(&err, SAC_ERR_MEMORY, "out of memory for a grammar");
    if (status == SAC_OK)
        status = constraint_compile(&s->program, from.kind, text.data, text.n, &err);
    strbuf_deinit(&text);
    s->is_value = !from.is_file;
    if (status == SAC_OK) return OPTIONS_GO_ON;
    status = error_code(s, status);
    error_prefix(&err, status, "option '%s'", from.option);
    return setup_failed(command, status, err.msg);
}

sac_status structure_open(struct structure *s, const sac_model *model, sac_error *err)
{
    struct program *const program = s->program;
    if (!program) return SAC_OK;
    TRY(trie_of_model(&s->trie, model, err));
    s->program = NULL;
    return error_code(s, automaton_create(&s->automaton, program, s->trie, err));
}

sac_status structure_begin(struct structure *s, sac_request *request, sac_error *err)
{
    if (!s->automaton) return SAC_OK;
    constraint_free(s->constraint);
    s->constraint = NULL;
    TRY(constraint_create(&s->constraint, s->automaton, err));
    request->guide = constraint_guide(s->constraint);
    return SAC_OK;
}

void structure_explain(const struct structure *s, sac_error *err)
{
    const char *const why = s->constraint ? constraint_failure(s->constraint) : NULL;
    if (why) (void)error_set(err, SAC_ERR_CONTEXT, "%s", why);
}

void structure_close(struct structure *s)
{
    constraint_free(s->constraint);
    automaton_free(s->automaton);
    trie_free(s->trie);
    program_free(s->program);
}
