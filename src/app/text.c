/* text.c: `saccade text` shows the text of a document as a model gets it. Pages are separated by
 * lines that the model does not see: it sees a form feed in their place. */
#include "app/app.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup.h"
#include "app/source.h"
#include "text/extract.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define COMMAND "text"

enum format { FORMAT_TEXT, FORMAT_PLAIN, FORMAT_JSON };

struct text_options {
    int format;
};

static const struct option_spec specs[] = {
    {"-o --output", OPTION_CHOICE, offsetof(struct text_options, format),
     .choices = "text|plain|json",
     .help = "text: with a line at each page; plain: exactly as the model sees it; json: an object "
             "with format, encoding, text and pages as ranges of bytes"},
    {0},
};

/* Calls `page` for each page, numbered from 1; a text without form feeds is page 0. */
static void each_page(const struct strbuf *text,
                      void (*page)(void *to, size_t i, const char *s, size_t begin, size_t n),
                      void *to)
{
    const bool has_pages = memchr(text->data, '\f', text->n);
    size_t begin = 0, i = has_pages;
    while (begin <= text->n) {
        const char *end = memchr(text->data + begin, '\f', text->n - begin);
        const size_t n = end ? (size_t)(end - text->data) - begin : text->n - begin;
        page(to, i++, text->data + begin, begin, n);
        begin += n + 1;
    }
}

static void add_marked(void *to, size_t i, const char *s, size_t begin, size_t n)
{
    struct strbuf *out = to;
    (void)begin;
    if (i > 0) strbuf_addf(out, "%s[page %zu]\n", i > 1 ? "\n" : "", i);
    strbuf_add(out, s, n);
    if (n > 0 && s[n - 1] != '\n') strbuf_adds(out, "\n");
}

static void add_range(void *to, size_t i, const char *s, size_t begin, size_t n)
{
    (void)s;
    if (i == 0) return;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "page", (double)i);
    cJSON_AddNumberToObject(o, "begin", (double)begin);
    cJSON_AddNumberToObject(o, "end", (double)(begin + n));
    cJSON_AddItemToArray(to, o);
}

static int print_json(const char *path, const struct strbuf *text, const struct extract_info *info)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "file", path);
    cJSON_AddStringToObject(o, "format", info->format);
    if (info->encoding[0]) cJSON_AddStringToObject(o, "encoding", info->encoding);
    if (info->encoding[0]) cJSON_AddBoolToObject(o, "encoding_guessed", info->guessed);
    cJSON_AddNumberToObject(o, "replaced_bytes", (double)info->n_replace);
    cJSON_AddNumberToObject(o, "bytes", (double)text->n);
    each_page(text, add_range, cJSON_AddArrayToObject(o, "pages"));
    cJSON_AddStringToObject(o, "text", text->data);
    return output_json(o);
}

static int print_text(const struct strbuf *text, bool marks)
{
    struct strbuf out = {0};
    if (!marks) {
        output_write(text->data, text->n);
        return EXIT_OK;
    }
    each_page(text, add_marked, &out);
    if (!out.failed) output_write(out.data, out.n);
    const bool failed = out.failed;
    strbuf_deinit(&out);
    return failed ? setup_failed(COMMAND, SAC_ERR_MEMORY, "out of memory for the text") : EXIT_OK;
}

int app_text(int argc, char **argv)
{
    struct text_options opt = {.format = FORMAT_TEXT};
    const struct option_group group = {"Options", specs, &opt};
    const char *path = NULL;
    struct options o = {
        .command = COMMAND,
        .usage = "FILE [options]",
        .summary = "Prints the text of a document (PDF, HTML, DOCX, ODT, EPUB, plain text in any "
                   "encoding; each also compressed) as the model sees it; - is stdin.",
        .group = &group,
        .n_group = 1,
        .operand = &path,
        .operand_max = 1,
    };
    struct strbuf text = {0};
    struct extract_info info;
    sac_error err = {0};
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!path) return options_usage_error(COMMAND, "a FILE is missing");
    const sac_status status = extract_file(&text, path, &info, &err);
    if (status == SAC_OK) source_tell_doubts(path, &info);
    if (status != SAC_OK)
        code = setup_failed(COMMAND, status, err.msg);
    else if (opt.format == FORMAT_JSON)
        code = print_json(path, &text, &info);
    else
        code = print_text(&text, opt.format == FORMAT_TEXT);
    strbuf_deinit(&text);
    return code;
}
