/* tokenize.c: `saccade tokenize` prints the ids of a text, as one JSON list or one token per line.
 *
 * Defaults are those of a prompt: BOS if the model wants it, and control tokens written in the text
 * become their ids. TEXT is taken byte for byte: no escapes, no newline is removed. A file is read
 * as other commands read documents, with --raw byte for byte. */
#include "app/app.h"
#include "app/output.h"
#include "app/setup.h"
#include "app/source.h"
#include "eval/markup.h"

#include "saccade.h"

#include <stdio.h>
#include <string.h>

enum format { FORMAT_JSON, FORMAT_TEXT };

struct tokenize_options {
    const char *model, *pre, *file;
    int format;
    bool raw, no_bos, no_parse_special, special;
};

static const struct option_spec specs[] = {
    {"-m --model", OPTION_TEXT, offsetof(struct tokenize_options, model), .arg = "FILE",
     .help = "GGUF file, or the name of a fetched model (folder: $SACCADE_MODELS)", .env = "MODEL"},
    {"-f --file", OPTION_TEXT, offsetof(struct tokenize_options, file), .arg = "FILE",
     .help = "read the text from this document; - is stdin"},
    {"--raw --as-is", OPTION_FLAG, offsetof(struct tokenize_options, raw),
     .help = SOURCE_AS_IS_HELP},
    {"--no-bos", OPTION_FLAG, offsetof(struct tokenize_options, no_bos),
     .help = "do not add BOS and EOS, even if the model wants them"},
    {"--no-parse-special", OPTION_FLAG, offsetof(struct tokenize_options, no_parse_special),
     .help = "treat control tokens written in the text as text"},
    {"--special", OPTION_FLAG, offsetof(struct tokenize_options, special),
     .help = "show the names of control tokens, with -o text"},
    {"-o --output", OPTION_CHOICE, offsetof(struct tokenize_options, format),
     .choices = "json|text",
     .help = "json: one list of ids; text: one line per token, with id and piece"},
    {"--override-pre", OPTION_TEXT, offsetof(struct tokenize_options, pre), .arg = "NAME",
     .help = "pre-tokenizer to use instead of the one that the file names", .env = "OVERRIDE_PRE"},
    {0},
};

/* Prints a piece in quotes on one line. Control characters and incomplete characters are printed as
 * numbers. */
static void add_piece(struct strbuf *out, const char *piece, size_t n)
{
    strbuf_add(out, "\"", 1);
    for (size_t i = 0, n_char; i < n; i += n_char) {
        const unsigned char c = (unsigned char)piece[i];
        const size_t n_whole = markup_utf8(piece + i, n - i);
        n_char = n_whole ? n_whole : 1;
        if (c == '"' || c == '\\')
            strbuf_addf(out, "\\%c", c);
        else if (c == '\n')
            strbuf_adds(out, "\\n");
        else if (c < 0x20 || c == 0x7f || !n_whole)
            strbuf_addf(out, "\\x%02x", c);
        else
            strbuf_add(out, piece + i, n_char);
    }
    strbuf_add(out, "\"\n", 2);
}

static void format_tokens(struct strbuf *out, const sac_model *model, const int32_t *tok, size_t n,
                          const struct tokenize_options *opt)
{
    const bool json = opt->format == FORMAT_JSON;
    if (json) strbuf_add(out, "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (json) {
            strbuf_addf(out, "%s%d", i ? ", " : "", tok[i]);
            continue;
        }
        size_t n_piece;
        const char *piece = sac_token_piece(model, tok[i], opt->special, &n_piece);
        strbuf_addf(out, "%6d ", tok[i]);
        add_piece(out, piece, n_piece);
    }
    strbuf_adds(out, json ? "]\n" : "");
}

static int tokenize(const sac_model *model, const struct strbuf *text,
                    const struct tokenize_options *opt)
{
    int32_t *tok = NULL;
    size_t n = 0;
    sac_error err = {0};
    const unsigned flags = (opt->no_bos ? 0u : (unsigned)SAC_TOK_ADD_SPECIAL) |
                           (opt->no_parse_special ? 0u : (unsigned)SAC_TOK_PARSE_SPECIAL);
    const sac_status status = sac_tokenize(model, text->data, text->n, flags, &tok, &n, &err);
    if (status != SAC_OK) return setup_failed("tokenize", status, err.msg);
    struct strbuf out = {0};
    format_tokens(&out, model, tok, n, opt);
    sac_free(tok);
    int code = EXIT_OK;
    if (out.failed)
        code = setup_failed("tokenize", SAC_ERR_MEMORY, "out of memory for the output");
    else
        output_write(out.data, out.n);
    strbuf_deinit(&out);
    return code;
}

int app_tokenize(int argc, char **argv)
{
    struct tokenize_options opt = {.format = FORMAT_JSON};
    const struct option_group group = {"Options", specs, &opt};
    const char *operand[1];
    struct options o = {
        .command = "tokenize",
        .usage = "-m MODEL [-f FILE | TEXT | -] [options]",
        .summary = "Prints the token ids of a text. TEXT is taken byte for byte, valid UTF-8 or "
                   "not; so is a file with --raw.",
        .group = &group,
        .n_group = 1,
        .operand = operand,
        .operand_max = 1,
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (o.n_operand == (opt.file != NULL))
        return options_usage_error(o.command, opt.file ? "both a TEXT and a file are given"
                                                       : "a text is missing (TEXT, - or -f FILE)");
    const char *const path = opt.file ? opt.file : strcmp(operand[0], "-") == 0 ? "-" : NULL;
    struct strbuf text = {0};
    sac_error err = {0};
    if (path) {
        const sac_status status = source_read(&text, path, opt.raw, &err);
        if (status != SAC_OK) code = setup_failed(o.command, status, err.msg);
    } else {
        strbuf_adds(&text, operand[0]);
        if (text.failed) code = setup_failed(o.command, SAC_ERR_MEMORY, "out of memory");
    }
    struct setup setup = setup_default(o.command);
    setup.model = opt.model;
    setup.pre = opt.pre;
    setup.no_screen = true;
    sac_model *model = NULL;
    if (code == OPTIONS_GO_ON) code = setup_load(&setup, &model);
    if (code == OPTIONS_GO_ON) code = tokenize(model, &text, &opt);
    sac_model_free(model);
    strbuf_deinit(&text);
    return code;
}
