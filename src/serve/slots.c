/* slots.c: see the header.
 *
 * Invariants:
 *  1. `seq` of a slot holds rows that were computed as those of a prompt, and what goes on from it
 *     begins at a whole page: so it has the bits that it would have without the slot. A file from
 *     elsewhere may be an exception: it says itself what its rows are. How much of a text `seq`
 *     holds is compared each time (count_held).
 *  2. A slot changes when what replaces it is complete. So an answer that fails, or a file that
 *     cannot be read, costs nothing that was there. */
#include "serve/slots.h"

#include "base/folder.h"
#include "base/mem.h"
#include "base/workers.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 4096u

struct slot {
    int32_t *tok; /* owned, [n]: prompt and answer; NULL: empty */
    size_t n;
    char salt[SLOTS_SALT_BYTES]; /* identifies the owner */
    uint32_t decode, prefill;    /* methods with which the text was computed */
    sac_seq seq;                 /* owned: a restored text and its continuation; or SAC_SEQ_NONE */
    uint64_t used;               /* logical time of the last use; 0: never */
    uint32_t n_running;
};

struct slots {
    sac_engine *engine;
    struct slots_options options;
    uint64_t clock;
    struct slot *slot; /* owned, [options.n] */
};

sac_status slots_open(struct slots **out, sac_engine *engine, const struct slots_options *options,
                      sac_error *err)
{
    struct slots *s = mem_calloc(1, sizeof *s);
    struct slot *slot = mem_calloc(options->n, sizeof *slot);
    if (!s || !slot) {
        mem_free(s);
        mem_free(slot);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %u slots", options->n);
    }
    *s = (struct slots){.engine = engine, .options = *options, .slot = slot};
    for (uint32_t i = 0; i < options->n; i++) slot[i].seq = SAC_SEQ_NONE;
    *out = s;
    return folder_make(options->dir, 0700, err);
}

void slots_close(struct slots *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->options.n; i++) mem_free(s->slot[i].tok);
    mem_free(s->slot);
    mem_free(s);
}

void slots_salt(char out[SLOTS_SALT_BYTES], uint64_t key, const char *cache_salt)
{
    snprintf(out, SLOTS_SALT_BYTES, "%016llx/%s", (unsigned long long)key,
             cache_salt ? cache_salt : "");
}

/* ---- Contents of a slot ---- */

static void drop_seq(struct slots *s, struct slot *slot)
{
    if (slot->seq != SAC_SEQ_NONE) sac_seq_remove(s->engine, slot->seq);
    slot->seq = SAC_SEQ_NONE;
}

static void clear_slot(struct slots *s, struct slot *slot)
{
    drop_seq(s, slot);
    mem_free(slot->tok);
    slot->tok = NULL;
    slot->n = 0;
}

static size_t count_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* How many tokens of the text the slot's sequence covers, in whole pages: within a page, values may
 * have been rounded with other tokens. */
static size_t count_held(const struct slots *s, const struct slot *slot, const char *salt,
                         const int32_t *tok, size_t n)
{
    if (slot->seq == SAC_SEQ_NONE || strcmp(slot->salt, salt) != 0) return 0;
    const size_t n_seq = sac_seq_length(s->engine, slot->seq, NULL);
    return count_common(sac_seq_tokens(s->engine, slot->seq), n_seq, tok, n) / SAC_PAGE_TOK *
           SAC_PAGE_TOK;
}

/* Forks the slot's sequence and keeps its first n tokens. */
static sac_status fork_first(const struct slots *s, const struct slot *slot, size_t n, sac_seq *out,
                             sac_error *err)
{
    sac_seq seq;
    TRY(sac_seq_fork(s->engine, slot->seq, &seq, err));
    const sac_status status = sac_seq_truncate(s->engine, seq, (uint32_t)n, err);
    if (status == SAC_OK)
        *out = seq;
    else
        sac_seq_remove(s->engine, seq);
    return status;
}

/* The slot with the least recently used restored text, except `but`; NULL: none. */
static struct slot *oldest_restored(struct slots *s, const struct slot *but)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct slot *slot = &s->slot[i];
        if (slot != but && slot->seq != SAC_SEQ_NONE && (!oldest || slot->used < oldest->used))
            oldest = slot;
    }
    return oldest;
}

void slots_make_room(struct slots *s)
{
    const sac_engine_params p = sac_engine_get_params(s->engine);
    const double least = (double)p.n_batch + (double)p.n_seq_max * SAC_PAGE_TOK; /* a step's */
    while (true) {
        struct slot *oldest = oldest_restored(s, NULL);
        const sac_engine_stats stats = sac_engine_get_stats(s->engine);
        const double free_share = (double)stats.n_page_free / (double)stats.n_page;
        if (!oldest || free_share * (double)p.n_kv_tok >= least) return;
        drop_seq(s, oldest);
    }
}

/* ---- Answers ---- */

static bool is_preferred(const struct slot *a, const struct slot *b)
{
    const bool a_restored = a->seq != SAC_SEQ_NONE, b_restored = b->seq != SAC_SEQ_NONE;
    if (a->n_running != b->n_running) return a->n_running < b->n_running;
    if (a_restored != b_restored) return b_restored;
    return a->used < b->used;
}

static uint32_t choose_slot(const struct slots *s, const char *salt,
                            const struct api_request_prompt *prompt)
{
    uint32_t best = 0;
    size_t n_best = 0;
    for (uint32_t i = 0; i < s->options.n; i++) {
        const size_t n = count_held(s, &s->slot[i], salt, prompt->tok, prompt->n);
        if (n > n_best) best = i;
        if (n > n_best) n_best = n;
    }
    for (uint32_t i = 1; n_best == 0 && i < s->options.n; i++)
        if (is_preferred(&s->slot[i], &s->slot[best])) best = i;
    return best;
}

void slots_begin(struct slots *s, struct answer *a)
{
    const struct api_request_prompt *prompt = &a->request.prompt[0];
    char salt[SLOTS_SALT_BYTES];
    if (a->n_choice != 1 || a->request.n_doc) return;
    slots_salt(salt, a->key, a->request.cache_salt);
    a->slot =
        a->request.names_slot ? (int32_t)a->request.slot : (int32_t)choose_slot(s, salt, prompt);
    struct slot *slot = &s->slot[a->slot];
    slot->n_running++;
    slot->used = ++s->clock;
    const size_t n = count_held(s, slot, salt, prompt->tok, prompt->n - 1);
    /* If this fails, the prompt is computed from its beginning. */
    if (n > 0 && fork_first(s, slot, n, &a->choice[0].seq, NULL) == SAC_OK) a->choice[0].n_held = n;
}

/* Replaces the restored text by the whole pages of the prompt. The last token is excluded, because
 * it was computed like those of an answer. */
static void keep_prompt_pages(struct slots *s, struct slot *slot, struct answer_choice *c)
{
    const size_t n_wide = c->answer->request.prompt[0].n - 1;
    const size_t n = n_wide / SAC_PAGE_TOK * SAC_PAGE_TOK;
    if (c->seq == SAC_SEQ_NONE || sac_seq_truncate(s->engine, c->seq, (uint32_t)n, NULL) != SAC_OK)
        return;
    drop_seq(s, slot);
    slot->seq = c->seq;
    c->seq = SAC_SEQ_NONE;
}

static void store_text(struct slots *s, struct slot *slot, struct answer_choice *c)
{
    const struct api_request *request = &c->answer->request;
    const struct api_request_prompt *prompt = &request->prompt[0];
    const size_t n_said = c->said.n / sizeof(int32_t);
    int32_t *tok = mem_alloc((prompt->n + n_said) * sizeof *tok);
    if (!tok) return;
    memcpy(tok, prompt->tok, prompt->n * sizeof *tok);
    memcpy(tok + prompt->n, c->said.data, c->said.n);
    mem_free(slot->tok);
    slot->tok = tok;
    slot->n = prompt->n + n_said;
    slots_salt(slot->salt, c->answer->key, request->cache_salt);
    slot->decode = request->decode;
    slot->prefill = request->prefill;
    if (c->seq != SAC_SEQ_NONE)
        keep_prompt_pages(s, slot, c);
    else
        drop_seq(s, slot);
}

void slots_end(struct slots *s, struct answer_choice *c)
{
    if (c->answer->slot < 0) return;
    struct slot *slot = &s->slot[c->answer->slot];
    assert(slot->n_running > 0);
    slot->n_running--;
    if (c->said.n > 0 && !c->said.failed) store_text(s, slot, c);
    if (c->seq != SAC_SEQ_NONE) sac_seq_remove(s->engine, c->seq);
    c->seq = SAC_SEQ_NONE;
}

/* ---- Saving ---- */

/* Each key has a folder of its own, so that clients cannot read each other's files. */
static sac_status make_path(const struct slots *s, const struct api_request *request, uint64_t key,
                            char out[PATH_BYTES], sac_error *err)
{
    char folder[32] = "";
    if (key) snprintf(folder, sizeof folder, "/%016llx", (unsigned long long)key);
    const size_t n = (size_t)snprintf(out, PATH_BYTES, "%s%s", s->options.dir, folder);
    if (n + strlen(request->slot_file) + 2 > PATH_BYTES)
        return error_set(err, SAC_ERR_ARG, "the path of '%.200s' is too long", request->slot_file);
    if (key) TRY(folder_make(out, 0700, err));
    snprintf(out + n, PATH_BYTES - n, "/%s", request->slot_file);
    return SAC_OK;
}

/* Error messages name the file as the client did, not its path. */
static sac_status hide_path(sac_status status, const struct api_request *request, const char *path,
                            sac_error *err)
{
    char said[sizeof err->msg];
    if (status == SAC_OK) return status;
    snprintf(said, sizeof said, "%s", err->msg);
    const char *at = strstr(said, path);
    if (at)
        return error_set(err, status, "%.*s'%s'%s", (int)(at - said), said, request->slot_file,
                         at + strlen(path));
    return error_set(err, status, "'%s': %s", request->slot_file, said);
}

static sac_status refuse_other(const struct api_request *request, sac_error *err)
{
    return error_set(
        err, SAC_ERR_ARG,
        "slot %u holds no text of yours: it holds the last answer that was given in it",
        request->slot);
}

static bool is_owner(const struct slot *slot, const struct api_request *request, uint64_t key)
{
    char salt[SLOTS_SALT_BYTES];
    slots_salt(salt, key, request->cache_salt);
    return slot->tok && strcmp(slot->salt, salt) == 0;
}

/* Computes the pending tokens, between steps for other answers. */
static sac_status compute(struct slots *s, sac_seq seq, struct doc_library_wait wait,
                          sac_error *err)
{
    uint32_t pending;
    const uint32_t n_done = sac_seq_length(s->engine, seq, &pending), n_all = n_done + pending;
    while (pending) {
        slots_make_room(s);
        TRY(sac_step(s->engine, NULL, NULL, NULL, err));
        const uint32_t n = sac_seq_length(s->engine, seq, &pending);
        if (wait.progress(wait.user, (double)n / (double)n_all))
            return error_set(err, SAC_ERR_CANCELLED, "nobody waits for it");
    }
    return SAC_OK;
}

/* Creates a sequence with the slot's text, without computing what is missing: that would run other
 * answers, which may change the slot. */
static sac_status begin_text(struct slots *s, const struct slot *slot, sac_seq *out, sac_error *err)
{
    const size_t n = count_held(s, slot, slot->salt, slot->tok, slot->n);
    if (n > 0)
        TRY(fork_first(s, slot, n, out, err));
    else
        TRY(sac_seq_create(s->engine, out, err));
    sac_status status = SAC_OK;
    if (n == 0) status = sac_seq_use_salt(s->engine, *out, slot->salt, err);
    if (status == SAC_OK) status = sac_seq_use_decode(s->engine, *out, slot->decode, err);
    if (status == SAC_OK) status = sac_seq_use_prefill(s->engine, *out, slot->prefill, err);
    if (status == SAC_OK)
        status = sac_seq_append(s->engine, *out, slot->tok + n, slot->n - n, SAC_ROW_PROMPT,
                                SAC_WANT_NONE, err);
    if (status != SAC_OK) sac_seq_remove(s->engine, *out);
    return status;
}

static cJSON *begin_json(const struct api_request *request)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "id_slot", request->slot);
    if (request->slot_file)
        json_add_text(o, "filename", request->slot_file, strlen(request->slot_file));
    return o;
}

static void add_time(cJSON *o, const char *name, uint64_t start_us)
{
    cJSON *timings = cJSON_AddObjectToObject(o, "timings");
    cJSON_AddNumberToObject(timings, name, (double)(clock_us() - start_us) * 1e-3);
}

static sac_status save(struct slots *s, const struct api_request *request, uint64_t key,
                       struct doc_library_wait wait, struct strbuf *out, sac_error *err)
{
    const uint64_t start_us = clock_us();
    const struct slot *slot = &s->slot[request->slot];
    char path[PATH_BYTES];
    sac_state_info info;
    sac_seq seq;
    if (!is_owner(slot, request, key)) return refuse_other(request, err);
    TRY(make_path(s, request, key, path, err));
    TRY(begin_text(s, slot, &seq, err));
    sac_status status = compute(s, seq, wait, err);
    if (status == SAC_OK) status = sac_seq_save(s->engine, seq, path, err);
    sac_seq_remove(s->engine, seq);
    if (status == SAC_OK) status = sac_state_get_info(&info, path, err);
    TRY(hide_path(status, request, path, err));
    cJSON *o = begin_json(request);
    cJSON_AddNumberToObject(o, "n_saved", info.n_tok);
    cJSON_AddNumberToObject(o, "n_written", (double)info.bytes);
    add_time(o, "save_ms", start_us);
    json_print(out, o);
    return SAC_OK;
}

/* ---- Restoring and erasing ---- */

/* Evicts other restored texts if there is no room. */
static sac_status load(struct slots *s, const char *path, struct slot *slot, sac_seq *out,
                       sac_error *err)
{
    struct slot *other;
    sac_status status;
    while ((status = sac_seq_load(s->engine, path, out, err)) == SAC_ERR_CONTEXT &&
           (other = oldest_restored(s, slot)))
        drop_seq(s, other);
    return status;
}

static sac_status take_loaded(struct slots *s, sac_seq seq, const struct api_request *request,
                              uint64_t key, sac_error *err)
{
    struct slot *slot = &s->slot[request->slot];
    const size_t n = sac_seq_length(s->engine, seq, NULL);
    int32_t *tok = mem_alloc((n + 1) * sizeof *tok);
    if (!tok) {
        sac_seq_remove(s->engine, seq);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", n);
    }
    memcpy(tok, sac_seq_tokens(s->engine, seq), n * sizeof *tok);
    clear_slot(s, slot);
    slot->tok = tok;
    slot->n = n;
    slot->decode = slot->prefill = 0;
    slot->seq = seq;
    slot->used = ++s->clock;
    slots_salt(slot->salt, key, request->cache_salt);
    return SAC_OK;
}

static sac_status restore(struct slots *s, const struct api_request *request, uint64_t key,
                          struct strbuf *out, sac_error *err)
{
    const uint64_t start_us = clock_us();
    struct slot *slot = &s->slot[request->slot];
    char path[PATH_BYTES];
    sac_state_info info;
    sac_seq seq;
    TRY(make_path(s, request, key, path, err));
    sac_status status = sac_state_get_info(&info, path, err);
    if (status == SAC_OK) status = load(s, path, slot, &seq, err);
    TRY(hide_path(status, request, path, err));
    TRY(take_loaded(s, seq, request, key, err));
    cJSON *o = begin_json(request);
    cJSON_AddNumberToObject(o, "n_restored", info.n_tok);
    cJSON_AddNumberToObject(o, "n_read", (double)info.bytes);
    add_time(o, "restore_ms", start_us);
    json_print(out, o);
    return SAC_OK;
}

static sac_status erase(struct slots *s, const struct api_request *request, uint64_t key,
                        struct strbuf *out, sac_error *err)
{
    struct slot *slot = &s->slot[request->slot];
    if (slot->tok && !is_owner(slot, request, key)) return refuse_other(request, err);
    cJSON *o = begin_json(request);
    cJSON_AddNumberToObject(o, "n_erased", (double)slot->n);
    clear_slot(s, slot);
    json_print(out, o);
    return SAC_OK;
}

sac_status slots_work(struct slots *s, const struct api_request *request, uint64_t key,
                      struct doc_library_wait wait, struct strbuf *out, sac_error *err)
{
    struct json_pool json = {0};
    json_enter(&json);
    const sac_status status =
        request->work == API_REQUEST_SLOT_SAVE      ? save(s, request, key, wait, out, err)
        : request->work == API_REQUEST_SLOT_RESTORE ? restore(s, request, key, out, err)
                                                    : erase(s, request, key, out, err);
    json_leave();
    json_pool_deinit(&json);
    return status;
}
