/* chat_commands.c: the commands of a chat: one table, which /help, the lookup and Tab read. Names
 * are not case sensitive. */
#include "app/chat.h"

#include "app/output.h"
#include "app/passages_print.h"
#include "app/setup_sampling.h"
#include "app/units.h"
#include "base/mem.h"
#include "base/suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N_CTX_LEAST 64u

/* ---- The conversation ---- */

static void command_file(struct chat *c, const char *arg)
{
    sac_error err = {0};
    if (!*arg) return (void)fprintf(stderr, "/file needs the name of a file\n");
    (void)!chat_files_take(c, arg, stdout, &err); /* it has reported the error */
}

static void command_clear(struct chat *c, const char *arg)
{
    (void)arg;
    conversation_clear(&c->s.said);
}

static void command_system(struct chat *c, const char *arg)
{
    struct conversation *said = &c->s.said;
    if (!*arg) return (void)printf("%s\n", said->system ? said->system : "(no system message)");
    char *copy = mem_strdup(arg);
    if (!copy) return (void)fprintf(stderr, "out of memory\n");
    mem_free(said->system);
    said->system = copy;
}

static void command_regen(struct chat *c, const char *arg)
{
    (void)arg;
    if (c->s.said.n_turn < 2) return (void)fprintf(stderr, "there is no answer yet\n");
    conversation_drop_last(&c->s.said);
    chat_answer(c);
}

static void command_reading(struct chat *c, const char *arg)
{
    struct passages passages = {0};
    struct reading_docs docs = {0};
    struct strbuf out = {0};
    sac_error err = {0};
    (void)arg;
    if (session_reading(&c->s, &docs, &passages, &err) != SAC_OK) {
        fprintf(stderr, "%s\n", err.msg);
    } else {
        strbuf_adds(&out, "What the last answer read (share of the squared softmax mass):\n\n");
        reading_docs_print(&docs, &passages, &out);
        strbuf_adds(&out, "\n");
        passages_print_text(&passages, passages_print_colours(), &out);
        output_write(out.data, out.n);
    }
    strbuf_deinit(&out);
    passages_deinit(&passages);
    reading_docs_deinit(&docs);
}

/* ---- The engine ---- */

/* Reports if the sequence could not be kept; then `*out_kept` is false. */
static bool rebuild(struct chat *c, const struct session_plan *plan, bool *out_kept)
{
    sac_error err = {0};
    bool kept = true;
    *out_kept = false;
    if (session_rebuild(&c->s, plan, &kept, &err) != SAC_OK) {
        fprintf(stderr, "%s\n", err.msg);
        if (!c->s.engine) c->quit = true;
        return false;
    }
    if (!kept) fprintf(stderr, "%s; the conversation is read again\n", err.msg);
    *out_kept = kept;
    return true;
}

/* "prefill" or "decode"; NULL if the name is ambiguous or unknown. */
static const char *kind_of(const char *spec)
{
    const size_t n = strcspn(spec, ":");
    const char *kind = NULL;
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        if (strlen(m.name) != n || memcmp(m.name, spec, n) != 0) continue;
        if (strcmp(m.kind, "context") == 0) continue; /* chats have no stored documents */
        if (kind) return NULL;
        kind = m.kind;
    }
    return kind;
}

static const char *skip_word(const char *arg, const char *word)
{
    const size_t n = strlen(word);
    if (strncasecmp(arg, word, n) != 0 || (arg[n] != ' ' && arg[n])) return NULL;
    return arg + n + strspn(arg + n, " ");
}

static void show_methods(const struct chat *c)
{
    const sac_engine_params p = sac_engine_get_params(c->s.engine);
    printf("prefill  %s\ndecode   %s\n", p.prefill[0], p.decode[0]);
    printf("'saccade methods' explains them; /method prefill SPEC, /method decode SPEC\n");
}

/* Explains that both kinds, or none, have a method of this name. */
static void explain_kinds(const char *spec)
{
    const size_t n = strcspn(spec, ":");
    struct suggest near = suggest_begin(spec, n);
    char hint[SUGGEST_HINT_BYTES];
    sac_method_info m;
    bool is_there = false;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        suggest_try(&near, m.name, strlen(m.name));
        if (strlen(m.name) == n && memcmp(m.name, spec, n) == 0) is_there = true;
    }
    if (is_there)
        fprintf(stderr, "there are two: /method prefill %s and /method decode %s\n", spec, spec);
    else
        fprintf(stderr, "there is no method '%.*s'%s; 'saccade methods' lists them\n", (int)n, spec,
                suggest_hint(&near, hint));
}

static void command_method(struct chat *c, const char *arg)
{
    struct session_plan plan = c->s.plan;
    sac_error err = {0};
    char spec[256];
    if (!*arg) return show_methods(c);
    const char *prefill = skip_word(arg, "prefill"), *decode = skip_word(arg, "decode");
    const char *text = prefill ? prefill : decode ? decode : arg;
    const size_t n = strcspn(text, " ");
    if (text[n + strspn(text + n, " ")])
        return (void)fprintf(stderr,
                             "/method: what is '%.40s' for? Parameters stand behind a colon, "
                             "as in quest:budget=1024\n",
                             text + n + strspn(text + n, " "));
    snprintf(spec, sizeof spec, "%.*s", (int)n, text);
    const char *kind = prefill ? "prefill" : decode ? "decode" : kind_of(spec);
    if (!kind) return explain_kinds(spec);
    if (sac_method_check(kind, spec, &err) != SAC_OK) return (void)fprintf(stderr, "%s\n", err.msg);
    snprintf(strcmp(kind, "prefill") == 0 ? plan.prefill : plan.decode, sizeof spec, "%s", spec);
    bool kept;
    if (rebuild(c, &plan, &kept))
        printf("%s %s from now on%s\n", kind, spec,
               kept ? "; what was read before stays as it is" : "");
}

static void command_ctx(struct chat *c, const char *arg)
{
    struct session_plan plan = c->s.plan;
    uint64_t n;
    if (!*arg) return (void)printf("the context holds %u tokens\n", plan.n_ctx);
    if (!units_tokens(arg, &n) || n < N_CTX_LEAST || n > UINT32_MAX)
        return (void)fprintf(stderr, "/ctx: '%.40s' is no number of tokens, at least %u\n", arg,
                             N_CTX_LEAST);
    const uint32_t held = sac_seq_length(c->s.engine, c->s.seq, NULL);
    if (n < held)
        return (void)fprintf(stderr, "/ctx: %u tokens are held already; /clear first\n", held);
    bool kept;
    plan.n_ctx = (uint32_t)n;
    if (!rebuild(c, &plan, &kept)) return;
    printf("the context holds %u tokens\n", plan.n_ctx);
    setup_warn_of_context(CHAT_COMMAND, c->s.model, plan.n_ctx);
}

static void command_stats(struct chat *c, const char *arg)
{
    (void)arg;
    const sac_timings *t = &c->s.timings;
    const sac_engine_stats s = sac_engine_get_stats(c->s.engine);
    char used[UNITS_BYTES], planned[UNITS_BYTES];
    printf("last prompt  %u tokens in %.1f ms (%.1f tokens/s), %u reused\n",
           t->n_prompt - t->n_reused, t->prompt_ms, t->prompt_per_s, t->n_cached);
    if (t->n_reused) printf("             %u of them were found by their content\n", t->n_reused);
    printf("last answer  %u tokens in %.1f ms (%.1f tokens/s)\n", t->n_predicted, t->predicted_ms,
           t->predicted_per_s);
    printf("context      %u of %u tokens\n", sac_seq_length(c->s.engine, c->s.seq, NULL),
           c->s.plan.n_ctx);
    printf("KV           %s used of %s planned\n", units_size(s.kv_bytes_used, used),
           units_size(s.kv_bytes, planned));
}

/* ---- Settings ---- */

static const struct option_spec own_specs[] = {
    {"--predict --n-predict --max-tokens --n", OPTION_I32, offsetof(struct session, n_predict), "N",
     "maximum tokens of an answer; -1: up to the end of the context", .min = -1, .max = INT32_MAX,
     .env = NULL},
    {"--ignore-eos", OPTION_FLAG, offsetof(struct session, ignore_eos), NULL,
     "never sample the tokens that end an answer", .env = NULL},
    {0},
};

/* Splits "top_p=0.9", "Top-P 0.9" and "--top-p 0.9" into "--top-p" and "0.9". */
static const char *split_setting(const char *arg, char name[64])
{
    const char *bare = arg + strspn(arg, "-");
    const size_t n = strcspn(bare, " ="), n_gap = strspn(bare + n, " =");
    snprintf(name, 64, "--%.*s", (int)(n < 60 ? n : 60), bare);
    for (char *at = name; *at; at++)
        *at = *at == '_' ? '-' : *at >= 'A' && *at <= 'Z' ? (char)(*at + 32) : *at;
    return bare[n + n_gap] ? bare + n + n_gap : NULL;
}

static void report_no_setting(const struct options *o)
{
    fprintf(stderr, "/set needs a name and a value, as in: /set temp 0.7; there are");
    for (size_t g = 0; g < o->n_group; g++)
        for (const struct option_spec *s = o->group[g].spec; s->names; s++) {
            const char *name = strstr(s->names, "--");
            if (name && s->type != OPTION_LIST)
                fprintf(stderr, " %.*s", (int)strcspn(name + 2, " "), name + 2);
        }
    fprintf(stderr, "\n");
}

/* Sets a single-valued option of answers or sampling, named as on the command line. */
static void command_set(struct chat *c, const char *arg)
{
    const struct option_group groups[] = {
        {"Answers", own_specs, &c->s},
        {"Sampling", setup_sampling_specs, &c->s.sampling},
    };
    struct options o = {.command = CHAT_COMMAND, .group = groups, .n_group = 2};
    char name[64], why[256];
    const int32_t n_predict = c->s.n_predict;
    const char *value = split_setting(arg, name);
    if (!*arg)
        report_no_setting(&o);
    else if (strcmp(name, "--logit-bias") == 0 || strcmp(name, "--dry-sequence-breaker") == 0)
        /* Their strings would have to outlive this line. */
        fprintf(stderr, "%s is possible on the command line only\n", name);
    else if (!options_set(&o, name, strlen(name), value, why))
        fprintf(stderr, "%s\n", why);
    if (c->s.n_predict != 0) return;
    fprintf(stderr, "0 tokens are no answer\n");
    c->s.n_predict = n_predict;
}

/* ---- The table ---- */

static void command_quit(struct chat *c, const char *arg)
{
    (void)arg;
    c->quit = true;
}

static void command_help(struct chat *c, const char *arg);

static const struct chat_command commands[] = {
    {"/file", "FILE [N/M]", command_file,
     "insert a document, or part N of M, before the next question"},
    {"/unfile", "[FILE]", chat_files_drop, "remove a document; without FILE the last one"},
    {"/docs", "", chat_files_list, "list the documents with their tokens"},
    {"/reading", "", command_reading, "show what the last answer read of the documents"},
    {"/method", "[KIND] SPEC", command_method, "change the prefill or decode method; show them"},
    {"/ctx", "[N]", command_ctx, "change the context length; show it"},
    {"/system", "[TEXT]", command_system, "set the system message; without TEXT, show it"},
    {"/regen", "", command_regen, "answer the last question again"},
    {"/clear", "", command_clear, "clear the conversation, keep the system message"},
    {"/save", "FILE", chat_files_save, "save the conversation to FILE and FILE.state"},
    {"/load", "FILE", chat_files_load, "continue the conversation in a file"},
    {"/set", "NAME VALUE", command_set, "change a sampling parameter, as in: /set temp 0.7"},
    {"/stats", "", command_stats, "show times and memory"},
    {"/help", "", command_help, "this list"},
    {"/quit", "", command_quit, "quit, as do /exit and Ctrl-D"},
};

#define N_COMMAND (sizeof commands / sizeof commands[0])

static void command_help(struct chat *c, const char *arg)
{
    (void)c;
    (void)arg;
    for (size_t i = 0; i < N_COMMAND; i++)
        printf("%-8s %-12s %s\n", commands[i].name, commands[i].arg, commands[i].help);
    printf("A line that ends in \\ continues on the next one. Tab completes, arrow keys "
           "recall\nearlier lines. Ctrl-C stops an answer.\n");
}

const struct chat_command *chat_commands_at(size_t i)
{
    return i < N_COMMAND ? &commands[i] : NULL;
}

static const struct chat_command *find(const char *text, size_t n)
{
    if (n == 5 && strncasecmp(text, "/exit", 5) == 0) return find("/quit", 5);
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strlen(commands[i].name) == n && strncasecmp(commands[i].name, text, n) == 0)
            return &commands[i];
    return NULL;
}

bool chat_commands_known(const char *text)
{
    return find(text, strcspn(text, " \n")) != NULL;
}

void chat_commands_run(struct chat *c, const char *text)
{
    const size_t n = strcspn(text, " \n");
    const struct chat_command *command = find(text, n);
    const char *const arg = text + n + strspn(text + n, " ");
    if (command && *arg && !*command->arg) {
        fprintf(stderr, "%s takes nothing behind it\n", command->name);
    } else if (command) {
        command->run(c, arg);
    } else {
        struct suggest near = suggest_begin(text, n);
        char hint[SUGGEST_HINT_BYTES];
        for (size_t i = 0; i < N_COMMAND; i++)
            suggest_try(&near, commands[i].name, strlen(commands[i].name));
        fprintf(stderr, "unknown command %.*s%s; /help lists them\n", (int)n, text,
                suggest_hint(&near, hint));
    }
    if (!output_write("", 0)) c->quit = true;
}
