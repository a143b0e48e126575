/* run.c: `saccade run` answers one prompt, for pipes and scripts: the answer on stdout, everything
 * else on stderr. With `-o json` stdout is one object and nothing streams. Here are the options and
 * the order of the steps; run.h lists the files that take them. */
#include "app/run.h"
#include "app/app.h"
#include "app/docs.h"
#include "app/escape.h"
#include "app/interrupt.h"
#include "app/setup_method.h"
#include "app/setup_sampling.h"
#include "app/source.h"
#include "base/textfile.h"

#include "saccade.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct run_options, field), arg, help, __VA_ARGS__                   \
    }

static const struct option_spec specs[] = {
    OPT("-p --prompt", OPTION_TEXT, prompt, "TEXT", "question or instruction", .env = NULL),
    OPT("-f --file", OPTION_LIST, files, "FILE",
        "document that precedes the prompt; - is stdin; repeatable", .env = NULL),
    OPT("--docs", OPTION_TEXT, docs, "NAME,NAME", JOINED_DOCS_HELP, .env = NULL),
    OPT("--context", OPTION_TEXT, context, "SPEC", JOINED_CONTEXT_HELP, .env = "CONTEXT",
        .needs = "--docs"),
    OPT("--store", OPTION_TEXT, store, "DIR", DOCS_STORE_HELP, .env = NULL, .needs = "--docs"),
    OPT("--save-state", OPTION_TEXT, save_state, "FILE",
        "save what was computed for the documents to FILE, for other questions; without -p the "
        "command stops there",
        .env = NULL),
    OPT("--load-state", OPTION_TEXT, load_state, "FILE",
        "load from FILE; what it holds of this prompt, -f included, is not computed again",
        .env = NULL),
    OPT("-sys --system-prompt", OPTION_TEXT, system, "TEXT", "system message", .env = NULL),
    OPT("--raw --no-chat -no-cnv --no-conversation", OPTION_FLAG, raw, NULL,
        "complete the text as it is, without a chat template; documents byte for byte",
        .env = NULL),
    OPT("--as-is", OPTION_FLAG, as_is, NULL, SOURCE_AS_IS_HELP, .env = NULL, .needs = "-f"),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "name of a built-in template, or template text, to use instead of the model's own",
        .env = "CHAT_TEMPLATE", .without = "--raw", .told = true),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE", "file with a chat template",
        .env = "CHAT_TEMPLATE_FILE", .without = "--raw", .told = true),
    OPT("-e --escape", OPTION_FLAG, escape, NULL,
        "interpret \\n \\r \\t \\\" \\' \\\\ and \\xNN in -p, -sys and --stop", .env = NULL),
    OPT("-n --predict --n-predict --max-tokens", OPTION_I32, n_predict, "N",
        "maximum tokens of the answer; -1: up to the end of the context", .env = "N_PREDICT",
        .min = -1, .max = INT32_MAX),
    OPT("--decode-rows", OPTION_TEXT, rows, "N|question", QUESTION_HELP, .env = NULL),
    OPT("--stop -r --reverse-prompt", OPTION_LIST, stop, "TEXT",
        "stop the answer before this text; repeatable", .env = NULL),
    OPT("--ignore-eos", OPTION_FLAG, ignore_eos, NULL, "never sample the tokens that end an answer",
        .env = NULL),
    OPT("--n-probs", OPTION_U32, n_probs, "N",
        "with -o json: the N most likely tokens at each position, with their log-probabilities",
        .env = NULL, .max = 1000),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: an object with text, tokens and timings when the answer is complete; html: a page, "
        "with --show-reading",
        .env = NULL, .choices = "text|json|html"),
    OPT("--show-reading", OPTION_FLAG, show_reading, NULL,
        "after the answer, show what it read: documents, passages by characters, and the texts "
        "with these marked",
        .env = NULL),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "print no timings on stderr", .env = NULL),
    {0},
};

/* Escapes are replaced in argv, which is writable. */
static void undo_escapes(const struct run_options *opt)
{
    if (opt->prompt) escape_undo((char *)(uintptr_t)opt->prompt);
    if (opt->system) escape_undo((char *)(uintptr_t)opt->system);
    for (size_t i = 0; i < opt->stop.n; i++) escape_undo((char *)(uintptr_t)opt->stop.item[i]);
}

/* Checked before a long document is read. */
static sac_status check_place(const char *path, sac_error *err)
{
    const char *slash = strrchr(path, '/');
    char folder[4096];
    const int n = slash ? (int)(slash - path) + 1 : 0;
    if (n >= (int)sizeof folder) return error_set(err, SAC_ERR_ARG, "a path is too long");
    snprintf(folder, sizeof folder, "%.*s.", n, path);
    TRY(textfile_replaceable(path, err));
    if (access(folder, W_OK) == 0) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

/* Checks what is possible before anything is read. */
static int check_options(struct run *r)
{
    sac_error err = {0};
    if (!r->opt.prompt && r->opt.files.n == 0)
        return options_usage_error(RUN_COMMAND, "a prompt is missing (-p TEXT or -f FILE)");
    if (r->opt.n_predict == 0)
        return options_usage_error(RUN_COMMAND, "option '-n': 0 tokens are no answer");
    for (size_t i = 0; i < r->opt.stop.n; i++)
        if (!*r->opt.stop.item[i])
            return options_usage_error(RUN_COMMAND, "option '--stop': an empty text is everywhere");
    if (r->opt.raw && (r->opt.system || r->opt.template_name || r->opt.template_file))
        return options_usage_error(RUN_COMMAND,
                                   "--raw cannot be combined with -sys or chat templates");
    if (r->opt.show_reading && r->opt.files.n == 0 && !r->opt.docs)
        return options_usage_error(RUN_COMMAND,
                                   "--show-reading needs a document (-f FILE, --docs NAME)");
    if (r->opt.format == RUN_HTML && !r->opt.show_reading)
        return options_usage_error(RUN_COMMAND, "-o html requires --show-reading");
    if (r->opt.n_probs > 0 && r->opt.format != RUN_JSON)
        return options_usage_error(RUN_COMMAND,
                                   "--n-probs needs -o json, which has a place for them");
    if (r->opt.load_state && r->opt.files.n == 0)
        return options_usage_error(RUN_COMMAND,
                                   "--load-state needs the documents that the file was "
                                   "saved with (-f FILE)");
    if (r->opt.save_state && r->opt.files.n == 0)
        return options_usage_error(RUN_COMMAND, "--save-state needs a document (-f FILE)");
    if (!run_answer_is_wanted(r) && (r->opt.format != RUN_TEXT || r->opt.show_reading))
        return options_usage_error(RUN_COMMAND, "without a question (-p) nothing is printed");
    if (r->opt.docs && (r->opt.load_state || r->opt.save_state))
        return options_usage_error(RUN_COMMAND,
                                   "--docs cannot be combined with --save-state or --load-state");
    if (r->opt.docs && joined_check(r->opt.docs, r->opt.context, &err) != SAC_OK)
        return options_usage_error(RUN_COMMAND, "%s", err.msg);
    if (question_parse(&r->rows, r->opt.rows, &err) != SAC_OK)
        return options_usage_error(RUN_COMMAND, "option '--decode-rows': %s", err.msg);
    return setup_method_context(&r->setup, r->opt.context);
}

static int run_all(struct run *r)
{
    sac_error err = {0};
    if (r->opt.escape) undo_escapes(&r->opt);
    int code = check_options(r);
    if (code != OPTIONS_GO_ON) return code;
    sac_status status = r->opt.save_state ? check_place(r->opt.save_state, &err) : SAC_OK;
    if (status == SAC_OK) status = run_prompt_read(r, &err);
    if (status == SAC_OK && r->opt.docs)
        status = joined_open(&r->joined, r->opt.store, r->opt.docs,
                             r->opt.context ? r->setup.context_spec : NULL, &err);
    if (status != SAC_OK) return setup_failed(RUN_COMMAND, status, err.msg);
    code = structure_check(&r->structure, RUN_COMMAND, r->opt.ignore_eos);
    if (code == OPTIONS_GO_ON) code = setup_load(&r->setup, &r->model);
    if (code != OPTIONS_GO_ON) return code;
    status = run_prompt_encode(r, &err);
    if (status == SAC_OK) status = run_answer(r, &err);
    if (status != SAC_OK) return setup_failed(RUN_COMMAND, status, err.msg);
    if (!run_answer_is_wanted(r)) return EXIT_OK;
    assert(r->gen.finish != SAC_FINISH_NONE);
    return run_report(r);
}

int app_run(int argc, char **argv)
{
    struct run r = {
        .opt = {.n_predict = 1024, .rows = "1"},
        .setup = setup_default(RUN_COMMAND),
        .sampling = setup_sampling_default(),
    };
    const struct option_group groups[] = {
        {"Prompt and answer", specs, &r.opt},
        {"Model", setup_specs, &r.setup},
        {"Sampling", setup_sampling_specs, &r.sampling},
        {"Structured output", structure_specs, &r.structure},
    };
    struct options o = {
        .command = RUN_COMMAND,
        .usage = "-m MODEL [-f FILE] [-p TEXT] [options]",
        .summary = "Answers one prompt. The answer streams to stdout, timings go to stderr. "
                   "Documents, a blank line and the prompt form one user message of a chat.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = run_all(&r);
    passages_deinit(&r.passages);
    reading_docs_deinit(&r.reading);
    generation_deinit(&r.gen);
    structure_close(&r.structure);
    sac_engine_free(r.engine);
    sac_model_free(r.model);
    sac_free(r.tok);
    sac_free(r.head);
    joined_close(&r.joined);
    strbuf_deinit(&r.text);
    strbuf_deinit(&r.template_text);
    return code;
}
