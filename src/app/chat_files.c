/* chat_files.c: documents of a chat, and conversations in files.
 *
 * Invariant: the waiting documents fit into the context with room for a question, so that they
 * cannot block the conversation. A document that does not fit is refused with advice on what would
 * help.
 *
 * A saved conversation is two files: the messages as JSON, and FILE.state, what the engine has
 * computed for them. The state only saves time: a conversation continues without it. */
#include "app/chat.h"

#include "app/source.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM_TOK  64u   /* reserved for a question and the beginning of an answer */
#define LONG_TOK  8192u /* length from which sparse prefill saves much time */
#define PARTS_MAX 9999u
#define STATE     ".state"

/* ---- Names ---- */

void chat_files_expand(struct strbuf *out, const char *path)
{
    const char *home = getenv("HOME");
    if (path[0] == '~' && (path[1] == '/' || path[1] == 0) && home && *home) {
        strbuf_adds(out, home);
        path++;
    }
    strbuf_adds(out, path);
}

/* Strips blanks and quotes around a name. */
static const char *bare(const char *name, size_t *n)
{
    while (*n > 0 && isspace((unsigned char)name[*n - 1])) --*n;
    if (*n < 2 || (name[0] != '"' && name[0] != '\'') || name[*n - 1] != name[0]) return name;
    *n -= 2;
    return name + 1;
}

static void set_path(struct strbuf *out, const char *arg)
{
    struct strbuf name = {0};
    size_t n = strlen(arg);
    arg = bare(arg, &n);
    strbuf_add(&name, arg, n);
    strbuf_reset(out);
    if (!name.failed) chat_files_expand(out, name.data);
    if (name.failed) out->failed = true;
    strbuf_deinit(&name);
}

/* ---- Taking a document ---- */

/* "FILE 2/5"; without a part, 1/1. */
struct wanted {
    struct strbuf path, name; /* the path; the document's name, as typed with its part */
    unsigned part, n_part;
};

static void wanted_deinit(struct wanted *w)
{
    strbuf_deinit(&w->path);
    strbuf_deinit(&w->name);
}

/* Parses "2/5" before `end`; otherwise the whole file is part 1 of 1. */
static bool parse_part(struct wanted *w, const char *text, const char *end)
{
    char *slash, *stop;
    const unsigned long part = strtoul(text, &slash, 10);
    const unsigned long n_part = *slash == '/' ? strtoul(slash + 1, &stop, 10) : 0;
    const bool is_part = isdigit((unsigned char)*text) && *slash == '/' && stop == end;
    w->part = is_part ? (unsigned)(part < UINT_MAX ? part : UINT_MAX) : 1;
    w->n_part = is_part ? (unsigned)(n_part < UINT_MAX ? n_part : UINT_MAX) : 1;
    return is_part;
}

/* `*w` must be zeroed; the caller deinits it even after errors. */
static sac_status parse_wanted(struct wanted *w, const char *arg, sac_error *err)
{
    size_t n = strlen(arg);
    while (n > 0 && isspace((unsigned char)arg[n - 1])) n--;
    const char *blank = n > 0 ? memrchr(arg, ' ', n) : NULL;
    w->part = w->n_part = 1;
    const bool has_part = blank && parse_part(w, blank + 1, arg + n);
    if (w->n_part == 0 || w->n_part > PARTS_MAX || w->part == 0 || w->part > w->n_part)
        return error_set(err, SAC_ERR_ARG, "part %u/%u: N/M is part N of M, up to %u", w->part,
                         w->n_part, PARTS_MAX);
    if (has_part) n = (size_t)(blank - arg);
    const char *path = bare(arg, &n);
    strbuf_add(&w->name, path, n);
    if (!w->name.failed) chat_files_expand(&w->path, w->name.data);
    if (has_part) strbuf_addf(&w->name, " %u/%u", w->part, w->n_part);
    if (w->name.failed || w->path.failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a name");
    return SAC_OK;
}

/* Where part i of n begins: after a line break or at least a blank nearby. */
static size_t cut_at(const char *text, size_t n_bytes, unsigned i, unsigned n)
{
    size_t at = (size_t)((double)n_bytes * i / n);
    if (i == 0 || i >= n) return i == 0 ? 0 : n_bytes;
    const size_t reach = n_bytes / n / 8;
    const char *line = memchr(text + at, '\n', at + reach < n_bytes ? reach : n_bytes - at);
    if (line) return (size_t)(line - text) + 1;
    while (at < n_bytes && !isspace((unsigned char)text[at])) at++;
    return at;
}

static sac_status read_text(const struct chat *c, struct strbuf *out, const struct wanted *w,
                            sac_error *err)
{
    if (strcmp(w->path.data, "-") == 0 && !line_editor_is_terminal(c->editor))
        return error_set(err, SAC_ERR_ARG, "/file -: stdin has the questions");
    TRY(source_read(out, w->path.data, c->as_is, err));
    if (memchr(out->data, 0, out->n))
        return error_set(err, SAC_ERR_FORMAT, "%s holds a zero byte: not a text", w->path.data);
    const size_t from = cut_at(out->data, out->n, w->part - 1, w->n_part);
    const size_t to = cut_at(out->data, out->n, w->part, w->n_part);
    memmove(out->data, out->data + from, to - from);
    out->data[out->n = to - from] = 0;
    if (strspn(out->data, " \t\r\n") == out->n)
        return error_set(err, SAC_ERR_FORMAT, "%s is empty", w->path.data);
    return SAC_OK;
}

static sac_status count_text(const struct chat *c, const struct strbuf *text, uint32_t *out,
                             sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(sac_tokenize(c->s.model, text->data, text->n, 0, &tok, &n, err));
    sac_free(tok);
    *out = (uint32_t)n;
    return SAC_OK;
}

/* Suggests how to fit a document of `n_doc` tokens, in `n_part` parts, into the context; `n_all`
 * tokens are needed. */
static void offer(const struct chat *c, const struct wanted *w, uint32_t n_doc, size_t n_all)
{
    const uint32_t trained = sac_model_get_info(c->s.model).n_ctx_train, n_ctx = c->s.plan.n_ctx;
    const size_t others = n_all - n_doc, need = n_all + ROOM_TOK + 256;
    fprintf(stderr, "It was not taken; the conversation goes on without it. What helps:\n");
    if (n_ctx > others + 2 * ROOM_TOK) {
        const size_t room = n_ctx - others - 2 * ROOM_TOK;
        const size_t n = (size_t)w->n_part * (n_doc / room + 1);
        if (n <= PARTS_MAX)
            fprintf(stderr, "  /file %s 1/%zu  a part of it; then /unfile, and 2/%zu\n",
                    w->path.data, n, n);
    }
    fprintf(stderr, "  /ctx %zu  a longer context%s\n", need,
            c->s.plan.prefill[0] ? "" : "; /method prefill auto reads it faster");
    if (need > trained)
        fprintf(stderr,
                "      the model was trained with %u tokens: beyond them start chat with "
                "--rope-scaling yarn --rope-scale %zu\n",
                trained, need / trained + 1);
    if (others > ROOM_TOK * 4)
        fprintf(stderr, "  /unfile, /clear  room: %zu tokens are in the conversation already\n",
                others);
}

static sac_status take(struct chat *c, const struct wanted *w, FILE *told, sac_error *err)
{
    const char *name = w->name.data;
    struct strbuf text = {0};
    struct turn *next = &c->s.said.next;
    uint32_t n_doc = 0;
    size_t n_all = 0;
    sac_status status = read_text(c, &text, w, err);
    if (status == SAC_OK) status = count_text(c, &text, &n_doc, err);
    if (status == SAC_OK)
        status = conversation_add_document(&c->s.said, name, text.data, text.n, err);
    strbuf_deinit(&text);
    if (status != SAC_OK) return status;
    next->document[next->n_document - 1].n_tok = n_doc;
    status = session_count(&c->s, &n_all, err);
    if (status == SAC_OK && n_all + ROOM_TOK > c->s.plan.n_ctx) {
        char room[64] = "";
        if (n_all <= c->s.plan.n_ctx)
            snprintf(room, sizeof room, ", %u of them for a question and its answer", ROOM_TOK);
        status = error_set(err, SAC_ERR_CONTEXT,
                           "%s has %u tokens; with it the conversation has %zu, and the context "
                           "holds %u%s",
                           name, n_doc, n_all, c->s.plan.n_ctx, room);
        fprintf(stderr, "%s\n", err->msg);
        offer(c, w, n_doc, n_all);
    }
    if (status != SAC_OK) {
        (void)conversation_remove_document(&c->s.said, NULL);
        return status;
    }
    fprintf(told, "%s: %u tokens, before your next question (%zu of %u in all)\n", name, n_doc,
            n_all, c->s.plan.n_ctx);
    if (n_doc >= LONG_TOK && !c->s.plan.prefill[0])
        fprintf(stderr, "(it is long: /method prefill auto reads it faster, and not all of it)\n");
    return SAC_OK;
}

sac_status chat_files_take(struct chat *c, const char *arg, FILE *told, sac_error *err)
{
    struct wanted w = {0};
    sac_status status = parse_wanted(&w, arg, err);
    if (status == SAC_OK) status = take(c, &w, told, err);
    if (status != SAC_OK && status != SAC_ERR_CONTEXT) fprintf(stderr, "%s\n", err->msg);
    wanted_deinit(&w);
    return status;
}

/* ---- Stored documents ---- */

static size_t list_of(const struct turn *t, const char *where)
{
    for (size_t i = 0; i < t->n_document; i++) {
        const struct conversation_document *d = &t->document[i];
        if (d->n_tok)
            printf("%8u tokens  %s  (%s)\n", d->n_tok, d->name, where);
        else
            printf("%8zu bytes   %s  (%s)\n", d->n, d->name, where);
    }
    return t->n_document;
}

void chat_files_list(struct chat *c, const char *arg)
{
    const struct conversation *said = &c->s.said;
    char where[40];
    size_t n = 0;
    (void)arg;
    for (size_t i = 0; i < said->n_turn; i += 2) {
        snprintf(where, sizeof where, "before question %zu", i / 2 + 1);
        n += list_of(&said->turns[i], where);
    }
    n += list_of(&said->next, "before your next question");
    if (n == 0) printf("there is no document; /file FILE puts one before your next question\n");
}

void chat_files_drop(struct chat *c, const char *arg)
{
    struct wanted w = {0};
    sac_error err = {0};
    const char *name = NULL;
    if (*arg && parse_wanted(&w, arg, &err) != SAC_OK)
        fprintf(stderr, "%s\n", err.msg);
    else if (*arg && !conversation_remove_document(&c->s.said, name = w.name.data))
        fprintf(stderr, "there is no document %s; /docs lists them\n", name);
    else if (!*arg && !conversation_remove_document(&c->s.said, NULL))
        fprintf(stderr, "there is no document\n");
    else
        printf("%s is out of the conversation\n", name ? name : "the last document");
    wanted_deinit(&w);
}

/* ---- Conversations in files ---- */

/* Parses the two names; false after a message. */
static bool make_names(const char *command, const char *arg, struct strbuf *path,
                       struct strbuf *state)
{
    if (!*arg) {
        fprintf(stderr, "/%s needs the name of a file\n", command);
        return false;
    }
    set_path(path, arg);
    strbuf_addf(state, "%s" STATE, path->data);
    if (path->failed || state->failed) fprintf(stderr, "out of memory for a name\n");
    return !path->failed && !state->failed;
}

void chat_files_save(struct chat *c, const char *arg)
{
    struct strbuf path = {0}, state = {0};
    sac_error err = {0};
    sac_state_info info;
    if (make_names("save", arg, &path, &state)) {
        if (conversation_save(&c->s.said, path.data, &err) != SAC_OK)
            fprintf(stderr, "%s\n", err.msg);
        else if (session_save_state(&c->s, state.data, &err) != SAC_OK ||
                 sac_state_get_info(&info, state.data, &err) != SAC_OK)
            fprintf(stderr, "%s holds the conversation, but not what was computed of it: %s\n",
                    path.data, err.msg);
        else
            printf("%zu questions and answers are in %s, %u computed tokens in %s, %.1f MB\n",
                   c->s.said.n_turn / 2, path.data, info.n_tok, state.data,
                   (double)info.bytes * 1e-6);
    }
    strbuf_deinit(&path);
    strbuf_deinit(&state);
}

void chat_files_load(struct chat *c, const char *arg)
{
    struct strbuf path = {0}, state = {0};
    sac_error err = {0};
    size_t n_all = 0;
    if (make_names("load", arg, &path, &state)) {
        if (conversation_load(&c->s.said, path.data, &err) != SAC_OK) {
            fprintf(stderr, "%s\n", err.msg);
        } else {
            printf("%zu questions and answers of %s stand before your next question\n",
                   c->s.said.n_turn / 2, path.data);
            const bool has_state = access(state.data, F_OK) == 0;
            if (has_state && session_load_state(&c->s, state.data, &err) != SAC_OK)
                fprintf(stderr, "%s; the conversation is read again\n", err.msg);
            if (session_count(&c->s, &n_all, &err) == SAC_OK && n_all + ROOM_TOK > c->s.plan.n_ctx)
                fprintf(stderr,
                        "it has %zu tokens, and the context of %u has no room for an answer behind "
                        "them: /ctx %zu makes it longer\n",
                        n_all, c->s.plan.n_ctx, n_all + 1024);
        }
    }
    strbuf_deinit(&path);
    strbuf_deinit(&state);
}
