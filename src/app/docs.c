/* docs.c: `saccade docs`: documents that are computed once and named in prompts: add, list, show,
 * verify, remove, gc. The library computes and stores them (sac_doc_add and others); adding is in
 * docs_add.c. */
#include "app/docs.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/units.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COMMAND     "docs"
#define OPERAND_MAX 256

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct docs_options, field), arg, help, __VA_ARGS__                  \
    }

static const struct option_spec specs[] = {
    OPT("--store", OPTION_TEXT, store, "DIR", DOCS_STORE_HELP, .env = NULL),
    OPT("--salt", OPTION_TEXT, salt, "TEXT",
        "use only documents that were added with this text, which others do not see",
        .env = "DOCS_SALT"),
    OPT("--name", OPTION_TEXT, name, "NAME", "with add and one FILE: name of the document",
        .env = NULL),
    OPT("--tag", OPTION_TEXT, tags, "TEXT", "with add: a note, shown by list", .env = NULL),
    OPT("--ttl", OPTION_TEXT, ttl, "TIME", "with add: lifetime: 90s, 15m, 12h or 30d", .env = NULL),
    OPT("--pin", OPTION_FLAG, pin, NULL, "with add: protect from removal by --max-bytes",
        .env = NULL),
    OPT("--max-bytes", OPTION_TEXT, max_bytes, "N",
        "with add and gc: remove the least recently used documents until the rest has N bytes "
        "(10G, 512M)",
        .env = "DOCS_MAX_BYTES"),
    OPT("-sys --system-prompt", OPTION_TEXT, system, "TEXT",
        "with add: system message of the chats that will use the document", .env = NULL),
    OPT("--raw --no-chat", OPTION_FLAG, raw, NULL, "with add: for prompts without a chat template",
        .env = NULL),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "with add: chat template of these chats, instead of the model's own",
        .env = "CHAT_TEMPLATE", .without = "--raw", .told = true),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE",
        "with add: file with a chat template", .env = "CHAT_TEMPLATE_FILE", .without = "--raw",
        .told = true),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "with add: print no line for each document",
        .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "format; json is a list of objects, or one object", .env = NULL, .choices = "text|json"),
    {0},
};

/* ---- What other commands use ---- */

sac_status docs_folder(const char *store, char *buf, size_t bytes, sac_error *err)
{
    const char *own = getenv("SACCADE_DOCS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = -1;
    if (store)
        n = snprintf(buf, bytes, "%s", store);
    else if (own && *own)
        n = snprintf(buf, bytes, "%s", own);
    else if (cache && *cache)
        n = snprintf(buf, bytes, "%s/saccade/docs", cache);
    else if (home && *home)
        n = snprintf(buf, bytes, "%s/.cache/saccade/docs", home);
    if (n >= 0 && (size_t)n < bytes) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     n < 0 ? "no folder of documents is given: --store DIR"
                           : "the path of the folder of documents is too long");
}

sac_status docs_open(sac_docs **out, const char *store, const char *salt, enum docs_use use,
                     sac_error *err)
{
    const sac_docs_params params = {.salt = salt, .only_read = use == DOCS_READ};
    char dir[3072];
    TRY(docs_folder(store, dir, sizeof dir, err));
    if (use == DOCS_CHANGE && access(dir, F_OK) != 0 && errno == ENOENT)
        return error_set(err, SAC_ERR_NOT_FOUND, "there is no document store in %s", dir);
    return sac_docs_open(out, dir, &params, err);
}

sac_status docs_cool(const char *store, const sac_doc *doc, sac_error *err)
{
    char dir[3072], path[3200];
    TRY(docs_folder(store, dir, sizeof dir, err));
    snprintf(path, sizeof path, "%s/%s.doc", dir, doc->id);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int rc = fd < 0 ? errno : posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (fd >= 0) close(fd);
    return rc == 0
               ? SAC_OK
               : error_set(err, SAC_ERR_IO, "cannot drop %s from memory: %s", path, strerror(rc));
}

struct unit {
    char letter;
    uint64_t size;
};

/* An integer, followed by at most one unit letter. */
static bool parse_amount(uint64_t *out, const char *text, const struct unit *unit, size_t n_unit)
{
    char *end;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 10);
    uint64_t size = *end ? 0 : 1;
    if (end == text || text[0] == '-' || errno) return false;
    for (size_t i = 0; i < n_unit; i++)
        if (*end == unit[i].letter && end[1] == 0) size = unit[i].size;
    if (size == 0 || n == 0 || n > INT64_MAX / size) return false;
    *out = n * size;
    return true;
}

/* "90", "90s", "15m", "12h", "30d": seconds; 0 for NULL. */
static sac_status parse_time(int64_t *out, const char *text, sac_error *err)
{
    static const struct unit units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    uint64_t n = 0;
    if (text && (!parse_amount(&n, text, units, 4) || n > UINT32_MAX))
        return error_set(err, SAC_ERR_ARG,
                         "option '--ttl': '%.40s' is no time like 90s, 15m, 12h "
                         "or 30d",
                         text);
    *out = (int64_t)n;
    return SAC_OK;
}

/* "10G", "512M", "4096": bytes; 0 for NULL. */
static sac_status parse_bytes(uint64_t *out, const char *text, sac_error *err)
{
    static const struct unit units[] = {
        {'K', 1u << 10}, {'M', 1u << 20}, {'G', 1u << 30}, {'T', 1ull << 40}};
    *out = 0;
    if (!text || parse_amount(out, text, units, 4)) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "option '--max-bytes': '%.40s' is no number of bytes like 4096, 512M or 10G",
                     text);
}

/* "2026-11-23 08:15" in the user's time zone; "never" for 0. */
static const char *date_of(int64_t seconds, char buf[24])
{
    const time_t t = (time_t)seconds;
    struct tm tm;
    if (seconds == 0 || !localtime_r(&t, &tm) || !strftime(buf, 24, "%Y-%m-%d %H:%M", &tm))
        snprintf(buf, 24, "never");
    return buf;
}

cJSON *docs_json(const sac_doc *d)
{
    char model_id[24];
    cJSON *o = cJSON_CreateObject();
    snprintf(model_id, sizeof model_id, "%016" PRIx64, d->model_id);
    cJSON_AddStringToObject(o, "name", d->name);
    cJSON_AddStringToObject(o, "id", d->id);
    cJSON_AddStringToObject(o, "model", d->model);
    cJSON_AddStringToObject(o, "model_id", model_id);
    cJSON_AddStringToObject(o, "type_k", sac_kv_type_name(d->type_k));
    cJSON_AddStringToObject(o, "type_v", sac_kv_type_name(d->type_v));
    cJSON_AddNumberToObject(o, "n_tok", d->n_tok - d->n_head);
    cJSON_AddNumberToObject(o, "n_head", d->n_head);
    cJSON_AddNumberToObject(o, "bytes", (double)d->bytes);
    cJSON_AddStringToObject(o, "tags", d->tags);
    cJSON_AddNumberToObject(o, "created", (double)d->created);
    cJSON_AddNumberToObject(o, "used", (double)d->used);
    if (d->expires)
        cJSON_AddNumberToObject(o, "expires", (double)d->expires);
    else
        cJSON_AddNullToObject(o, "expires");
    cJSON_AddBoolToObject(o, "pinned", d->pinned);
    return o;
}

/* ---- Actions on stored documents ---- */

struct action {
    const struct docs_options *opt;
    sac_docs *docs; /* owned */
    sac_doc *doc;   /* owned, [n]: all documents of the store */
    size_t n;
    const char *const *name; /* [n_name] */
    size_t n_name;
};

static bool is_named(const struct action *a, const sac_doc *d)
{
    for (size_t i = 0; i < a->n_name; i++)
        if (strcmp(a->name[i], d->name) == 0) return true;
    return a->n_name == 0;
}

static sac_status check_names(const struct action *a, sac_error *err)
{
    for (size_t i = 0; i < a->n_name; i++) {
        size_t at = 0;
        while (at < a->n && strcmp(a->doc[at].name, a->name[i]) != 0) at++;
        if (at == a->n)
            return error_set(err, SAC_ERR_NOT_FOUND, "there is no document '%s'", a->name[i]);
    }
    return SAC_OK;
}

/* Prints the name, padded to its column; continuation bytes do not count. */
static void print_name(const char *name)
{
    int n_more = 0;
    for (const char *at = name; *at; at++) n_more += (*at & 0xc0) == 0x80;
    printf("%-*s", 32 + n_more, name);
}

static void print_line(const sac_doc *d)
{
    char size[24], used[24];
    const bool is_over = d->expires && d->expires <= (int64_t)time(NULL);
    print_name(d->name);
    printf(" %8u %10s  %-4s  %-24.24s  %s%s%s%s%s\n", d->n_tok - d->n_head,
           units_size(d->bytes, size), sac_kv_type_name(d->type_k), d->model,
           date_of(d->used, used), d->pinned ? "  pinned" : "", is_over ? "  expired" : "",
           d->tags[0] ? "  " : "", d->tags);
}

static int list(struct action *a, sac_error *err)
{
    (void)err;
    cJSON *all = a->opt->format == DOCS_JSON ? cJSON_CreateArray() : NULL;
    if (!all && a->n == 0) printf("no documents\n");
    if (!all && a->n)
        printf("%-32s %8s %10s  %-4s  %-24s  %s\n", "name", "tokens", "size", "keys", "model",
               "last used");
    for (size_t i = 0; i < a->n; i++) {
        if (all)
            cJSON_AddItemToArray(all, docs_json(&a->doc[i]));
        else
            print_line(&a->doc[i]);
    }
    return all ? output_json(all) : EXIT_OK;
}

static void print_document(const sac_doc *d)
{
    char size[24], date[24];
    printf("%s\n  id       %s\n  model    %s, keys %s, values %s\n", d->name, d->id, d->model,
           sac_kv_type_name(d->type_k), sac_kv_type_name(d->type_v));
    printf("  tokens   %u behind a head of %u\n  size     %" PRIu64 " bytes (%s)\n",
           d->n_tok - d->n_head, d->n_head, d->bytes, units_size(d->bytes, size));
    printf("  created  %s\n", date_of(d->created, date));
    printf("  used     %s\n", date_of(d->used, date));
    printf("  expires  %s%s\n", date_of(d->expires, date), d->pinned ? "; pinned" : "");
    if (d->tags[0]) printf("  tags     %s\n", d->tags);
}

static int show(struct action *a, sac_error *err)
{
    (void)err;
    cJSON *all = a->opt->format == DOCS_JSON ? cJSON_CreateArray() : NULL;
    for (size_t i = 0; i < a->n; i++) {
        if (!is_named(a, &a->doc[i])) continue;
        if (all)
            cJSON_AddItemToArray(all, docs_json(&a->doc[i]));
        else
            print_document(&a->doc[i]);
    }
    return all ? output_json(all) : EXIT_OK;
}

static int verify(struct action *a, sac_error *err)
{
    cJSON *all = a->opt->format == DOCS_JSON ? cJSON_CreateArray() : NULL;
    int code = EXIT_OK;
    for (size_t i = 0; i < a->n && !interrupt_pending(); i++) {
        if (!is_named(a, &a->doc[i])) continue;
        const bool ok = sac_doc_verify(a->docs, &a->doc[i], err) == SAC_OK;
        if (!ok) code = EXIT_RUNTIME;
        if (all) {
            cJSON *o = docs_json(&a->doc[i]);
            cJSON_AddBoolToObject(o, "ok", ok);
            if (!ok) cJSON_AddStringToObject(o, "error", err->msg);
            cJSON_AddItemToArray(all, o);
        } else {
            print_name(a->doc[i].name);
            printf(" %s\n", ok ? "ok" : err->msg);
        }
    }
    if (all && output_json(all) != EXIT_OK) return EXIT_RUNTIME;
    return interrupt_pending() ? EXIT_INTERRUPTED : code;
}

static int remove_named(struct action *a, sac_error *err)
{
    cJSON *all = a->opt->format == DOCS_JSON ? cJSON_CreateArray() : NULL;
    sac_status status = SAC_OK;
    for (size_t i = 0; status == SAC_OK && i < a->n; i++) {
        if (!is_named(a, &a->doc[i])) continue;
        status = sac_doc_remove(a->docs, &a->doc[i], err);
        if (status != SAC_OK) break;
        if (all)
            cJSON_AddItemToArray(all, docs_json(&a->doc[i]));
        else
            printf("removed %s (%s)\n", a->doc[i].name, a->doc[i].model);
    }
    const int code = all ? output_json(all) : EXIT_OK;
    return status == SAC_OK ? code : setup_failed(COMMAND, status, err->msg);
}

static int collect(struct action *a, sac_error *err)
{
    char size[24];
    sac_docs_freed f;
    const sac_status status = sac_docs_collect(a->docs, a->opt->bytes_max, &f, err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err->msg);
    if (a->opt->format == DOCS_TEXT) {
        printf("freed %s: %u documents expired, %u made room, %u had lost their files, %u files "
               "belonged to none\n",
               units_size(f.bytes, size), f.n_expired, f.n_evicted, f.n_lost, f.n_stray);
        return EXIT_OK;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "bytes", (double)f.bytes);
    cJSON_AddNumberToObject(o, "expired", f.n_expired);
    cJSON_AddNumberToObject(o, "evicted", f.n_evicted);
    cJSON_AddNumberToObject(o, "lost", f.n_lost);
    cJSON_AddNumberToObject(o, "stray", f.n_stray);
    return output_json(o);
}

static const struct {
    const char *name;
    int (*run)(struct action *a, sac_error *err);
    bool changes, takes_names, needs_names;
} actions[] = {
    {"list", list, false, false, false},    {"show", show, false, true, true},
    {"verify", verify, false, true, false}, {"remove", remove_named, true, true, true},
    {"gc", collect, true, false, false},
};

#define N_ACTION (sizeof actions / sizeof actions[0])

static int run_action(struct action *a, size_t i)
{
    sac_error err = {0};
    sac_status status = docs_open(&a->docs, a->opt->store, a->opt->salt,
                                  actions[i].changes ? DOCS_CHANGE : DOCS_READ, &err);
    if (status == SAC_ERR_NOT_FOUND && actions[i].run == list) return list(a, &err);
    if (status == SAC_OK) status = sac_doc_list(a->docs, &a->doc, &a->n, &err);
    if (status == SAC_OK) status = check_names(a, &err);
    const int code =
        status == SAC_OK ? actions[i].run(a, &err) : setup_failed(COMMAND, status, err.msg);
    sac_free(a->doc);
    sac_docs_close(a->docs);
    return code;
}

/* The first given option that only `add` uses, ignoring those set by variables; NULL: none. */
static const char *option_of_add(const struct docs_options *o)
{
    return o->name     ? "--name"
           : o->tags   ? "--tag"
           : o->ttl    ? "--ttl"
           : o->pin    ? "--pin"
           : o->system ? "-sys"
           : o->raw    ? "--raw"
           : o->quiet  ? "-q"
                       : NULL;
}

/* `model` is the last model option that was given. */
static void pass_over(const char *model, const char *action)
{
    if (model)
        fprintf(stderr, "saccade " COMMAND ": %.*s is passed over: '%s' loads no model\n",
                (int)strcspn(model, "="), model, action);
}

static int dispatch(struct docs_options *opt, struct setup *setup, const struct options *o)
{
    const char *const *operand = o->operand;
    const size_t n = o->n_operand;
    sac_error err = {0};
    if (n == 0)
        return options_usage_error(COMMAND, "an action is missing: add, list, show, verify, remove "
                                            "or gc");
    sac_status status = parse_time(&opt->seconds, opt->ttl, &err);
    if (status == SAC_OK) status = parse_bytes(&opt->bytes_max, opt->max_bytes, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (strcmp(operand[0], "add") == 0) return docs_add(opt, setup, operand + 1, n - 1);
    for (size_t i = 0; i < N_ACTION; i++) {
        if (strcmp(operand[0], actions[i].name) != 0) continue;
        if (n == 1 && actions[i].needs_names)
            return options_usage_error(COMMAND, "'%s' needs a document's NAME", operand[0]);
        if (n > 1 && !actions[i].takes_names)
            return options_usage_error(COMMAND, "unexpected argument '%s'", operand[1]);
        if (option_of_add(opt))
            return options_usage_error(COMMAND, "'%s' takes no %s, which is for add", operand[0],
                                       option_of_add(opt));
        struct action a = {.opt = opt, .name = operand + 1, .n_name = n - 1};
        pass_over(o->watched, operand[0]);
        return run_action(&a, i);
    }
    return options_usage_error(
        COMMAND, "unknown action '%s': there are add, list, show, verify, remove, gc", operand[0]);
}

int app_docs(int argc, char **argv)
{
    struct docs_options opt = {.format = DOCS_TEXT};
    struct setup setup = setup_default(COMMAND);
    const struct option_group groups[] = {{"Documents", specs, &opt},
                                          {"Model", setup_specs, &setup}};
    const char *operand[OPERAND_MAX];
    struct options o = {
        .command = COMMAND,
        .usage = "add FILE... | list | show NAME... | verify [NAME]... | remove NAME... | gc",
        .summary = "Keeps documents that a model has computed: each is computed once, alone, and "
                   "any prompt that names it continues from there. 'add' computes, 'verify' reads "
                   "all bytes, 'gc' removes expired documents and unreferenced files. Only 'add' "
                   "loads the model; the others ignore its options, and say so.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .operand = operand,
        .operand_max = OPERAND_MAX,
        .operands = "add|list|show|verify|remove|gc",
        .watch = &setup,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    return dispatch(&opt, &setup, &o);
}
