/* chat.c: `saccade chat`, a conversation in the terminal: the options, questions and answers, and
 * the loop. A document of `-f` is computed right at the start, while the user thinks about a
 * question.
 *
 * Ctrl-C stops an answer, discards a line that is being typed, and exits if pressed twice in a row
 * at an empty prompt. */
#include "app/chat.h"
#include "app/app.h"
#include "app/docs.h"
#include "app/interrupt.h"
#include "app/joined.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup_method.h"
#include "app/setup_sampling.h"
#include "app/source.h"
#include "base/mem.h"
#include "eval/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct chat_options {
    const char *system, *template_name, *template_file, *rows;
    struct option_list files, stop;
    int32_t n_predict;
    bool as_is, ignore_eos, single_turn, no_prefix_cache;
    const char *docs, *context, *store;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct chat_options, field), arg, help, __VA_ARGS__                  \
    }

static const struct option_spec specs[] = {
    OPT("-f --file", OPTION_LIST, files, "FILE",
        "document that precedes the first question; repeatable", .env = NULL),
    OPT("--docs", OPTION_TEXT, docs, "NAME,NAME", JOINED_DOCS_HELP, .env = NULL),
    OPT("--context", OPTION_TEXT, context, "SPEC", JOINED_CONTEXT_HELP, .env = "CONTEXT",
        .needs = "--docs"),
    OPT("--store", OPTION_TEXT, store, "DIR", DOCS_STORE_HELP, .env = NULL, .needs = "--docs"),
    OPT("--as-is", OPTION_FLAG, as_is, NULL, SOURCE_AS_IS_HELP, .env = NULL),
    OPT("-sys --system-prompt", OPTION_TEXT, system, "TEXT", "system message", .env = NULL),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "name of a built-in template, or template text, to use instead of the model's own",
        .env = "CHAT_TEMPLATE"),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE", "file with a chat template",
        .env = "CHAT_TEMPLATE_FILE"),
    OPT("-n --predict --n-predict --max-tokens", OPTION_I32, n_predict, "N",
        "maximum tokens of an answer; -1: up to the end of the context", .env = "N_PREDICT",
        .min = -1, .max = INT32_MAX),
    OPT("--decode-rows", OPTION_TEXT, rows, "N|question", QUESTION_HELP, .env = NULL),
    OPT("--stop -r --reverse-prompt", OPTION_LIST, stop, "TEXT",
        "stop an answer before this text; repeatable", .env = NULL),
    OPT("-st --single-turn", OPTION_FLAG, single_turn, NULL, "exit after the first answer",
        .env = NULL),
    OPT("--ignore-eos", OPTION_FLAG, ignore_eos, NULL, "never sample the tokens that end an answer",
        .env = NULL),
    OPT("--no-enable-prefix-caching", OPTION_FLAG, no_prefix_cache, NULL,
        "do not keep what is removed from the conversation in memory for later reuse", .env = NULL),
    {0},
};

/* State of the program, and everything to free. */
struct chat_program {
    struct chat_options opt;
    struct chat chat;
    struct strbuf template_text;
};

/* ---- Questions and answers ---- */

void chat_answer(struct chat *c)
{
    struct generation g = {0};
    struct conversation *said = &c->s.said;
    sac_error err = {0};
    interrupt_clear();
    const sac_status status = session_answer(&c->s, &g, &err);
    if (!g.output_lost) output_write("\n", 1);
    if (status != SAC_OK)
        fprintf(stderr, "saccade " CHAT_COMMAND ": %s%s\n", err.msg,
                status == SAC_ERR_CONTEXT
                    ? " (/ctx N makes it longer, /unfile and /clear make room)"
                    : "");
    else if (g.finish == SAC_FINISH_CANCELLED && !g.output_lost)
        fprintf(stderr, "[interrupted]\n");
    else if (g.finish == SAC_FINISH_LENGTH)
        fprintf(stderr, "[cut off after %zu tokens%s]\n", g.n_tok,
                c->s.n_predict >= 0 && g.n_tok >= (size_t)c->s.n_predict
                    ? ""
                    : ": the context is full; /ctx N makes it longer");
    if (g.n_tok == 0 || conversation_answer(said, g.text.data, g.text.n, &err) != SAC_OK)
        conversation_unask(said);
    if (g.output_lost) c->quit = true;
    interrupt_clear();
    generation_deinit(&g);
}

static void ask(struct chat *c, const char *text)
{
    sac_error err = {0};
    if (conversation_ask(&c->s.said, text, &err) == SAC_OK)
        chat_answer(c);
    else
        fprintf(stderr, "saccade " CHAT_COMMAND ": %s\n", err.msg);
}

/* ---- The loop ---- */

/* A pasted text that begins with a slash need not be a command; it may be code or a path. */
static bool is_command(const char *text)
{
    return text[0] == '/' && (chat_commands_known(text) || !strchr(text, '\n'));
}

static int converse(struct chat *c, bool single_turn)
{
    struct strbuf text = {0};
    int code = EXIT_OK;
    bool warned = false; /* the previous input was Ctrl-C at an empty prompt */
    while (!c->quit) {
        const enum line_editor_result result = line_editor_read(c->editor, &text);
        if (result == LINE_EDITOR_END) break;
        if (result == LINE_EDITOR_INTERRUPTED && (warned || !line_editor_is_terminal(c->editor))) {
            code = EXIT_INTERRUPTED;
            break;
        }
        interrupt_clear(); /* before the message that asks for a second Ctrl-C */
        if (result == LINE_EDITOR_INTERRUPTED) fprintf(stderr, "\n(Ctrl-C again leaves)\n");
        if (result == LINE_EDITOR_DROPPED) fprintf(stderr, "\n");
        warned = result == LINE_EDITOR_INTERRUPTED;
        if (result != LINE_EDITOR_READ || text.n == 0) continue;
        if (text.failed) {
            fprintf(stderr, "out of memory for the question\n");
        } else if (is_command(text.data)) {
            chat_commands_run(c, text.data);
        } else {
            ask(c, text.data);
            if (single_turn) c->quit = true;
        }
    }
    if (line_editor_is_terminal(c->editor)) putchar('\n');
    strbuf_deinit(&text);
    return code;
}

/* Adds the documents of -f. In a script, one that does not fit is an error, because the questions
 * would be answered without it. */
static sac_status take_documents(struct chat_program *p, sac_error *err)
{
    for (size_t i = 0; i < p->opt.files.n; i++) {
        const sac_status status = chat_files_take(&p->chat, p->opt.files.item[i], stderr, err);
        if (status == SAC_ERR_CONTEXT && line_editor_is_terminal(p->chat.editor)) continue;
        if (status != SAC_OK) return status;
    }
    return p->chat.s.said.next.n_document ? session_read_ahead(&p->chat.s, err) : SAC_OK;
}

static sac_status prepare(struct chat_program *p, sac_error *err)
{
    struct session *s = &p->chat.s;
    TRY(prompt_template(&s->chat_template, p->opt.template_name, p->opt.template_file,
                        &p->template_text, err));
    if (p->opt.system) s->said.system = mem_strdup(p->opt.system);
    if (p->opt.system && !s->said.system)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the system message");
    TRY(session_open(s, err));
    /* Reports a missing chat template now, not for each question. */
    size_t n_tok = 0;
    TRY(session_count(s, &n_tok, err));
    return line_editor_open(&p->chat.editor, chat_complete, &p->chat, err);
}

static int chat_all(struct chat_program *p)
{
    struct chat *c = &p->chat;
    sac_error err = {0};
    if (p->opt.n_predict == 0)
        return options_usage_error(CHAT_COMMAND, "option '-n': 0 tokens are no answer");
    if (question_parse(&c->s.rows_wanted, p->opt.rows, &err) != SAC_OK)
        return options_usage_error(CHAT_COMMAND, "option '--decode-rows': %s", err.msg);
    if (p->opt.docs && joined_check(p->opt.docs, p->opt.context, &err) != SAC_OK)
        return options_usage_error(CHAT_COMMAND, "%s", err.msg);
    for (size_t i = 0; i < p->opt.files.n; i++) { /* a wrong name is reported at once */
        const char *name = p->opt.files.item[i];
        if (strcmp(name, "-") == 0 && !isatty(STDIN_FILENO))
            return options_usage_error(CHAT_COMMAND, "option '-f': stdin has the questions; "
                                                     "'saccade run -f - -p TEXT' asks one");
        if (strcmp(name, "-") == 0 || access(name, R_OK) == 0) continue;
        fprintf(stderr, "saccade " CHAT_COMMAND ": cannot open %s: %s\n", name, strerror(errno));
        return EXIT_RUNTIME;
    }
    int code = setup_method_context(&c->s.setup, p->opt.context);
    if (code == OPTIONS_GO_ON)
        code = structure_check(&c->s.structure, CHAT_COMMAND, p->opt.ignore_eos);
    if (code == OPTIONS_GO_ON) code = setup_load(&c->s.setup, &c->s.model);
    if (code != OPTIONS_GO_ON) return code;
    const sac_status status = prepare(p, &err);
    if (status != SAC_OK) return setup_failed(CHAT_COMMAND, status, err.msg);
    if (take_documents(p, &err) != SAC_OK) return EXIT_RUNTIME;
    if (line_editor_is_terminal(c->editor))
        fprintf(stderr, "%s, context of %u tokens; /help lists the commands\n",
                sac_model_get_info(c->s.model).name, c->s.plan.n_ctx);
    return converse(c, p->opt.single_turn);
}

int app_chat(int argc, char **argv)
{
    struct chat_program p = {
        .opt = {.n_predict = -1, .rows = "1"},
        .chat = {.s = {.setup = setup_default(CHAT_COMMAND), .sampling = setup_sampling_default()}},
    };
    const struct option_group groups[] = {
        {"Conversation", specs, &p.opt},
        {"Model", setup_specs, &p.chat.s.setup},
        {"Sampling", setup_sampling_specs, &p.chat.s.sampling},
        {"Structured output", structure_specs, &p.chat.s.structure},
    };
    struct options o = {
        .command = CHAT_COMMAND,
        .usage = "-m MODEL [-f FILE] [options]",
        .summary = "Holds a conversation in the terminal. If stdin is not a terminal, each of its "
                   "lines is one question or command.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    p.chat.as_is = p.opt.as_is;
    p.chat.s.n_predict = p.opt.n_predict;
    p.chat.s.ignore_eos = p.opt.ignore_eos;
    p.chat.s.no_prefix_cache = p.opt.no_prefix_cache;
    p.chat.s.stop = p.opt.stop;
    p.chat.s.docs = p.opt.docs;
    p.chat.s.context = p.opt.context ? p.chat.s.setup.context_spec : NULL;
    p.chat.s.store = p.opt.store;
    interrupt_install();
    code = chat_all(&p);
    line_editor_close(p.chat.editor);
    session_close(&p.chat.s);
    strbuf_deinit(&p.template_text);
    return code;
}
