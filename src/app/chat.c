/* chat.c: `saccade chat`, a conversation in the terminal.
 *
 * Every turn renders the whole conversation, compares its tokens with those that the sequence
 * holds, and computes only what is new: the KV of a long document is computed once. A document of
 * `-f` is read right at the start, while the user thinks about a question.
 *
 * Invariant: held[0..n_held) are the tokens that the engine's sequence has computed, in order. It
 * is what makes an interrupted answer, /regen, /system and /clear all the same case: a shorter
 * common beginning. */
#include "app/app.h"
#include "app/conversation.h"
#include "app/generate.h"
#include "app/interrupt.h"
#include "app/line.h"
#include "app/options.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "app/setup.h"
#include "base/input.h"
#include "eval/question.h"

#include "base/mem.h"
#include "saccade.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define COMMAND "chat"

struct chat_options {
    const char *system, *template_name, *template_file, *rows;
    struct option_list files, stop;
    int32_t n_predict;
    bool ignore_eos;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct chat_options, field), arg, help, __VA_ARGS__                  \
    }

static const struct option_spec specs[] = {
    OPT("-f --file", OPTION_LIST, files, "FILE",
        "a document that is read first and stands before the first question; repeatable",
        .env = NULL),
    OPT("-sys --system-prompt", OPTION_TEXT, system, "TEXT", "system message", .env = NULL),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "a built-in template's name, or template text, instead of the model's own",
        .env = "CHAT_TEMPLATE"),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE", "a file with a chat template",
        .env = "CHAT_TEMPLATE_FILE"),
    OPT("-n --predict --n-predict", OPTION_I32, n_predict, "N",
        "most tokens of an answer; -1: up to the end of the context", .env = "N_PREDICT", .min = -1,
        .max = INT32_MAX),
    OPT("--decode-rows", OPTION_TEXT, rows, "N|question", QUESTION_HELP, .env = NULL),
    OPT("--stop", OPTION_LIST, stop, "TEXT", "end an answer before this text; repeatable",
        .env = NULL),
    OPT("--ignore-eos", OPTION_FLAG, ignore_eos, NULL, "ban the tokens that end an answer",
        .env = NULL),
    {0},
};

struct chat {
    struct chat_options opt;
    struct setup setup;
    struct setup_sampling sampling;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct question_rows rows; /* in force */
    uint64_t n_asked;          /* each answer draws with a seed of its own, so /regen differs */

    sac_model *model;
    sac_engine *engine;
    sac_seq seq;
    uint32_t n_ctx;
    int32_t *held; /* owned, [n_ctx] */
    uint32_t n_held;

    struct line *line;
    struct conversation said;
    const char *chat_template;
    struct strbuf template_text;
    struct strbuf document; /* stands before the next question */

    sac_timings timings; /* of the last answer */
    bool quit;
};

/* ---- The conversation ---- */

/* The tokens of the conversation up to where the assistant speaks; `last`, if not NULL, stands in
 * the last turn's place. */
static sac_status render(const struct chat *c, const char *last, int32_t **out_tok, size_t *out_n,
                         sac_error *err)
{
    const struct conversation *said = &c->said;
    sac_message *msgs = mem_calloc(said->n_turn + 1, sizeof *msgs);
    size_t n = 0;
    if (!msgs) return error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation");
    if (said->system) msgs[n++] = (sac_message){.role = "system", .content = said->system};
    for (size_t i = 0; i < said->n_turn; i++)
        msgs[n++] = (sac_message){.role = said->turns[i].role, .content = said->turns[i].text};
    if (last) msgs[n - 1].content = last;
    const sac_status status = prompt_chat(c->model, msgs, n, c->chat_template, out_tok, out_n, err);
    mem_free(msgs);
    return status;
}

/* Cuts the sequence to what it shares with `tok` and returns how much that is; always less than n,
 * so that there is a row to take logits from. */
static sac_status keep_common(struct chat *c, const int32_t *tok, size_t n, uint32_t *out,
                              sac_error *err)
{
    uint32_t common = 0;
    assert(n > 0);
    if (n > c->n_ctx)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the conversation has %zu tokens, the context holds %u", n, c->n_ctx);
    while (common < c->n_held && common + 1 < n && c->held[common] == tok[common]) common++;
    TRY(sac_seq_truncate(c->engine, c->seq, common, err));
    c->n_held = *out = common;
    return SAC_OK;
}

/* After work on the sequence: of `prompt` behind the common part, then `said`, it has computed as
 * much as its length says. */
static void note_held(struct chat *c, const int32_t *tok, size_t n, const int32_t *said,
                      size_t n_said)
{
    const uint32_t length = sac_seq_length(c->engine, c->seq, NULL);
    assert(length <= n + n_said && length <= c->n_ctx);
    (void)n_said;
    for (uint32_t i = c->n_held; i < length; i++) c->held[i] = i < n ? tok[i] : said[i - n];
    c->n_held = length;
}

/* Computes the document's tokens ahead of the first question; Ctrl-C leaves the rest for later. */
static sac_status read_ahead(struct chat *c, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    uint32_t common = 0, pending = 1;
    TRY(conversation_add(&c->said, "user", c->document.data, c->document.n, err));
    sac_status status = render(c, NULL, &tok, &n, err);
    conversation_drop_last(&c->said);
    if (status != SAC_OK) return status;
    struct progress bar;
    progress_begin(&bar, "reading");
    status = keep_common(c, tok, n, &common, err);
    if (status == SAC_OK)
        status = sac_seq_append(c->engine, c->seq, tok + common, n - common, SAC_ROW_PROMPT,
                                SAC_WANT_NONE, err);
    while (status == SAC_OK && pending && !interrupt_pending()) {
        status = sac_step(c->engine, NULL, NULL, NULL, err);
        const uint32_t done = sac_seq_length(c->engine, c->seq, &pending);
        progress_update(&bar, (double)done / (double)n);
    }
    progress_end(&bar);
    interrupt_clear();
    if (status == SAC_OK && pending) /* what was queued behind the interrupt */
        status = sac_seq_truncate(c->engine, c->seq, sac_seq_length(c->engine, c->seq, NULL), err);
    if (status == SAC_OK) note_held(c, tok, n, tok, 0);
    sac_free(tok);
    return status;
}

/* ---- One answer ---- */

static sac_status encode_other(const void *arg, const char *question, int32_t **out_tok,
                               size_t *out_n, sac_error *err)
{
    const struct chat *c = arg;
    const struct turn *turn = &c->said.turns[c->said.n_turn - 1];
    struct strbuf text = {0};
    strbuf_add(&text, turn->text, turn->n_document);
    strbuf_adds(&text, question);
    const sac_status status =
        text.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation")
                    : render(c, text.data, out_tok, out_n, err);
    strbuf_deinit(&text);
    return status;
}

/* Of the prompt's rows behind the `common` ones, how many the decode method serves. */
static sac_status count_decode_rows(const struct chat *c, const int32_t *tok, size_t n,
                                    uint32_t common, uint32_t *out, sac_error *err)
{
    const struct question_text text = {encode_other, c};
    size_t question = 0;
    if (c->rows.all) TRY(question_find(&question, tok, n, &text, err));
    const size_t begin = question_rows_begin(&c->rows, n, question);
    *out = (uint32_t)(n - (begin > common ? begin : common));
    return SAC_OK;
}

static sac_status generate(struct chat *c, struct generation *g, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    uint32_t common = 0;
    g->engine = c->engine;
    g->model = c->model;
    g->stream = true;
    g->request = sac_request_default();
    TRY(setup_sampling_params(&c->sampling, &g->request.sampling, c->bias, err));
    if (c->sampling.seed >= 0) g->request.sampling.seed = (uint64_t)c->sampling.seed + c->n_asked;
    c->n_asked++;
    TRY(render(c, NULL, &tok, &n, err));
    sac_status status = keep_common(c, tok, n, &common, err);
    if (status == SAC_OK)
        status = count_decode_rows(c, tok, n, common, &g->request.n_decode_row, err);
    if (status == SAC_OK) {
        g->request.seq = c->seq;
        g->request.prompt = tok + common;
        g->request.n_prompt = n - common;
        g->request.max_tokens = c->opt.n_predict < 0 ? 0 : (uint32_t)c->opt.n_predict;
        g->request.stop = c->opt.stop.item;
        g->request.n_stop = c->opt.stop.n;
        g->request.ignore_eos = c->opt.ignore_eos;
        status = generation_run(g, err);
        note_held(c, tok, n, g->tok, g->n_tok);
    }
    sac_free(tok);
    return status;
}

/* Answers the last turn, which is the user's. If nothing was said, that turn is dropped, so that
 * the conversation stays one of questions and answers. Returns whether there is an answer. */
static bool answer(struct chat *c)
{
    struct generation g = {0};
    sac_error err = {0};
    interrupt_clear();
    sac_status status = generate(c, &g, &err);
    c->timings = g.timings;
    if (!g.output_lost) output_write("\n", 1);
    if (status != SAC_OK)
        fprintf(stderr, "saccade " COMMAND ": %s%s\n", err.msg,
                status == SAC_ERR_CONTEXT ? " (/clear begins anew)" : "");
    else if (g.finish == SAC_FINISH_CANCELLED && !g.output_lost)
        fprintf(stderr, "[interrupted]\n");
    else if (g.finish == SAC_FINISH_LENGTH)
        fprintf(stderr, "[cut off after %zu tokens]\n", g.n_tok);
    const bool answered = g.n_tok > 0 && conversation_add(&c->said, "assistant", g.text.data,
                                                          g.text.n, &err) == SAC_OK;
    if (!answered) conversation_drop_last(&c->said);
    if (g.output_lost) c->quit = true;
    interrupt_clear();
    generation_deinit(&g);
    return answered;
}

static void ask(struct chat *c, const char *text)
{
    sac_error err = {0};
    const size_t n_document = c->document.n;
    strbuf_adds(&c->document, text);
    if (c->document.failed) {
        fprintf(stderr, "saccade " COMMAND ": out of memory for the question\n");
        c->document.failed = false;
        return;
    }
    bool answered = false;
    if (conversation_add(&c->said, "user", c->document.data, c->document.n, &err) == SAC_OK) {
        c->said.turns[c->said.n_turn - 1].n_document = n_document;
        answered = answer(c);
    } else {
        fprintf(stderr, "saccade " COMMAND ": %s\n", err.msg);
    }
    /* A document whose question was not answered waits for the next one. */
    c->document.data[c->document.n = answered ? 0 : n_document] = 0;
}

/* ---- Commands ---- */

struct chat_command {
    const char *name, *arg;
    void (*run)(struct chat *c, const char *arg);
    const char *help;
};

static void command_clear(struct chat *c, const char *arg)
{
    (void)arg;
    conversation_drop_turns(&c->said);
    strbuf_reset(&c->document);
}

static void command_system(struct chat *c, const char *arg)
{
    if (!*arg) {
        printf("%s\n", c->said.system ? c->said.system : "(no system message)");
        return;
    }
    char *copy = mem_strdup(arg);
    if (!copy) return (void)fprintf(stderr, "saccade " COMMAND ": out of memory\n");
    mem_free(c->said.system);
    c->said.system = copy;
}

/* The document and a blank line, to stand before the next question. */
static sac_status load_document(struct chat *c, const char *path, sac_error *err)
{
    const size_t before = c->document.n;
    TRY(input_read(&c->document, path, err));
    if (memchr(c->document.data + before, 0, c->document.n - before)) {
        c->document.data[c->document.n = before] = 0;
        return error_set(err, SAC_ERR_FORMAT, "%s holds a zero byte: not a text", path);
    }
    strbuf_adds(&c->document, "\n\n");
    return SAC_OK;
}

static void command_file(struct chat *c, const char *arg)
{
    sac_error err = {0};
    if (!*arg)
        fprintf(stderr, "/file needs the name of a file\n");
    else if (load_document(c, arg, &err) != SAC_OK)
        fprintf(stderr, "%s\n", err.msg);
    else
        printf("%s stands before your next question\n", arg);
}

static void command_regen(struct chat *c, const char *arg)
{
    (void)arg;
    if (c->said.n_turn < 2) return (void)fprintf(stderr, "there is no answer yet\n");
    conversation_drop_last(&c->said);
    (void)answer(c);
}

static void command_save(struct chat *c, const char *arg)
{
    sac_error err = {0};
    if (!*arg)
        fprintf(stderr, "/save needs the name of a file\n");
    else if (conversation_save(&c->said, arg, &err) != SAC_OK)
        fprintf(stderr, "%s\n", err.msg);
    else
        printf("%zu questions and answers are in %s\n", c->said.n_turn / 2, arg);
}

static void command_load(struct chat *c, const char *arg)
{
    sac_error err = {0};
    if (!*arg) return (void)fprintf(stderr, "/load needs the name of a file\n");
    if (conversation_load(&c->said, arg, &err) != SAC_OK)
        return (void)fprintf(stderr, "%s\n", err.msg);
    strbuf_reset(&c->document);
    printf("%zu questions and answers of %s stand before your next question\n", c->said.n_turn / 2,
           arg);
}

static void command_stats(struct chat *c, const char *arg)
{
    (void)arg;
    const sac_timings *t = &c->timings;
    const sac_engine_stats s = sac_engine_get_stats(c->engine);
    printf("last prompt  %u tokens in %.1f ms (%.1f tokens/s), %u reused\n", t->n_prompt,
           t->prompt_ms, t->prompt_per_s, t->n_cached);
    printf("last answer  %u tokens in %.1f ms (%.1f tokens/s)\n", t->n_predicted, t->predicted_ms,
           t->predicted_per_s);
    printf("context      %u of %u tokens\n", c->n_held, c->n_ctx);
    printf("KV           %llu bytes used of %llu planned\n", (unsigned long long)s.kv_bytes_used,
           (unsigned long long)s.kv_bytes);
}

/* "temp 0.7": any single-valued option of sampling, under the name it has on the command line. */
static void command_set(struct chat *c, const char *arg)
{
    const struct option_group group = {"Sampling", setup_sampling_specs, &c->sampling};
    const struct options o = {.command = COMMAND, .group = &group, .n_group = 1};
    char name[64], why[256];
    const size_t n = strcspn(arg, " "), n_blank = strspn(arg + n, " ");
    const int n_name = snprintf(name, sizeof name, "--%.*s", (int)(n < 60 ? n : 60), arg);
    const char *value = arg[n + n_blank] ? arg + n + n_blank : NULL;
    if (n == 0)
        fprintf(stderr, "/set needs a name and a value, as in: /set temp 0.7\n");
    else if (strcmp(name, "--logit-bias") == 0) /* its text would have to outlive this line */
        fprintf(stderr, "--logit-bias is possible on the command line only\n");
    else if (!options_set(&o, name, (size_t)n_name, value, why))
        fprintf(stderr, "%s\n", why);
}

static void command_quit(struct chat *c, const char *arg)
{
    (void)arg;
    c->quit = true;
}

static const struct chat_command chat_commands[] = {
    {"/file", "FILE", command_file, "put a document before the next question"},
    {"/system", "TEXT", command_system, "set the system message; without TEXT, show it"},
    {"/regen", "", command_regen, "answer the last question again"},
    {"/clear", "", command_clear, "forget the conversation, keep the system message"},
    {"/save", "FILE", command_save, "write the conversation to a file (JSON)"},
    {"/load", "FILE", command_load, "go on with the conversation in a file"},
    {"/set", "NAME VALUE", command_set, "change the sampling, as in: /set temp 0.7"},
    {"/stats", "", command_stats, "show times and memory"},
    {"/quit", "", command_quit, "leave, as does Ctrl-D"},
};

#define N_CHAT_COMMAND (sizeof chat_commands / sizeof chat_commands[0])

static void print_commands(void)
{
    for (size_t i = 0; i < N_CHAT_COMMAND; i++)
        printf("%-8s %-12s %s\n", chat_commands[i].name, chat_commands[i].arg,
               chat_commands[i].help);
    printf("A line that ends in \\ goes on in the next one. Ctrl-C stops an answer.\n");
}

static void run_chat_command(struct chat *c, const char *text)
{
    const size_t n = strcspn(text, " ");
    const struct chat_command *found = NULL;
    for (size_t i = 0; i < N_CHAT_COMMAND; i++)
        if (strlen(chat_commands[i].name) == n && memcmp(chat_commands[i].name, text, n) == 0)
            found = &chat_commands[i];
    if (found)
        found->run(c, text + n + strspn(text + n, " "));
    else if (strcmp(text, "/help") == 0)
        print_commands();
    else
        fprintf(stderr, "unknown command %.*s; /help lists them\n", (int)n, text);
    if (!output_write("", 0)) c->quit = true;
}

/* ---- The loop ---- */

static int converse(struct chat *c)
{
    struct strbuf text = {0};
    int code = EXIT_OK;
    bool warned = false; /* the last thing typed was Ctrl-C */
    while (!c->quit) {
        const enum line_result result = line_read(c->line, &text);
        if (result == LINE_END) break;
        if (result == LINE_INTERRUPTED) {
            code = EXIT_INTERRUPTED;
            if (warned || !line_is_terminal(c->line)) break;
            interrupt_clear(); /* before the word that asks for the next one */
            fprintf(stderr, "\n(Ctrl-C again leaves)\n");
            code = EXIT_OK;
            warned = true;
            continue;
        }
        warned = false;
        if (text.n == 0) continue;
        if (text.data[0] == '/')
            run_chat_command(c, text.data);
        else
            ask(c, text.data);
    }
    if (line_is_terminal(c->line)) putchar('\n');
    strbuf_deinit(&text);
    return code;
}

static sac_status prepare(struct chat *c, sac_error *err)
{
    TRY(prompt_template(&c->chat_template, c->opt.template_name, c->opt.template_file,
                        &c->template_text, err));
    c->n_ctx = c->setup.n_ctx ? c->setup.n_ctx : sac_model_get_info(c->model).n_ctx_train;
    sac_engine_params params = setup_engine_params(&c->setup, c->n_ctx, 1);
    TRY(sac_engine_create(&c->engine, c->model, &params, err));
    params = sac_engine_get_params(c->engine);
    c->rows = question_in_force(c->rows, params.prefill[0], params.decode[0]);
    setup_warn_of_context(COMMAND, c->model, c->n_ctx);
    TRY(sac_seq_create(c->engine, &c->seq, err));
    c->held = mem_calloc(c->n_ctx, sizeof *c->held);
    if (c->opt.system) c->said.system = mem_strdup(c->opt.system);
    if (!c->held || (c->opt.system && !c->said.system))
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %u tokens", c->n_ctx);
    if (c->document.n) TRY(read_ahead(c, err));
    return line_open(&c->line, err);
}

static int chat_all(struct chat *c)
{
    sac_error err = {0};
    if (c->opt.n_predict == 0)
        return options_usage_error(COMMAND, "option '-n': 0 tokens are no answer");
    if (question_parse(&c->rows, c->opt.rows, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--decode-rows': %s", err.msg);
    sac_status status = SAC_OK;
    for (size_t i = 0; status == SAC_OK && i < c->opt.files.n; i++)
        status = load_document(c, c->opt.files.item[i], &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    const int code = setup_load(&c->setup, &c->model);
    if (code != OPTIONS_GO_ON) return code;
    status = prepare(c, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (line_is_terminal(c->line))
        fprintf(stderr, "%s, context of %u tokens; /help lists the commands\n",
                sac_model_get_info(c->model).name, c->n_ctx);
    return converse(c);
}

int app_chat(int argc, char **argv)
{
    struct chat c = {
        .opt = {.n_predict = -1, .rows = "1"},
        .setup = setup_default(COMMAND),
        .sampling = setup_sampling_default(),
    };
    const struct option_group groups[] = {
        {"Conversation", specs, &c.opt},
        {"Model", setup_specs, &c.setup},
        {"Sampling", setup_sampling_specs, &c.sampling},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [-f FILE] [options]",
        .summary =
            "A conversation in the terminal. When stdin is no terminal, each of its lines is "
            "one question or command.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = chat_all(&c);
    line_close(c.line);
    conversation_deinit(&c.said);
    mem_free(c.held);
    strbuf_deinit(&c.document);
    strbuf_deinit(&c.template_text);
    sac_engine_free(c.engine);
    sac_model_free(c.model);
    return code;
}
