/* line_editor.c: see the header. Line editing is libedit's.
 *
 * Characters are read by a function of ours and not by libedit's: that one retries a read that a
 * signal broke, so Ctrl-C would do nothing until the next key. libedit's own signal handling stays
 * off, since it would replace the program's handler for Ctrl-C.
 *
 * Terminals put ESC[200~ and ESC[201~ around a paste when they are asked to (bracketed paste): what
 * stands between is text, newlines included, and not keys. A long one would fill the screen and be
 * drawn anew with each key, so a name stands for it on the line: [paste 1: 120 lines]. Pastes are
 * kept until the end, so that a line from the history means the same again.
 *
 * The prompt's bold ends before its last blank: libedit drops what follows the last character. */
#include "app/line_editor.h"

#include "app/interrupt.h"
#include "app/terminal.h"
#include "base/folder.h"
#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define BOLD(text)    "\1\033[1m\1" text "\1\033[0m\1" /* \1 encloses text without width */
#define PASTE_LINES   10u                              /* a longer paste, or */
#define PASTE_BYTES   1000u                            /* a larger one, is shown as a name */
#define PASTE_END     L"\033[201~"

struct line_editor {
    EditLine *edit; /* NULL: stdin is not a terminal */
    History *history;
    char history_path[1024]; /* "": no history file */
    bool more;               /* in a continuation line */
    char prompt[2][32];      /* of first and continuation lines */
    struct strlist pastes;   /* texts of long pastes, by number */
    line_editor_complete_fn complete;
    void *complete_user;
};

static struct line_editor *editor_of(EditLine *edit)
{
    void *data = NULL;
    el_get(edit, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt_of(EditLine *edit)
{
    struct line_editor *l = editor_of(edit);
    return l->prompt[l->more];
}

/* Reads a character; 0 at the end of input, -1 after Ctrl-C. */
static int read_char(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        if (!interrupt_wait_input(STDIN_FILENO)) return -1;
        if (interrupt_take_resize()) {
            el_resize(edit);
            fputs("\r\033[J", stdout); /* clears what the terminal has re-wrapped */
            el_set(edit, EL_REFRESH);
            continue;
        }
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n == 0) return 0;
        if (n < 0 && errno == EINTR && !interrupt_pending()) continue;
        if (n < 0) return -1;
        const size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue; /* the character is incomplete */
        if (used != (size_t)-1) return 1;
        state = (mbstate_t){0}; /* skip an invalid byte */
    }
}

/* ---- Pastes ---- */

static void add_wide(struct strbuf *out, wchar_t c)
{
    char bytes[MB_LEN_MAX];
    mbstate_t state = {0};
    const size_t n = wcrtomb(bytes, c, &state);
    if (n != (size_t)-1) strbuf_add(out, bytes, n);
}

/* Reads up to the end mark, with newlines instead of the carriage returns that terminals send.
 * False: Ctrl-C, or the end of input. */
static bool read_paste(EditLine *edit, struct strbuf *out)
{
    const size_t n_end = wcslen(PASTE_END);
    size_t n_same = 0; /* length of the matched beginning of the mark */
    for (;;) {
        wchar_t c;
        if (read_char(edit, &c) != 1) return false;
        n_same = c == PASTE_END[n_same] ? n_same + 1 : c == PASTE_END[0];
        if (n_same == n_end) return true;
        const bool is_text = c >= L' ' && c != 0x7f;
        if (n_same > 0) continue; /* possibly part of the mark */
        if (is_text || c == L'\t') add_wide(out, c);
        if (c == L'\r' || c == L'\n') strbuf_add(out, "\n", 1);
    }
}

static unsigned char on_paste(EditLine *edit, int key)
{
    struct line_editor *l = editor_of(edit);
    struct strbuf text = {0};
    char name[64];
    size_t n_line = 1;
    (void)key;
    if (!read_paste(edit, &text)) {
        strbuf_deinit(&text);
        return CC_REFRESH;
    }
    while (text.n > 0 && text.data[text.n - 1] == '\n') text.data[--text.n] = 0;
    for (size_t i = 0; i < text.n; i++) n_line += text.data[i] == '\n';
    const char *shown = text.data;
    if (text.n > PASTE_BYTES || n_line > PASTE_LINES) {
        strlist_addn(&l->pastes, text.data, text.n);
        snprintf(name, sizeof name, "[paste %zu: %zu lines]", l->pastes.n, n_line);
        shown = name;
    }
    const bool failed = text.failed || l->pastes.failed;
    if (!failed && text.n > 0) el_insertstr(edit, shown);
    strbuf_deinit(&text);
    return failed ? CC_ERROR : CC_REFRESH;
}

/* Replaces the names of pastes by their texts. */
static void expand_pastes(const struct line_editor *l, struct strbuf *text)
{
    struct strbuf out = {0};
    const char *at = text->data;
    for (const char *name = strstr(at, "[paste "); name; name = strstr(name + 1, "[paste ")) {
        const char *end = strchr(name, ']');
        const unsigned long number = strtoul(name + strlen("[paste "), NULL, 10);
        if (!end || number == 0 || number > l->pastes.n) continue;
        strbuf_add(&out, at, (size_t)(name - at));
        strbuf_adds(&out, l->pastes.item[number - 1]);
        at = end + 1;
    }
    strbuf_adds(&out, at);
    if (out.failed) text->failed = true;
    strbuf_reset(text);
    strbuf_add(text, out.data, out.n);
    strbuf_deinit(&out);
}

/* ---- Completion ---- */

/* Length of the common prefix. */
static size_t common_bytes(const struct strlist *words)
{
    size_t n = strlen(words->item[0]);
    for (size_t i = 1; i < words->n; i++) {
        size_t same = 0;
        while (same < n && words->item[i][same] == words->item[0][same]) same++;
        n = same;
    }
    while (n > 0 && (words->item[0][n] & 0xc0) == 0x80) n--; /* whole characters only */
    return n;
}

static void list_words(const struct strlist *words)
{
    const unsigned columns = terminal_columns(STDOUT_FILENO);
    size_t widest = 0, column = 0;
    for (size_t i = 0; i < words->n; i++)
        if (strlen(words->item[i]) > widest) widest = strlen(words->item[i]);
    putchar('\n');
    for (size_t i = 0; i < words->n; i++) {
        if (column > 0 && column + widest + 2 > columns) {
            putchar('\n');
            column = 0;
        }
        column += (size_t)printf("%-*s  ", (int)widest, words->item[i]);
    }
    putchar('\n');
}

static unsigned char on_complete(EditLine *edit, int key)
{
    const struct line_editor *l = editor_of(edit);
    const LineInfo *info = el_line(edit);
    struct strlist words = {0};
    size_t n_word = 0;
    unsigned char result = CC_ERROR;
    (void)key;
    char *before = mem_strndup(info->buffer, (size_t)(info->cursor - info->buffer));
    if (before && l->complete) l->complete(l->complete_user, before, &words, &n_word);
    if (words.n > 0 && !words.failed) {
        const char *word = words.item[0];
        const size_t n = common_bytes(&words);
        const bool is_whole = words.n == 1 && n > 0 && !strchr("/=:", word[n - 1]);
        struct strbuf add = {0};
        if (n > n_word) strbuf_add(&add, word + n_word, n - n_word);
        if (is_whole) strbuf_add(&add, " ", 1);
        /* The completion may differ from the typed word in case, or by a ~ for a folder. */
        if (n >= n_word && memcmp(before + strlen(before) - n_word, word, n_word) != 0) {
            el_deletestr(edit, (int)n_word);
            strbuf_reset(&add);
            strbuf_add(&add, word, n);
            if (is_whole) strbuf_add(&add, " ", 1);
        }
        if (add.n && !add.failed) el_insertstr(edit, add.data);
        result = add.n ? CC_REFRESH : CC_ERROR;
        if (words.n > 1 && n <= n_word) {
            list_words(&words);
            result = CC_REDISPLAY;
        }
        strbuf_deinit(&add);
    }
    strlist_deinit(&words);
    mem_free(before);
    return result;
}

/* ---- Opening and closing ---- */

/* Creates the folder of `path`, accessible only to the user. */
static bool make_folder_of(char *path)
{
    char *slash = strrchr(path, '/');
    *slash = 0;
    const sac_status status = folder_make(path, 0700, NULL);
    *slash = '/';
    return status == SAC_OK;
}

/* Without a home folder there is no history. */
static void find_history(struct line_editor *l)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    const size_t room = sizeof l->history_path;
    if (state && *state)
        n = snprintf(l->history_path, room, "%s/saccade/history", state);
    else if (home && *home)
        n = snprintf(l->history_path, room, "%s/.local/state/saccade/history", home);
    if (n < 0 || (size_t)n >= room || !make_folder_of(l->history_path)) l->history_path[0] = 0;
}

/* Binds keys that libedit does not know: words with Ctrl or Alt, home, end, delete. */
static void bind_keys(EditLine *edit)
{
    static const char *const keys[][2] = {
        {"\\e[1;5D", "ed-prev-word"},      {"\\e[1;5C", "em-next-word"},
        {"\\e[1;3D", "ed-prev-word"},      {"\\e[1;3C", "em-next-word"},
        {"\\e[5D", "ed-prev-word"},        {"\\e[5C", "em-next-word"},
        {"\\eOd", "ed-prev-word"},         {"\\eOc", "em-next-word"},
        {"\\e[H", "ed-move-to-beg"},       {"\\e[F", "ed-move-to-end"},
        {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"},
        {"\\e[7~", "ed-move-to-beg"},      {"\\e[8~", "ed-move-to-end"},
        {"\\e[3~", "ed-delete-next-char"}, {"\\e[3;5~", "em-delete-next-word"},
        {"\\e[200~", "saccade-paste"},     {"^I", "saccade-complete"},
        {"^R", "em-inc-search-prev"},
    };
    /* The wide-character interface copies no names, which it would never free. */
    el_wset(edit, EL_ADDFN, L"saccade-paste", L"takes a paste as text", on_paste);
    el_wset(edit, EL_ADDFN, L"saccade-complete", L"completes a word", on_complete);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        el_set(edit, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static sac_status open_terminal(struct line_editor *l, sac_error *err)
{
    HistEvent event;
    /* Sets only the character type, so that numbers keep their decimal point. Falls back to
     * C.UTF-8, to allow input beyond ASCII. */
    const char *locale = setlocale(LC_CTYPE, "");
    if (!locale || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("saccade", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return error_set(err, SAC_ERR_MEMORY, "no line editor");
    const bool bold = isatty(STDOUT_FILENO) && terminal_wants_colour(STDOUT_FILENO);
    snprintf(l->prompt[0], sizeof l->prompt[0], "%s", bold ? BOLD(">") " " : "> ");
    snprintf(l->prompt[1], sizeof l->prompt[1], "%s", bold ? BOLD(".") " " : ". ");
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    find_history(l);
    if (l->history_path[0]) history(l->history, &event, H_LOAD, l->history_path);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_GETCFN, read_char);
    bind_keys(l->edit);
    interrupt_watch_window();
    return SAC_OK;
}

sac_status line_editor_open(struct line_editor **out, line_editor_complete_fn complete, void *user,
                            sac_error *err)
{
    struct line_editor *l = mem_calloc(1, sizeof *l);
    if (!l) return error_set(err, SAC_ERR_MEMORY, "out of memory for the line editor");
    l->complete = complete;
    l->complete_user = user;
    const sac_status status = isatty(STDIN_FILENO) ? open_terminal(l, err) : SAC_OK;
    if (status != SAC_OK) {
        line_editor_close(l);
        return status;
    }
    *out = l;
    return SAC_OK;
}

void line_editor_close(struct line_editor *l)
{
    if (!l) return;
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
    strlist_deinit(&l->pastes);
    mem_free(l);
}

bool line_editor_is_terminal(const struct line_editor *l)
{
    return l->edit != NULL;
}

/* ---- Reading ---- */

/* Bracketed paste is on only while the editor reads, because the shell may not support it. */
static void mark_pastes(bool on)
{
    if (!isatty(STDOUT_FILENO)) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

static enum line_editor_result read_edited(struct line_editor *l, struct strbuf *out)
{
    int n = 0;
    const bool was_empty = out->n == 0;
    el_resize(l->edit);
    /* Must precede the prompt: the editor switches the terminal's mode, and input typed before that
     * would be echoed twice. */
    el_set(l->edit, EL_PREP_TERM, 1);
    mark_pastes(true);
    const char *part = el_gets(l->edit, &n);
    mark_pastes(false);
    if (interrupt_pending()) {
        const LineInfo *info = el_line(l->edit);
        return was_empty && info->lastchar == info->buffer ? LINE_EDITOR_INTERRUPTED
                                                           : LINE_EDITOR_DROPPED;
    }
    if (!part || n <= 0) return LINE_EDITOR_END;
    strbuf_add(out, part, (size_t)n);
    return LINE_EDITOR_READ;
}

static enum line_editor_result read_piped(struct strbuf *out)
{
    int c;
    errno = 0;
    while ((c = getchar()) != EOF) {
        const char byte = (char)c;
        strbuf_add(out, &byte, 1);
        if (c == '\n') return LINE_EDITOR_READ;
    }
    if (interrupt_pending()) return LINE_EDITOR_INTERRUPTED;
    return out->n ? LINE_EDITOR_READ : LINE_EDITOR_END; /* the last line may lack a newline */
}

/* Saves the line at once, because closing the terminal kills the program. */
static void remember(struct line_editor *l, const char *text)
{
    HistEvent event;
    history(l->history, &event, H_ENTER, text);
    if (l->history_path[0]) history(l->history, &event, H_SAVE, l->history_path);
}

enum line_editor_result line_editor_read(struct line_editor *l, struct strbuf *out)
{
    enum line_editor_result result;
    strbuf_reset(out);
    l->more = false;
    for (;;) {
        const size_t before = out->n;
        result = l->edit ? read_edited(l, out) : read_piped(out);
        if (result != LINE_EDITOR_READ) break;
        if (out->n > before && out->data[out->n - 1] == '\n') out->data[--out->n] = 0;
        l->more = out->n > before && out->data[out->n - 1] == '\\';
        if (!l->more) break;
        out->data[out->n - 1] = '\n';
    }
    if (result != LINE_EDITOR_READ || !l->edit || out->n == 0) return result;
    remember(l, out->data);
    expand_pastes(l, out);
    return result;
}
