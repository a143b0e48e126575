/* prefix_store.c: see the header.
 *
 * Format of an entry: struct head; tokens; pages in order of page index and lane. The head's
 * checksum covers everything after it and the fields before it.
 *
 * Invariants:
 *  1. `busy` tells who owns the buffer and the job: the writer while it is set, otherwise the
 *     requesting thread. `busy` and the counters are protected by the lock.
 *  2. The requesting thread changes the store only by removing damaged entries.
 *  3. Bytes that were read are hostile until the checksum, the key and the tokens have been
 *     compared. A checksum detects damage; anyone who can write to the folder can forge pages. */
#include "kv/prefix_store.h"

#include "base/hex.h"
#include "base/mem.h"
#include "base/thread.h"
#include "kv/docstore.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC       "SACPAGES"
#define VERSION     1u
#define KEY_HEX     (2 * SHA256_BYTES)
#define TOUCH_BATCH 64u
#define SLACK       32u /* 1/32 more than needed is freed, so that eviction is rare */

struct head {
    char magic[8];
    uint32_t version, page_tok;
    uint64_t model;
    uint32_t type_k, type_v, n_lane, n_page, first_page, reserved;
    uint64_t page_bytes;
    uint8_t key[SHA256_BYTES];
    uint64_t check; /* of everything else */
};

_Static_assert(sizeof(struct head) == 96, "no padding, which would be written");
_Static_assert(SHA256_BYTES == DOCSTORE_ID_BYTES, "a key names a file");

struct job {
    bool has_entry, stop;
    uint8_t key[SHA256_BYTES], id[SHA256_BYTES];
    uint32_t n_tok, n_tok_before;
    size_t bytes;
    uint8_t (*touch)[SHA256_BYTES]; /* owned, [n_touch_max] */
    uint32_t n_touch;
};

struct prefix_store {
    struct prefix_store_params params; /* its `dir` is not kept */
    struct docstore *store;            /* owned */
    struct docstore_scope scope;
    char form[96]; /* tag of records with these params.form */
    struct sha256 sha;
    size_t entry_bytes;   /* of the longest entry */
    uint8_t *room, *read; /* owned, [entry_bytes]: head, tokens, pages */
    pthread_t writer;
    bool has_writer;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool busy;
    struct job job;
    bool fails; /* the last write failed; writer's thread only */
    struct prefix_store_stats stats;
};

__attribute__((format(printf, 2, 3))) static void say(const struct prefix_store *s, const char *fmt,
                                                      ...)
{
    char line[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (s->params.say) s->params.say(s->params.user, line);
}

/* ---- Names ---- */

/* Requesting thread only, like `sha`. */
static void id_of(const struct prefix_store *s, uint8_t out[SHA256_BYTES], const uint8_t *key)
{
    sha256_digest(&s->sha, out, key, s->form, strlen(s->form));
}

static bool find(struct prefix_store *s, uint32_t first_page, const uint8_t key[SHA256_BYTES],
                 struct docstore_record *out)
{
    char name[KEY_HEX + 1];
    uint8_t id[SHA256_BYTES];
    hex_print(name, key, SHA256_BYTES);
    if (docstore_get(s->store, &s->scope, name, out, NULL) != SAC_OK) return false;
    id_of(s, id, key);
    return memcmp(out->id, id, sizeof id) == 0 &&
           out->n_head == first_page * s->params.form.page_tok;
}

bool prefix_store_has(struct prefix_store *s, uint32_t first_page, const uint8_t key[SHA256_BYTES])
{
    struct docstore_record record;
    return find(s, first_page, key, &record);
}

void prefix_store_read_ahead(struct prefix_store *s, uint32_t first_page,
                             const uint8_t key[SHA256_BYTES])
{
    struct docstore_record record;
    if (find(s, first_page, key, &record)) docstore_read_ahead(s->store, record.id);
}

bool prefix_store_writable(const struct prefix_store *s)
{
    return docstore_writable(s->store);
}

/* ---- Entries as bytes ---- */

static size_t tok_bytes(const struct prefix_store *s, uint32_t n_page)
{
    return (size_t)n_page * s->params.form.page_tok * sizeof(int32_t);
}

static size_t bytes_of(const struct prefix_store *s, uint32_t n_page)
{
    const struct prefix_store_form *f = &s->params.form;
    return sizeof(struct head) + tok_bytes(s, n_page) + (size_t)n_page * f->n_lane * f->page_bytes;
}

static struct head make_head(const struct prefix_store *s, const struct prefix_store_entry *entry)
{
    const struct prefix_store_form *f = &s->params.form;
    struct head h = {.version = VERSION,
                     .page_tok = f->page_tok,
                     .model = f->model,
                     .type_k = f->type_k,
                     .type_v = f->type_v,
                     .n_lane = f->n_lane,
                     .n_page = entry->n_page,
                     .first_page = entry->first_page,
                     .page_bytes = f->page_bytes};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.key, entry->key, sizeof h.key);
    return h;
}

static uint64_t check_of(const struct head *h, const uint8_t *bytes, size_t n)
{
    const uint64_t body = XXH3_64bits(bytes + sizeof *h, n - sizeof *h);
    return XXH3_64bits_withSeed(h, offsetof(struct head, check), body);
}

/* Describes what is wrong with the bytes; NULL: nothing. */
static const char *check_bytes(const struct prefix_store *s, const struct prefix_store_entry *entry,
                               const uint8_t *bytes, size_t n)
{
    struct head wanted = make_head(s, entry), h;
    memcpy(&h, bytes, sizeof h);
    wanted.check = check_of(&h, bytes, n);
    if (h.check != wanted.check) return "its checksum is another one";
    if (memcmp(&h, &wanted, sizeof h) != 0) return "its head tells of another text";
    if (memcmp(bytes + sizeof h, entry->tok, tok_bytes(s, entry->n_page)) != 0)
        return "it holds other tokens";
    return NULL;
}

/* ---- Reading ---- */

/* Describes why the file could not be read as expected; NULL: it was. */
static const char *read_file(const char *path, uint8_t *to, size_t n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    const char *why = NULL;
    if (!f) return strerror(errno);
    if (fstat(fileno(f), &st) != 0)
        why = strerror(errno);
    else if (st.st_size < 0 || (uint64_t)st.st_size != n)
        why = "it has not the length that its pages have";
    else if (fread(to, 1, n, f) != n)
        why = ferror(f) ? strerror(errno) : "it has become shorter";
    fclose(f);
    return why;
}

static void discard_damaged(struct prefix_store *s, const struct docstore_record *record,
                            const char *path, const char *why)
{
    const bool writes = prefix_store_writable(s);
    const bool gone = writes && docstore_remove(s->store, record, NULL) == SAC_OK;
    say(s, "%s is damaged and not used%s: %s", path, gone ? ", it is removed" : "", why);
    pthread_mutex_lock(&s->lock);
    s->stats.n_damaged++;
    pthread_mutex_unlock(&s->lock);
}

const uint8_t *prefix_store_read(struct prefix_store *s, const struct prefix_store_entry *entry)
{
    const size_t n = bytes_of(s, entry->n_page);
    struct docstore_record record;
    char path[DOCSTORE_PATH_MAX];
    if (!find(s, entry->first_page, entry->key, &record)) return NULL;
    docstore_path(s->store, record.id, path);
    const char *why = read_file(path, s->read, n);
    if (!why) why = check_bytes(s, entry, s->read, n);
    if (why) {
        discard_damaged(s, &record, path, why);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    s->stats.n_read++;
    s->stats.bytes_read += n;
    pthread_mutex_unlock(&s->lock);
    return s->read + sizeof(struct head) + tok_bytes(s, entry->n_page);
}

/* ---- Submitting entries ---- */

bool prefix_store_is_idle(struct prefix_store *s)
{
    pthread_mutex_lock(&s->lock);
    const bool busy = s->busy;
    pthread_mutex_unlock(&s->lock);
    return !busy;
}

uint8_t *prefix_store_room(struct prefix_store *s, uint32_t n_page)
{
    return s->room + sizeof(struct head) + tok_bytes(s, n_page);
}

static void hand_over(struct prefix_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

void prefix_store_write(struct prefix_store *s, const struct prefix_store_entry *entry)
{
    const struct prefix_store_form *f = &s->params.form;
    const struct head head = make_head(s, entry);
    memcpy(s->room, &head, sizeof head);
    memcpy(s->room + sizeof head, entry->tok, tok_bytes(s, entry->n_page));
    s->job.has_entry = true;
    s->job.bytes = bytes_of(s, entry->n_page);
    s->job.n_tok_before = entry->first_page * f->page_tok;
    s->job.n_tok = s->job.n_tok_before + entry->n_page * f->page_tok;
    s->job.n_touch = 0;
    memcpy(s->job.key, entry->key, SHA256_BYTES);
    id_of(s, s->job.id, entry->key);
    hand_over(s);
}

void prefix_store_touch(struct prefix_store *s, const uint8_t (*key)[SHA256_BYTES], uint32_t n)
{
    s->job.has_entry = false;
    s->job.n_touch = n < s->params.n_touch_max ? n : s->params.n_touch_max;
    memcpy(s->job.touch, key, s->job.n_touch * sizeof *key);
    hand_over(s);
}

void prefix_store_wait(struct prefix_store *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->busy) pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

struct prefix_store_stats prefix_store_get_stats(struct prefix_store *s)
{
    pthread_mutex_lock(&s->lock);
    const struct prefix_store_stats stats = s->stats;
    pthread_mutex_unlock(&s->lock);
    return stats;
}

/* ---- The writer ---- */

static struct docstore_record make_record(const struct prefix_store *s)
{
    const int64_t now = time(NULL);
    struct docstore_record r = {.scope = s->scope,
                                .n_tok = s->job.n_tok,
                                .n_head = s->job.n_tok_before,
                                .created = now,
                                .used = now};
    hex_print(r.name, s->job.key, SHA256_BYTES);
    memcpy(r.id, s->job.id, sizeof r.id);
    snprintf(r.model, sizeof r.model, "%s", s->params.form.model_name);
    snprintf(r.tags, sizeof r.tags, "%s", s->form);
    return r;
}

static sac_status make_room(struct prefix_store *s, uint64_t need, sac_error *err)
{
    const uint64_t max = s->params.bytes_max;
    struct docstore_freed freed;
    uint64_t n, bytes;
    TRY(docstore_count(s->store, &n, &bytes, err));
    if (bytes + need <= max) return SAC_OK;
    const uint64_t keep = need + max / SLACK < max ? max - need - max / SLACK : 1;
    TRY(docstore_collect(s->store, keep, &freed, err));
    pthread_mutex_lock(&s->lock);
    s->stats.n_evicted += freed.n_evicted;
    pthread_mutex_unlock(&s->lock);
    return SAC_OK;
}

static sac_status write_entry(struct prefix_store *s, sac_error *err)
{
    struct docstore_record record = make_record(s);
    struct docstore_draft draft;
    struct head head;
    memcpy(&head, s->room, sizeof head);
    head.check = check_of(&head, s->room, s->job.bytes);
    memcpy(s->room, &head, sizeof head);
    TRY(make_room(s, s->job.bytes, err));
    TRY(docstore_begin(s->store, record.id, &draft, err));
    if (fwrite(s->room, 1, s->job.bytes, draft.file) == s->job.bytes)
        return docstore_commit(s->store, &draft, &record, err);
    const int why = errno;
    docstore_abort(&draft);
    return error_set(err, SAC_ERR_IO, "cannot write %s: %s", draft.path, strerror(why));
}

static sac_status touch(struct prefix_store *s, sac_error *err)
{
    char name[TOUCH_BATCH][KEY_HEX + 1];
    const char *list[TOUCH_BATCH];
    for (uint32_t i = 0; i < s->job.n_touch;) {
        uint32_t n = 0;
        for (; n < TOUCH_BATCH && i < s->job.n_touch; n++, i++) {
            hex_print(name[n], s->job.touch[i], SHA256_BYTES);
            list[n] = name[n];
        }
        TRY(docstore_touch(s->store, &s->scope, list, n, err));
    }
    return SAC_OK;
}

/* Logs once when writing begins to fail, and once when it works again. */
static void note(struct prefix_store *s, sac_status status, const sac_error *err)
{
    const bool fails = status != SAC_OK;
    if (fails && !s->fails)
        say(s, "%s; what is read is not kept on disk until that works again", err->msg);
    if (!fails && s->fails) say(s, "the disk takes entries again");
    s->fails = fails;
}

static void do_job(struct prefix_store *s)
{
    uint64_t n = 0, bytes = 0;
    sac_error err = {0};
    const bool writes = s->job.has_entry;
    const sac_status status = writes ? write_entry(s, &err) : touch(s, &err);
    note(s, status, &err);
    const bool counted = docstore_count(s->store, &n, &bytes, NULL) == SAC_OK;
    pthread_mutex_lock(&s->lock);
    if (counted) {
        s->stats.n_entry = n;
        s->stats.bytes = bytes;
    }
    s->stats.n_write += writes && status == SAC_OK;
    s->stats.bytes_written += writes && status == SAC_OK ? s->job.bytes : 0;
    s->stats.n_failed += writes && status != SAC_OK;
    pthread_mutex_unlock(&s->lock);
}

static void *writer_main(void *user)
{
    struct prefix_store *s = user;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* this thread only */
    pthread_mutex_lock(&s->lock);
    while (true) {
        while (!s->busy && !s->job.stop) pthread_cond_wait(&s->change, &s->lock);
        if (!s->busy) break;
        pthread_mutex_unlock(&s->lock);
        do_job(s);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->change);
        if (s->job.stop) continue;
        pthread_mutex_unlock(&s->lock);
        if (s->params.ready) s->params.ready(s->params.user);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Opening and closing ---- */

static bool is_own(const struct prefix_store *s, const struct docstore_record *r)
{
    return r->scope.model == s->scope.model && r->scope.type_k == s->scope.type_k &&
           r->scope.type_v == s->scope.type_v && strcmp(r->tags, s->form) == 0;
}

/* Removes what killed writers left behind and what exceeds the limit; logs entries that cannot be
 * used. */
static sac_status inspect_store(struct prefix_store *s, sac_error *err)
{
    struct docstore_record *record;
    struct docstore_freed freed;
    size_t n, n_other = 0;
    if (prefix_store_writable(s)) {
        TRY(docstore_collect(s->store, s->params.bytes_max, &freed, err));
        s->stats.n_evicted = freed.n_evicted;
    }
    TRY(docstore_count(s->store, &s->stats.n_entry, &s->stats.bytes, err));
    TRY(docstore_list(s->store, &record, &n, err));
    for (size_t i = 0; i < n; i++) n_other += !is_own(s, &record[i]);
    mem_free(record);
    if (n_other)
        say(s,
            "%zu of the %zu entries in %s are of another model, KV type, processor or version and "
            "are not used; new ones take their room",
            n_other, n, s->params.dir);
    if (!prefix_store_writable(s)) say(s, "%s cannot be written: it is only read", s->params.dir);
    return SAC_OK;
}

static sac_status open_store(struct prefix_store *s, sac_error *err)
{
    const struct prefix_store_form *f = &s->params.form;
    snprintf(s->form, sizeof s->form, "saccade pages %u %s %u %u", VERSION, f->isa, f->type_k,
             f->type_v);
    s->scope = (struct docstore_scope){.model = f->model, .type_k = f->type_k, .type_v = f->type_v};
    s->entry_bytes = bytes_of(s, PREFIX_STORE_PAGES);
    if (s->params.bytes_max < s->entry_bytes)
        return error_set(
            err, SAC_ERR_ARG, "%llu bytes hold no entry of %u pages of this model, which has %zu",
            (unsigned long long)s->params.bytes_max, PREFIX_STORE_PAGES, s->entry_bytes);
    TRY(sha256_open(&s->sha, err));
    TRY(docstore_open(&s->store, s->params.dir, false, err));
    /* The folder holds prompts. It is empty when created, so nothing was readable before. */
    if (prefix_store_writable(s)) (void)!chmod(s->params.dir, 0700);
    return SAC_OK;
}

static sac_status start(struct prefix_store *s, sac_error *err)
{
    s->room = mem_alloc(s->entry_bytes);
    s->read = mem_alloc(s->entry_bytes);
    s->job.touch = mem_calloc(s->params.n_touch_max, sizeof *s->job.touch);
    if (!s->room || !s->read || !s->job.touch)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a cache on disk");
    TRY(inspect_store(s, err));
    if (!prefix_store_writable(s)) return SAC_OK;
    if (!thread_start(&s->writer, writer_main, s))
        return error_set(err, SAC_ERR_MEMORY, "the system gives no thread");
    s->has_writer = true;
    return SAC_OK;
}

sac_status prefix_store_open(struct prefix_store **out, const struct prefix_store_params *params,
                             sac_error *err)
{
    struct prefix_store *s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for a cache on disk");
    s->params = *params;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    sac_status status = open_store(s, err);
    if (status == SAC_OK) status = start(s, err);
    s->params.dir = NULL;
    if (status == SAC_OK)
        *out = s;
    else
        prefix_store_close(s);
    return status;
}

void prefix_store_close(struct prefix_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->job.stop = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    if (s->has_writer) pthread_join(s->writer, NULL);
    docstore_close(s->store);
    sha256_close(&s->sha);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->room);
    mem_free(s->read);
    mem_free(s->job.touch);
    mem_free(s);
}
