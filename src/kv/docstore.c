/* docstore.c: see the header.
 *
 * Invariants:
 *  1. A file gets its name only when all of it is on the disk: it is written under another name,
 *     synced and renamed, and its record is committed after that. A process that is killed at any
 *     point leaves at most a draft, or a file without a record; docstore_collect removes both.
 *  2. Files are renamed and removed inside a write transaction. There is only one at a time among
 *     all processes, so no process removes what another has just stored.
 *  3. The process that writes a draft holds a lock on it, and a lock ends with its process: a draft
 *     that can be locked is abandoned.
 *  4. A file's path is made from its id alone; names never become paths.
 *  5. A process has a folder open once. The index's locks belong to the process, so closing a
 *     second opening would release those of the first.
 *
 * The index is trusted to the extent that its records have their size and its texts are terminated.
 * The files are not trusted at all: whoever reads them checks them. */
#include "kv/docstore.h"

#include "base/folder.h"
#include "base/hex.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INDEX_NAME  "index.mdb"
#define FILE_SUFFIX ".doc"
#define PART_SUFFIX ".part"
#define VERSION     1u
#define INDEX_BYTES ((size_t)64 << 20) /* address space, enough for about 10^5 records */

enum { ID_HEX = 2 * DOCSTORE_ID_BYTES, KEY_MAX = 18 + DOCSTORE_NAME_MAX };

struct docstore {
    MDB_env *env;
    MDB_dbi dbi;
    bool only_reads;
    char dir[DOCSTORE_PATH_MAX - 256]; /* leaves room for a file name */
    /* While the store is in the list of open ones: */
    bool is_listed;
    pid_t pid; /* a forked child has a copy of the list and none of its locks */
    dev_t device;
    ino_t inode;
    struct docstore *next;
};

/* Enforces invariant 5. Like the locks that it protects, the list belongs to the whole process. */
static struct {
    pthread_mutex_t mutex;
    struct docstore *first; /* borrowed */
} listed = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A record in the index. */
struct entry {
    uint32_t version, bytes;
    struct docstore_record record;
};

static sac_status index_failed(const struct docstore *s, int rc, sac_error *err)
{
    if (rc == MDB_MAP_FULL)
        return error_set(err, SAC_ERR_IO, "the index of %s is full: it has %zu MiB", s->dir,
                         INDEX_BYTES >> 20);
    if (rc == MDB_VERSION_MISMATCH || rc == MDB_INVALID || rc == MDB_CORRUPTED)
        return error_set(err, SAC_ERR_FORMAT,
                         "%s/" INDEX_NAME " is no index of documents (%s): remove it, and add the "
                         "documents again",
                         s->dir, mdb_strerror(rc));
    return error_set(err, SAC_ERR_IO, "cannot use the index of %s: %s", s->dir, mdb_strerror(rc));
}

/* ---- Keys and paths ---- */

static size_t make_key(uint8_t out[KEY_MAX], const struct docstore_scope *scope, const char *name)
{
    const size_t n = strlen(name);
    uint8_t *at = out;
    for (int i = 0; i < 8; i++) *at++ = (uint8_t)(scope->model >> (56 - 8 * i));
    *at++ = scope->type_k;
    *at++ = scope->type_v;
    memcpy(at, scope->tenant, sizeof scope->tenant);
    memcpy(at + sizeof scope->tenant, name, n);
    return 18 + n;
}

void docstore_path(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES],
                   char out[DOCSTORE_PATH_MAX])
{
    char name[ID_HEX + 1];
    hex_print(name, id, DOCSTORE_ID_BYTES);
    snprintf(out, DOCSTORE_PATH_MAX, "%s/%s" FILE_SUFFIX, s->dir, name);
}

uint64_t docstore_file_bytes(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES])
{
    char path[DOCSTORE_PATH_MAX];
    struct stat st;
    docstore_path(s, id, path);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

void docstore_read_ahead(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES])
{
    char path[DOCSTORE_PATH_MAX];
    docstore_path(s, id, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return; /* the load will report the error */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    close(fd);
}

bool docstore_writable(const struct docstore *s)
{
    return !s->only_reads;
}

sac_status docstore_check_name(const char *name, sac_error *err)
{
    const size_t n = strlen(name);
    if (n == 0) return error_set(err, SAC_ERR_ARG, "a document's name is empty");
    if (n > DOCSTORE_NAME_MAX)
        return error_set(err, SAC_ERR_ARG,
                         "a document's name has %zu bytes, at most %u are possible", n,
                         DOCSTORE_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == ',')
            return error_set(err, SAC_ERR_ARG,
                             "the document's name '%.60s' has a comma or a control character",
                             name);
    if (name[0] == ' ' || name[n - 1] == ' ')
        return error_set(err, SAC_ERR_ARG,
                         "the document's name '%.60s' begins or ends with a blank", name);
    return SAC_OK;
}

/* ---- Opening ---- */

static int open_index(struct docstore *s, unsigned flags)
{
    char path[DOCSTORE_PATH_MAX];
    MDB_txn *txn;
    snprintf(path, sizeof path, "%s/" INDEX_NAME, s->dir);
    int rc = mdb_env_create(&s->env);
    if (rc == 0) rc = mdb_env_set_mapsize(s->env, INDEX_BYTES);
    if (rc == 0) rc = mdb_env_open(s->env, path, MDB_NOSUBDIR | MDB_NOTLS | flags, 0644);
    if (rc == 0) rc = mdb_txn_begin(s->env, NULL, flags & MDB_RDONLY, &txn);
    if (rc) return rc;
    rc = mdb_dbi_open(txn, NULL, 0, &s->dbi);
    if (rc) {
        mdb_txn_abort(txn);
        return rc;
    }
    int n_dead; /* readers that were killed would keep old pages of the index alive */
    (void)mdb_reader_check(s->env, &n_dead);
    return mdb_txn_commit(txn);
}

static bool may_not_write(int rc)
{
    return rc == EACCES || rc == EROFS || rc == EPERM;
}

static sac_status open_store(struct docstore *s, sac_error *err)
{
    int rc = s->only_reads ? EROFS : open_index(s, 0);
    if (!may_not_write(rc)) return rc ? index_failed(s, rc, err) : SAC_OK;
    mdb_env_close(s->env);
    s->env = NULL;
    s->only_reads = true;
    /* Read with readers' locks where possible: a writer must not reuse pages that are being
     * read. */
    rc = open_index(s, MDB_RDONLY);
    if (may_not_write(rc)) {
        mdb_env_close(s->env);
        s->env = NULL;
        rc = open_index(s, MDB_RDONLY | MDB_NOLOCK);
    }
    /* EBADF: the index is empty, because another process is creating it or was killed meanwhile;
     * LMDB would write its first page. */
    if (rc == ENOENT || rc == EBADF)
        return error_set(err, SAC_ERR_NOT_FOUND, "there is no document store in %s", s->dir);
    return rc ? index_failed(s, rc, err) : SAC_OK;
}

/* Adds the store to the list unless its folder is listed already. A missing folder is reported by
 * open_store. */
static sac_status enlist(struct docstore *s, sac_error *err)
{
    struct stat st;
    if (stat(s->dir, &st) != 0) return SAC_OK;
    s->device = st.st_dev;
    s->inode = st.st_ino;
    s->pid = getpid();
    pthread_mutex_lock(&listed.mutex);
    const struct docstore *at = listed.first;
    while (at && (at->pid != s->pid || at->device != s->device || at->inode != s->inode))
        at = at->next;
    s->is_listed = !at;
    if (s->is_listed) {
        s->next = listed.first;
        listed.first = s;
    }
    pthread_mutex_unlock(&listed.mutex);
    return s->is_listed
               ? SAC_OK
               : error_set(err, SAC_ERR_BUSY,
                           "the document store in %s is open in this process already", s->dir);
}

static void delist(struct docstore *s)
{
    if (!s->is_listed) return;
    pthread_mutex_lock(&listed.mutex);
    struct docstore **at = &listed.first;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&listed.mutex);
}

sac_status docstore_open(struct docstore **out, const char *dir, bool only_reads, sac_error *err)
{
    struct docstore *s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for a document store");
    s->only_reads = only_reads;
    sac_status status = SAC_OK;
    if (*dir == 0)
        status = error_set(err, SAC_ERR_ARG, "the document store's folder has an empty name");
    else if (snprintf(s->dir, sizeof s->dir, "%s", dir) >= (int)sizeof s->dir)
        status = error_set(err, SAC_ERR_ARG, "the document store's path is longer than %zu bytes",
                           sizeof s->dir - 1);
    if (status == SAC_OK && !only_reads) status = folder_make(dir, 0755, err);
    if (status == SAC_OK) status = enlist(s, err);
    if (status == SAC_OK) status = open_store(s, err);
    if (status != SAC_OK) {
        docstore_close(s);
        return status;
    }
    *out = s;
    return SAC_OK;
}

void docstore_close(struct docstore *s)
{
    if (!s) return;
    mdb_env_close(s->env);
    delist(s);
    mem_free(s);
}

/* ---- Transactions ---- */

static sac_status begin(struct docstore *s, bool writes, MDB_txn **out, sac_error *err)
{
    if (writes && s->only_reads)
        return error_set(err, SAC_ERR_IO, "the store in %s cannot be written", s->dir);
    const int rc = mdb_txn_begin(s->env, NULL, writes ? 0 : MDB_RDONLY, out);
    return rc ? index_failed(s, rc, err) : SAC_OK;
}

/* Commits, or aborts after an error. */
static sac_status finish(struct docstore *s, MDB_txn *txn, sac_status status, sac_error *err)
{
    if (status != SAC_OK) {
        mdb_txn_abort(txn);
        return status;
    }
    const int rc = mdb_txn_commit(txn);
    return rc ? index_failed(s, rc, err) : SAC_OK;
}

/* False: not a record of this version. */
static bool read_entry(struct docstore_record *out, const MDB_val *value)
{
    struct entry e;
    if (value->mv_size != sizeof e) return false;
    memcpy(&e, value->mv_data, sizeof e); /* values are not aligned */
    if (e.version != VERSION || e.bytes != sizeof e) return false;
    *out = e.record;
    return memchr(out->name, 0, sizeof out->name) && memchr(out->model, 0, sizeof out->model) &&
           memchr(out->tags, 0, sizeof out->tags);
}

static sac_status put(struct docstore *s, MDB_txn *txn, const struct docstore_record *record,
                      sac_error *err)
{
    uint8_t key[KEY_MAX];
    struct entry e;
    memset(&e, 0, sizeof e); /* padding is written to the file, too */
    e.version = VERSION;
    e.bytes = sizeof e;
    e.record = *record;
    MDB_val k = {.mv_data = key, .mv_size = make_key(key, &record->scope, record->name)};
    MDB_val v = {.mv_data = &e, .mv_size = sizeof e};
    const int rc = mdb_put(txn, s->dbi, &k, &v, 0);
    return rc ? index_failed(s, rc, err) : SAC_OK;
}

typedef bool (*visit_fn)(void *user, const struct docstore_record *record);

/* Calls `fn` for all records until it returns true. */
static sac_status visit(struct docstore *s, MDB_txn *txn, visit_fn fn, void *user, sac_error *err)
{
    struct docstore_record record;
    MDB_cursor *cursor;
    MDB_val k, v;
    int rc = mdb_cursor_open(txn, s->dbi, &cursor);
    if (rc) return index_failed(s, rc, err);
    while ((rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT)) == 0)
        if (read_entry(&record, &v) && fn(user, &record)) break;
    mdb_cursor_close(cursor);
    return rc && rc != MDB_NOTFOUND ? index_failed(s, rc, err) : SAC_OK;
}

/* ---- Reading ---- */

sac_status docstore_get(struct docstore *s, const struct docstore_scope *scope, const char *name,
                        struct docstore_record *out, sac_error *err)
{
    uint8_t key[KEY_MAX];
    MDB_txn *txn;
    TRY(docstore_check_name(name, err));
    TRY(begin(s, false, &txn, err));
    MDB_val k = {.mv_data = key, .mv_size = make_key(key, scope, name)}, v;
    const int rc = mdb_get(txn, s->dbi, &k, &v);
    const bool is_there = rc == 0 && read_entry(out, &v);
    mdb_txn_abort(txn);
    if (rc && rc != MDB_NOTFOUND) return index_failed(s, rc, err);
    return is_there ? SAC_OK
                    : error_set(err, SAC_ERR_NOT_FOUND, "the store in %s has no document '%s'",
                                s->dir, name);
}

sac_status docstore_find(struct docstore *s, const struct docstore_scope *scope, const char *name,
                         struct docstore_record *out, sac_error *err)
{
    TRY(docstore_get(s, scope, name, out, err));
    if (out->expires == 0 || out->expires > time(NULL)) return SAC_OK;
    return error_set(err, SAC_ERR_NOT_FOUND,
                     "the store in %s has document '%s' no more: its time is over", s->dir, name);
}

struct list {
    struct docstore_record *record; /* capacity */
    size_t n, n_max;
    bool failed;
};

static bool add_to_list(void *user, const struct docstore_record *record)
{
    struct list *l = user;
    if (l->n == l->n_max) {
        const size_t n_max = l->n_max ? 2 * l->n_max : 16;
        struct docstore_record *more = mem_realloc(l->record, n_max * sizeof *more);
        if (!more) return l->failed = true;
        l->record = more;
        l->n_max = n_max;
    }
    l->record[l->n++] = *record;
    return false;
}

static sac_status list_all(struct docstore *s, MDB_txn *txn, struct list *l, sac_error *err)
{
    sac_status status = visit(s, txn, add_to_list, l, err);
    if (status == SAC_OK && l->failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for the list of documents");
    if (status == SAC_OK) return SAC_OK;
    mem_free(l->record);
    l->record = NULL;
    return status;
}

sac_status docstore_list(struct docstore *s, struct docstore_record **out, size_t *out_n,
                         sac_error *err)
{
    struct list l = {0};
    MDB_txn *txn;
    TRY(begin(s, false, &txn, err));
    const sac_status status = list_all(s, txn, &l, err);
    mdb_txn_abort(txn);
    if (status != SAC_OK) return status;
    *out = l.record;
    *out_n = l.n;
    return SAC_OK;
}

struct sum {
    uint64_t bytes, n;
};

static bool add_to_sum(void *user, const struct docstore_record *record)
{
    struct sum *sum = user;
    sum->bytes += record->bytes;
    sum->n++;
    return false;
}

sac_status docstore_count(struct docstore *s, uint64_t *out_n, uint64_t *out_bytes, sac_error *err)
{
    struct sum sum = {0};
    MDB_txn *txn;
    TRY(begin(s, false, &txn, err));
    const sac_status status = visit(s, txn, add_to_sum, &sum, err);
    mdb_txn_abort(txn);
    *out_n = sum.n;
    *out_bytes = sum.bytes;
    return status;
}

/* ---- Writing ---- */

sac_status docstore_begin(struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES],
                          struct docstore_draft *out, sac_error *err)
{
    char name[ID_HEX + 1];
    if (s->only_reads)
        return error_set(err, SAC_ERR_IO, "the store in %s cannot be written", s->dir);
    hex_print(name, id, DOCSTORE_ID_BYTES);
    snprintf(out->path, sizeof out->path, "%s/%s.%ld" PART_SUFFIX, s->dir, name, (long)getpid());
    out->file = fopen(out->path, "wb");
    if (!out->file)
        return error_set(err, SAC_ERR_IO, "cannot write %s: %s", out->path, strerror(errno));
    if (flock(fileno(out->file), LOCK_EX | LOCK_NB) == 0) return SAC_OK;
    const int why = errno;
    docstore_abort(out);
    return error_set(err, SAC_ERR_IO, "cannot lock %s: %s", out->path, strerror(why));
}

void docstore_abort(struct docstore_draft *draft)
{
    if (!draft->file) return;
    fclose(draft->file);
    draft->file = NULL;
    unlink(draft->path);
}

static sac_status sync_folder(const struct docstore *s, sac_error *err)
{
    const int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool failed = fd < 0 || fsync(fd) != 0;
    const int why = errno;
    if (fd >= 0) close(fd);
    return failed ? error_set(err, SAC_ERR_IO, "cannot sync %s: %s", s->dir, strerror(why))
                  : SAC_OK;
}

struct reference {
    const struct docstore_record *of;
    bool found;
};

static bool is_reference(void *user, const struct docstore_record *record)
{
    struct reference *r = user;
    return r->found = memcmp(record->id, r->of->id, sizeof record->id) == 0;
}

/* Removes the file of a record that was deleted from the index, unless another name refers to
 * it. */
static sac_status drop_file(struct docstore *s, MDB_txn *txn, const struct docstore_record *record,
                            sac_error *err)
{
    char path[DOCSTORE_PATH_MAX];
    struct reference r = {.of = record};
    TRY(visit(s, txn, is_reference, &r, err));
    if (r.found) return SAC_OK;
    docstore_path(s, record->id, path);
    if (unlink(path) == 0 || errno == ENOENT) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
}

/* Stores the record. If the name referred to another document, that document's file is dropped. */
static sac_status replace(struct docstore *s, MDB_txn *txn, const struct docstore_record *record,
                          sac_error *err)
{
    struct docstore_record old;
    uint8_t key[KEY_MAX];
    MDB_val k = {.mv_data = key, .mv_size = make_key(key, &record->scope, record->name)}, v;
    const bool had = mdb_get(txn, s->dbi, &k, &v) == 0 && read_entry(&old, &v);
    TRY(put(s, txn, record, err));
    if (!had || memcmp(old.id, record->id, sizeof old.id) == 0) return SAC_OK;
    return drop_file(s, txn, &old, err);
}

sac_status docstore_commit(struct docstore *s, struct docstore_draft *draft,
                           struct docstore_record *record, sac_error *err)
{
    char path[DOCSTORE_PATH_MAX];
    struct stat st;
    MDB_txn *txn;
    if (fflush(draft->file) != 0 || fsync(fileno(draft->file)) != 0 ||
        fstat(fileno(draft->file), &st) != 0) {
        const int why = errno;
        docstore_abort(draft);
        return error_set(err, SAC_ERR_IO, "cannot write %s: %s", draft->path, strerror(why));
    }
    record->bytes = (uint64_t)st.st_size;
    sac_status status = begin(s, true, &txn, err);
    if (status != SAC_OK) {
        docstore_abort(draft);
        return status;
    }
    docstore_path(s, record->id, path);
    if (rename(draft->path, path) != 0) {
        status = error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        unlink(draft->path);
    }
    fclose(draft->file); /* also releases the lock: from here on the file is the document's */
    draft->file = NULL;
    if (status == SAC_OK) status = sync_folder(s, err);
    if (status == SAC_OK) status = replace(s, txn, record, err);
    return finish(s, txn, status, err);
}

sac_status docstore_put(struct docstore *s, const struct docstore_record *record, sac_error *err)
{
    MDB_txn *txn;
    TRY(begin(s, true, &txn, err));
    return finish(s, txn, replace(s, txn, record, err), err);
}

static sac_status remove_in(struct docstore *s, MDB_txn *txn, const struct docstore_record *record,
                            sac_error *err)
{
    uint8_t key[KEY_MAX];
    MDB_val k = {.mv_data = key, .mv_size = make_key(key, &record->scope, record->name)};
    const int rc = mdb_del(txn, s->dbi, &k, NULL);
    if (rc == MDB_NOTFOUND) return SAC_OK; /* another process has removed it */
    return rc ? index_failed(s, rc, err) : drop_file(s, txn, record, err);
}

sac_status docstore_touch(struct docstore *s, const struct docstore_scope *scope,
                          const char *const *name, size_t n, sac_error *err)
{
    const int64_t now = time(NULL);
    sac_status status = SAC_OK;
    MDB_txn *txn;
    TRY(begin(s, true, &txn, err));
    for (size_t i = 0; i < n && status == SAC_OK; i++) {
        struct docstore_record r;
        uint8_t key[KEY_MAX];
        MDB_val k = {.mv_data = key, .mv_size = make_key(key, scope, name[i])}, v;
        if (mdb_get(txn, s->dbi, &k, &v) != 0 || !read_entry(&r, &v) || r.used == now) continue;
        r.used = now;
        status = put(s, txn, &r, err);
    }
    return finish(s, txn, status, err);
}

sac_status docstore_remove(struct docstore *s, const struct docstore_record *record, sac_error *err)
{
    MDB_txn *txn;
    TRY(begin(s, true, &txn, err));
    return finish(s, txn, remove_in(s, txn, record, err), err);
}

/* ---- Collecting ---- */

static bool has_id(const struct list *l, const uint8_t id[DOCSTORE_ID_BYTES], size_t besides)
{
    for (size_t i = 0; i < l->n; i++)
        if (i != besides && memcmp(l->record[i].id, id, DOCSTORE_ID_BYTES) == 0) return true;
    return false;
}

/* Removes the i-th record from the list and the index. Its bytes count as freed if no other name
 * refers to the file. */
static sac_status collect_one(struct docstore *s, MDB_txn *txn, struct list *l, size_t i,
                              struct docstore_freed *freed, sac_error *err)
{
    const struct docstore_record gone = l->record[i];
    const uint64_t bytes = has_id(l, gone.id, i) ? 0 : docstore_file_bytes(s, gone.id);
    memmove(l->record + i, l->record + i + 1, (l->n - i - 1) * sizeof *l->record);
    l->n--;
    freed->bytes += bytes;
    return remove_in(s, txn, &gone, err);
}

static sac_status collect_expired(struct docstore *s, MDB_txn *txn, struct list *l,
                                  struct docstore_freed *freed, sac_error *err)
{
    const int64_t now = time(NULL);
    for (size_t i = l->n; i-- > 0;) {
        const struct docstore_record *r = &l->record[i];
        const bool is_old = r->expires && r->expires <= now;
        if (!is_old && docstore_file_bytes(s, r->id) > 0) continue;
        freed->n_expired += is_old;
        freed->n_lost += !is_old;
        TRY(collect_one(s, txn, l, i, freed, err));
    }
    return SAC_OK;
}

/* Bytes of all files, each counted once. */
static uint64_t all_bytes(const struct docstore *s, const struct list *l)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct list before = {.record = l->record, .n = i};
        if (!has_id(&before, l->record[i].id, i)) bytes += docstore_file_bytes(s, l->record[i].id);
    }
    return bytes;
}

/* Of two used in the same second, the longer text is removed first, because it may continue the
 * other. */
static bool goes_before(const struct docstore_record *a, const struct docstore_record *b)
{
    return a->used < b->used || (a->used == b->used && a->n_tok > b->n_tok);
}

static sac_status collect_oldest(struct docstore *s, MDB_txn *txn, struct list *l,
                                 uint64_t bytes_max, struct docstore_freed *freed, sac_error *err)
{
    const uint64_t before = freed->bytes, all = all_bytes(s, l);
    while (all > bytes_max + (freed->bytes - before)) {
        size_t oldest = l->n;
        for (size_t i = 0; i < l->n; i++)
            if (!l->record[i].is_pinned &&
                (oldest == l->n || goes_before(&l->record[i], &l->record[oldest])))
                oldest = i;
        if (oldest == l->n) return SAC_OK; /* the rest is pinned */
        freed->n_evicted++;
        TRY(collect_one(s, txn, l, oldest, freed, err));
    }
    return SAC_OK;
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

/* Whether a file of the store is unused: an abandoned draft, or a document without a name. */
static bool is_stray(const struct docstore *s, const struct list *l, const char *name)
{
    char path[DOCSTORE_PATH_MAX], id[ID_HEX + 1];
    if (snprintf(path, sizeof path, "%s/%s", s->dir, name) >= (int)sizeof path) return false;
    if (ends_with(name, PART_SUFFIX)) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const bool is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (fd >= 0) close(fd);
        return is_free;
    }
    if (!ends_with(name, FILE_SUFFIX) || strlen(name) != ID_HEX + strlen(FILE_SUFFIX)) return false;
    for (size_t i = 0; i < l->n; i++) {
        hex_print(id, l->record[i].id, DOCSTORE_ID_BYTES);
        if (strncmp(id, name, ID_HEX) == 0) return false;
    }
    return true;
}

static sac_status collect_strays(const struct docstore *s, const struct list *l,
                                 struct docstore_freed *freed, sac_error *err)
{
    char path[DOCSTORE_PATH_MAX];
    struct stat st;
    DIR *dir = opendir(s->dir);
    if (!dir) return error_set(err, SAC_ERR_IO, "cannot read %s: %s", s->dir, strerror(errno));
    for (const struct dirent *d; (d = readdir(dir));) {
        if (!is_stray(s, l, d->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", s->dir, d->d_name);
        const uint64_t bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
        if (unlink(path) != 0) continue; /* owned by someone else; it only takes up space */
        freed->n_stray++;
        freed->bytes += bytes;
    }
    closedir(dir);
    return SAC_OK;
}

sac_status docstore_collect(struct docstore *s, uint64_t bytes_max, struct docstore_freed *out,
                            sac_error *err)
{
    struct list l = {0};
    MDB_txn *txn;
    *out = (struct docstore_freed){0};
    TRY(begin(s, true, &txn, err));
    sac_status status = list_all(s, txn, &l, err);
    if (status == SAC_OK) status = collect_expired(s, txn, &l, out, err);
    if (status == SAC_OK && bytes_max) status = collect_oldest(s, txn, &l, bytes_max, out, err);
    if (status == SAC_OK) status = collect_strays(s, &l, out, err);
    mem_free(l.record);
    return finish(s, txn, status, err);
}
