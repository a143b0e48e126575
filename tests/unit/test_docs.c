/* test_docs.c: stores of documents: what is kept under which name, what a hit is, what is refused,
 * what is removed when, and what a killed process leaves. The store is in a folder of its own; the
 * model is a tiny one of random weights. */
#include "base/mem.h"
#include "engine/engine.h"
#include "kv/docstore.h"
#include "must.h"
#include "tiny_rows.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "store_dir.h"

enum { N_TEXT = 100, N_HEAD = 10 };

static sac_model *model, *stranger;
static int32_t text[3][N_TEXT], head[N_HEAD];

static int open_models(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 1});
    stranger = tiny_open(&(struct tiny){.seed = 2});
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < N_TEXT; i++) text[t][i] = (i * 37 + t * 5 + i / 9) % TINY_VOCAB;
    for (int i = 0; i < N_HEAD; i++) head[i] = i;
    return model && stranger ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(stranger);
    return 0;
}

static unsigned count_files(const char *suffix)
{
    unsigned n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        const size_t len = strlen(e->d_name), n_suffix = strlen(suffix);
        n += len > n_suffix && strcmp(e->d_name + len - n_suffix, suffix) == 0;
    }
    closedir(d);
    return n;
}

static sac_engine *engine_of_types(const sac_model *of, sac_kv_type type_k, sac_kv_type type_v)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = 2;
    p.n_threads = 1;
    p.type_k = type_k;
    p.type_v = type_v;
    must(sac_engine_create(&e, of, &p, &err), &err);
    return e;
}

static sac_engine *new_engine(const sac_model *of, sac_kv_type type)
{
    return engine_of_types(of, type, type);
}

static sac_docs *open_docs(const char *salt)
{
    sac_docs *docs;
    sac_error err;
    must(sac_docs_open(&docs, dir, &(sac_docs_params){.salt = salt}, &err), &err);
    return docs;
}

static sac_doc_source source_of(const char *name, int t)
{
    return (sac_doc_source){
        .name = name, .head = head, .n_head = N_HEAD, .tok = text[t], .n_tok = N_TEXT};
}

static sac_doc add(sac_docs *docs, sac_engine *e, const char *name, int t, bool was_there)
{
    sac_doc doc;
    sac_error err;
    bool found;
    const sac_doc_source source = source_of(name, t);
    must(sac_doc_add(docs, e, &source, &doc, &found, &err), &err);
    assert_int_equal(found, was_there);
    return doc;
}

static sac_status find(sac_docs *docs, const sac_engine *e, const char *name, sac_doc *out,
                       sac_error *err)
{
    const sac_engine_params p = sac_engine_get_params(e);
    return sac_doc_find(docs, engine_model(e), &p, name, out, err);
}

static void expect(sac_status got, const sac_error *err, sac_status status, const char *words)
{
    if (got != status || !strstr(err->msg, words))
        fail_msg("%s: %s; expected: %s", sac_status_name(got), err->msg, words);
}

static void ask(sac_engine *e, sac_seq s, const int32_t *tok, size_t n, float *logits)
{
    compute_rows(e, s, tok, n, SAC_ROW_PROMPT, logits);
}

/* The logits behind a document that was loaded are those behind the same tokens, computed. */
static void a_document_goes_on_as_if_it_had_just_been_read(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_Q8);
    sac_error err;
    sac_seq seq;
    float logits[TINY_VOCAB], wanted[TINY_VOCAB];
    int32_t copy[32 + 128];
    sac_doc doc = add(docs, e, "one", 0, false), loaded;
    assert_int_equal(doc.n_head, 32);
    assert_int_equal(doc.n_tok, 32 + 128);
    must(sac_doc_load(docs, e, "one", &seq, &loaded, &err), &err);
    assert_string_equal(loaded.id, doc.id);
    const int32_t *tok = sac_seq_tokens(e, seq);
    assert_memory_equal(tok, head, sizeof head);
    assert_memory_equal(tok + 32, text[0], sizeof text[0]);
    assert_int_equal(tok[N_HEAD], '\n');
    assert_int_equal(tok[32 + N_TEXT], '\n');
    memcpy(copy, tok, sizeof copy);
    ask(e, seq, text[1], 3, logits);
    sac_seq_remove(e, seq);
    must(sac_seq_create(e, &seq, &err), &err);
    ask(e, seq, copy, 32 + 128, wanted);
    ask(e, seq, text[1], 3, wanted);
    assert_memory_equal(logits, wanted, sizeof logits);
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

static void a_hit_is_not_computed_again_and_names_may_share(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_error err;
    const sac_doc one = add(docs, e, "one", 0, false), same = add(docs, e, "same", 0, true);
    const uint64_t n_step = sac_engine_get_stats(e).n_step;
    add(docs, e, "one", 0, true);
    assert_int_equal(sac_engine_get_stats(e).n_step, n_step);
    assert_string_equal(one.id, same.id);
    assert_int_equal(count_files(".doc"), 1);
    must(sac_doc_remove(docs, &one, &err), &err);
    assert_int_equal(count_files(".doc"), 1); /* the other name's */
    add(docs, e, "same", 1, false);           /* the name is another text's now */
    assert_int_equal(count_files(".doc"), 1);
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

static void models_types_and_salts_keep_to_themselves(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16), *q8 = new_engine(model, SAC_KV_Q8),
               *other = new_engine(stranger, SAC_KV_F16),
               *mixed = engine_of_types(model, SAC_KV_BF16, SAC_KV_F16);
    sac_error err;
    sac_doc doc, *all;
    size_t n;
    add(docs, e, "one", 0, false);
    expect(find(docs, q8, "one", &doc, &err), &err, SAC_ERR_NOT_FOUND, "keys in q8");
    expect(find(docs, other, "one", &doc, &err), &err, SAC_ERR_NOT_FOUND, "'one'");
    add(docs, q8, "one", 0, false);
    add(docs, other, "one", 0, false);
    add(docs, mixed, "one", 0, false); /* values as in the first, keys not */
    assert_int_equal(count_files(".doc"), 4);
    must(sac_doc_list(docs, &all, &n, &err), &err);
    assert_int_equal(n, 4);
    sac_free(all);
    sac_docs_close(docs);
    docs = open_docs("tenant");
    must(sac_doc_list(docs, &all, &n, &err), &err);
    assert_int_equal(n, 0);
    sac_free(all);
    add(docs, e, "one", 0, false); /* not even the file is shared */
    assert_int_equal(count_files(".doc"), 5);
    sac_engine_free(e);
    sac_engine_free(q8);
    sac_engine_free(other);
    sac_engine_free(mixed);
    sac_docs_close(docs);
    remove_dir();
}

static void cut_short(const char *path)
{
    assert_int_equal(truncate(path, 400), 0);
}

static void what_is_damaged_is_told_and_computed_anew(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_error err;
    sac_seq seq;
    sac_doc doc = add(docs, e, "one", 0, false);
    must(sac_doc_verify(docs, &doc, &err), &err);
    change_documents(flip_bit);
    expect(sac_doc_verify(docs, &doc, &err), &err, SAC_ERR_FORMAT, "checksum");
    expect(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err, SAC_ERR_FORMAT, "document 'one'");
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_used, 0);
    add(docs, e, "one", 0, false);
    must(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err);
    sac_seq_remove(e, seq);
    change_documents(cut_short);
    expect(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err, SAC_ERR_FORMAT, "cut short");
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

static void room_is_made_by_age_and_time_never_of_pins(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_docs_freed freed;
    sac_error err;
    sac_doc doc;
    bool found;
    sac_doc_source source = source_of("pinned", 0);
    source.pin = true;
    must(sac_doc_add(docs, e, &source, &doc, &found, &err), &err);
    source = source_of("old", 1);
    source.seconds = 1;
    must(sac_doc_add(docs, e, &source, &doc, &found, &err), &err);
    add(docs, e, "young", 2, false);
    sleep(1);
    expect(find(docs, e, "old", &doc, &err), &err, SAC_ERR_NOT_FOUND, "time is over");
    must(sac_docs_collect(docs, 0, &freed, &err), &err);
    assert_int_equal(freed.n_expired, 1);
    assert_int_equal(freed.bytes, doc.bytes);
    must(sac_docs_collect(docs, 1, &freed, &err), &err);
    assert_int_equal(freed.n_evicted, 1);
    must(find(docs, e, "pinned", &doc, &err), &err);
    assert_int_equal(count_files(".doc"), 1);
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

static void the_longest_unused_goes_first(void **state)
{
    (void)state;
    make_dir();
    struct docstore *s;
    struct docstore_record r = {.used = 200}, *all;
    struct docstore_draft draft;
    struct docstore_freed freed;
    sac_error err;
    size_t n;
    must(docstore_open(&s, dir, false, &err), &err);
    for (int i = 0; i < 3; i++) {
        snprintf(r.name, sizeof r.name, "doc %d", i);
        r.id[0] = (uint8_t)i;
        r.used = i == 1 ? 100 : 200 + i;
        must(docstore_begin(s, r.id, &draft, &err), &err);
        fputs("0123456789", draft.file);
        must(docstore_commit(s, &draft, &r, &err), &err);
        assert_int_equal(r.bytes, 10);
    }
    must(docstore_collect(s, 20, &freed, &err), &err);
    assert_int_equal(freed.n_evicted, 1);
    must(docstore_list(s, &all, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_string_equal(all[0].name, "doc 0");
    assert_string_equal(all[1].name, "doc 2");
    mem_free(all);
    docstore_close(s);
    remove_dir();
}

/* A process that is killed while it writes leaves a draft, which is its own while it lives. */
static void a_killed_process_leaves_nothing_behind(void **state)
{
    (void)state;
    make_dir();
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody waiting either */
        struct docstore *s;
        struct docstore_draft draft;
        const uint8_t id[DOCSTORE_ID_BYTES] = {7};
        if (docstore_open(&s, dir, false, NULL) == SAC_OK &&
            docstore_begin(s, id, &draft, NULL) == SAC_OK) {
            fputs("half", draft.file);
            fflush(draft.file);
            if (write(ready[1], "x", 1) == 1) pause();
        }
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_docs_freed freed;
    sac_error err;
    must(sac_docs_collect(docs, 0, &freed, &err), &err);
    assert_int_equal(freed.n_stray, 0);
    assert_int_equal(count_files(".part"), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    add(docs, e, "one", 0, false); /* others go on meanwhile */
    must(sac_docs_collect(docs, 0, &freed, &err), &err);
    assert_int_equal(freed.n_stray, 1);
    assert_int_equal(freed.bytes, 4);
    assert_int_equal(count_files(".part"), 0);
    assert_int_equal(count_files(".doc"), 1);
    sac_engine_free(e);
    sac_docs_close(docs);
    close(ready[0]);
    close(ready[1]);
    remove_dir();
}

static bool stop_at_once(void *user, double share)
{
    (void)user;
    (void)share;
    return true;
}

static void bad_input_is_told(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_error err;
    sac_doc doc;
    bool found;
    const struct {
        sac_doc_source source;
        sac_status status;
        const char *words;
    } cases[] = {
        {{.name = "a,b", .tok = text[0], .n_tok = 5}, SAC_ERR_ARG, "comma"},
        {{.name = "", .tok = text[0], .n_tok = 5}, SAC_ERR_ARG, "empty"},
        {{.name = "x", .tok = text[0]}, SAC_ERR_ARG, "'x' is empty"},
        {{.name = "x", .tok = text[0], .n_tok = 300}, SAC_ERR_CONTEXT, "300 tokens"},
        {{.name = "x", .tok = text[0], .n_tok = 100, .head = text[1], .n_head = 99}, SAC_OK, ""},
        {{.name = "x", .tok = text[0], .n_tok = 100, .head = text[0], .n_head = 100, .tags = "t"},
         SAC_OK,
         ""},
        {{.name = "x", .tok = &(int32_t){999}, .n_tok = 1}, SAC_ERR_ARG, "999"},
        {{.name = "y", .tok = text[0], .n_tok = 9, .progress = stop_at_once},
         SAC_ERR_CANCELLED,
         "not stored"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err.msg[0] = 0;
        const sac_status status = sac_doc_add(docs, e, &cases[i].source, &doc, &found, &err);
        expect(status, &err, cases[i].status, cases[i].words);
    }
    assert_int_equal(count_files(".part"), 0);
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_used, 0);
    sac_docs_close(docs);
    must(sac_docs_open(&docs, dir, &(sac_docs_params){.only_read = true}, &err), &err);
    const sac_doc_source source = source_of("z", 2);
    expect(sac_doc_add(docs, e, &source, &doc, &found, &err), &err, SAC_ERR_IO,
           "cannot be written");
    sac_docs_close(docs);
    expect(sac_docs_open(&docs, "/nowhere/at/all", &(sac_docs_params){.only_read = true}, &err),
           &err, SAC_ERR_NOT_FOUND, "/nowhere/at/all");
    sac_engine_free(e);
    remove_dir();
}

/* Two openings of an index in one process would end each other's locks. */
static void a_process_opens_a_folder_once(void **state)
{
    (void)state;
    char other[300];
    make_dir();
    snprintf(other, sizeof other, "%s/../%s/.", dir, strrchr(dir, '/') + 1);
    sac_docs *docs = open_docs(NULL), *again = NULL;
    sac_error err;
    const sac_docs_params cases[] = {{0}, {.only_read = true}, {.salt = "tenant"}};
    for (size_t i = 0; i < 3; i++) {
        expect(sac_docs_open(&again, dir, &cases[i], &err), &err, SAC_ERR_BUSY, "in this process");
        expect(sac_docs_open(&again, other, &cases[i], &err), &err, SAC_ERR_BUSY,
               "in this process");
        assert_null(again);
    }
    sac_doc *list = NULL; /* the refused have taken nothing of it */
    size_t n;
    must(sac_doc_list(docs, &list, &n, &err), &err);
    sac_free(list);
    sac_docs_close(docs);
    for (int i = 0; i < 2; i++) { /* and what is closed may be opened */
        docs = open_docs(NULL);
        sac_docs_close(docs);
    }
    remove_dir();
}

/* One who gets a token with each step while a document is computed. */
struct stream {
    sac_engine *e;
    sac_seq seq;
    uint64_t n_before, n_most, n_step; /* prompt rows; the most between two tokens; tokens */
};

static bool next_token(void *user, double share)
{
    (void)share;
    struct stream *s = user;
    sac_error err;
    must(sac_seq_append(s->e, s->seq, head, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
    must(sac_step(s->e, NULL, NULL, NULL, &err), &err);
    const uint64_t n = sac_engine_get_stats(s->e).reads.n_prompt_tok;
    s->n_most = n - s->n_before > s->n_most ? n - s->n_before : s->n_most;
    s->n_before = n;
    s->n_step++;
    return false;
}

/* Between tokens of others a document has no more rows than a prompt: no steps of its own. */
static void tokens_of_others_keep_their_time(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_error err;
    sac_doc doc;
    bool found;
    must(sac_engine_set_tbt_target(e, 1e-3F, &err), &err); /* no step keeps it */
    struct stream s = {.e = e};
    must(sac_seq_create(e, &s.seq, &err), &err);
    sac_doc_source source = source_of("x", 0);
    source.progress = next_token;
    source.user = &s;
    must(sac_doc_add(docs, e, &source, &doc, &found, &err), &err);
    assert_true(s.n_most > 0 && s.n_most <= 16);
    assert_true(s.n_step >= N_TEXT / 16 && s.n_step <= (N_TEXT + N_HEAD) / 8 * 9);
    sac_docs_close(docs);
    sac_engine_free(e);
    remove_dir();
}

/* In a process of its own, which ends with `run`'s result; a test that hangs ends, too. */
static int in_child(int (*run)(void *arg), void *arg)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        _exit(run(arg));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Loads "one" and asks: 0 if its logits are those of `arg`. */
static int read_one(void *arg)
{
    sac_docs *docs;
    sac_seq seq;
    sac_doc doc;
    float logits[TINY_VOCAB];
    if (sac_docs_open(&docs, dir, &(sac_docs_params){0}, NULL) != SAC_OK) return 1;
    sac_engine *e = new_engine(model, SAC_KV_F16);
    if (sac_doc_load(docs, e, "one", &seq, &doc, NULL) != SAC_OK) return 2;
    sac_seq_remove(e, seq);
    if (sac_doc_load(docs, e, "one", &seq, &doc, NULL) != SAC_OK) return 4; /* and again */
    ask(e, seq, head, N_HEAD, logits);
    sac_engine_free(e);
    sac_docs_close(docs);
    return memcmp(logits, arg, sizeof logits) ? 3 : 0;
}

/* Two processes read a document at the same time, and one of them may remove it: who has loaded it
 * goes on, who comes later is told. */
static void two_processes_read_and_one_removes(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    float logits[TINY_VOCAB], again[TINY_VOCAB];
    sac_seq seq, held;
    sac_doc doc = add(docs, e, "one", 0, false);
    sac_error err;
    must(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err);
    must(sac_doc_load(docs, e, "one", &held, &doc, &err), &err);
    ask(e, seq, head, N_HEAD, logits);
    assert_int_equal(in_child(read_one, logits), 0);
    must(sac_doc_remove(docs, &doc, &err), &err);
    assert_int_equal(count_files(".doc"), 0);
    assert_int_equal(in_child(read_one, logits), 2);
    ask(e, held, head, N_HEAD, again);
    assert_memory_equal(logits, again, sizeof logits);
    sac_seq_remove(e, seq);
    sac_seq_remove(e, held);
    expect(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err, SAC_ERR_NOT_FOUND, "'one'");
    add(docs, e, "one", 0, false); /* and it can be added again */
    assert_int_equal(in_child(read_one, logits), 0);
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

/* The disk is full where a file may have no more bytes than that: what was there stays, what could
 * not be stored leaves nothing. 0 if so. */
static int add_to_full_disk(void *arg)
{
    const struct rlimit most = {20000, 20000};
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    const sac_doc_source source = source_of("two", 1);
    sac_error err = {0};
    sac_doc doc;
    bool found;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most) != 0) return 1;
    if (sac_doc_add(docs, e, &source, &doc, &found, &err) != SAC_ERR_IO) return 2;
    if (!strstr(err.msg, "cannot write") || strchr(err.msg, '\n')) return 3;
    if (sac_engine_get_stats(e).kv_bytes_used != 0) return 4;
    sac_engine_free(e);
    sac_docs_close(docs);
    const int read = read_one(arg);
    return read ? 10 + read : 0;
}

/* As if the documents had been used an hour ago. */
static void make_old(void)
{
    struct docstore *s;
    struct docstore_record *all;
    sac_error err;
    size_t n;
    must(docstore_open(&s, dir, false, &err), &err);
    must(docstore_list(s, &all, &n, &err), &err);
    for (size_t i = 0; i < n; i++) {
        all[i].used -= 3600;
        must(docstore_put(s, &all[i], &err), &err);
    }
    mem_free(all);
    docstore_close(s);
}

/* What comes between a document that has been read and its use, which takes the time. */
static struct between {
    sac_docs *docs;
    const sac_doc *doc;
} * between;

/* In place of the library's, for all of this program. */
time_t time(time_t *out)
{
    struct timespec now;
    struct between *b = between;
    sac_error err;
    between = NULL;
    if (b) must(sac_doc_remove(b->docs, b->doc, &err), &err);
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static void what_is_removed_while_it_is_read_stays_removed(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    sac_error err;
    sac_seq seq;
    sac_doc doc = add(docs, e, "a", 0, false), loaded;
    sac_docs_close(docs); /* a folder is opened once at a time */
    make_old();           /* so that reading it changes the index */
    docs = open_docs(NULL);
    between = &(struct between){docs, &doc};
    must(sac_doc_load(docs, e, "a", &seq, &loaded, &err), &err);
    assert_null(between);
    assert_int_equal(find(docs, e, "a", &doc, &err), SAC_ERR_NOT_FOUND);
    sac_docs_close(docs);
    sac_engine_free(e);
    remove_dir();
}

static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    float logits[TINY_VOCAB];
    sac_seq seq;
    sac_doc doc = add(docs, e, "one", 0, false);
    sac_error err;
    assert_true(doc.bytes > 20000);
    must(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err);
    ask(e, seq, head, N_HEAD, logits);
    sac_seq_remove(e, seq);
    sac_docs_close(docs); /* a folder is opened once at a time */
    make_old();           /* so that reading it would change the index */
    assert_int_equal(in_child(add_to_full_disk, logits), 0);
    assert_int_equal(count_files(".part"), 0);
    assert_int_equal(count_files(".doc"), 1);
    docs = open_docs(NULL);
    expect(sac_doc_load(docs, e, "two", &seq, &doc, &err), &err, SAC_ERR_NOT_FOUND, "'two'");
    add(docs, e, "two", 1, false); /* there is room again */
    sac_engine_free(e);
    sac_docs_close(docs);
    remove_dir();
}

/* A folder that may be read and not written: documents are used, and nothing is added. */
static int use_read_only(void *arg)
{
    const uid_t nobody = 65534;
    sac_docs *docs;
    sac_error err = {0};
    sac_doc doc;
    bool found;
    const sac_doc_source source = source_of("two", 1);
    if (geteuid() == 0 && setuid(nobody) != 0) return 1; /* root may write anything */
    const int read = read_one(arg);
    if (read) return 10 + read;
    if (sac_docs_open(&docs, dir, &(sac_docs_params){0}, &err) != SAC_OK) return 2;
    sac_engine *e = new_engine(model, SAC_KV_F16);
    if (sac_doc_add(docs, e, &source, &doc, &found, &err) != SAC_ERR_IO) return 3;
    if (!strstr(err.msg, "cannot be written") || !strstr(err.msg, dir)) return 4;
    sac_docs_freed freed;
    if (sac_docs_collect(docs, 0, &freed, &err) != SAC_ERR_IO) return 5;
    sac_engine_free(e);
    sac_docs_close(docs);
    return 0;
}

static void a_folder_may_be_for_reading_alone(void **state)
{
    (void)state;
    make_dir();
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    float logits[TINY_VOCAB];
    sac_seq seq;
    sac_doc doc = add(docs, e, "one", 0, false);
    sac_error err;
    must(sac_doc_load(docs, e, "one", &seq, &doc, &err), &err);
    ask(e, seq, head, N_HEAD, logits);
    sac_engine_free(e);
    sac_docs_close(docs);
    assert_int_equal(chmod(dir, 0555), 0);
    assert_int_equal(in_child(use_read_only, logits), 0);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(count_files(".doc"), 1);
    remove_dir();
}

/* Adds documents for ever; killed at any point. */
static int add_for_ever(void *arg)
{
    sac_docs *docs = open_docs(NULL);
    sac_engine *e = new_engine(model, SAC_KV_F16);
    const int ready = *(int *)arg;
    for (uint32_t i = 0;; i++) {
        char name[16];
        int32_t tok[N_TEXT];
        sac_doc doc;
        bool found;
        snprintf(name, sizeof name, "doc %u", i);
        memcpy(tok, text[0], sizeof tok);
        tok[i % N_TEXT] = (int32_t)(i / N_TEXT % TINY_VOCAB);
        const sac_doc_source source = {.name = name, .tok = tok, .n_tok = N_TEXT};
        if (sac_doc_add(docs, e, &source, &doc, &found, NULL) != SAC_OK) return 1;
        if (write(ready, "x", 1) != 1) return 2;
    }
}

static pid_t start_adding(int ready[2])
{
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(add_for_ever(&ready[1]));
    }
    return child;
}

/* Killed at any moment, `add` loses at most the document it was at: all that it has told of are
 * there, whole, and the rest goes with the next collection. */
static void a_kill_loses_the_document_under_way_at_most(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        make_dir();
        int ready[2];
        char byte;
        uint32_t told = 0;
        sac_doc *all;
        size_t n;
        sac_docs_freed freed;
        sac_error err;
        const pid_t child = start_adding(ready);
        close(ready[1]);
        while (told < 1 + round % 3 && read(ready[0], &byte, 1) == 1) told++;
        nanosleep(&(struct timespec){.tv_nsec = 300000L * round}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        while (read(ready[0], &byte, 1) == 1) told++;
        close(ready[0]);
        sac_docs *docs = open_docs(NULL);
        must(sac_doc_list(docs, &all, &n, &err), &err);
        assert_in_range(n, told, told + 1);
        for (size_t i = 0; i < n; i++) must(sac_doc_verify(docs, &all[i], &err), &err);
        must(sac_docs_collect(docs, 0, &freed, &err), &err);
        assert_int_equal(freed.n_lost, 0);
        assert_int_equal(count_files(".doc"), n);
        assert_int_equal(count_files(".part"), 0);
        sac_free(all);
        sac_docs_close(docs);
        remove_dir();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_goes_on_as_if_it_had_just_been_read),
        cmocka_unit_test(a_hit_is_not_computed_again_and_names_may_share),
        cmocka_unit_test(models_types_and_salts_keep_to_themselves),
        cmocka_unit_test(what_is_damaged_is_told_and_computed_anew),
        cmocka_unit_test(room_is_made_by_age_and_time_never_of_pins),
        cmocka_unit_test(the_longest_unused_goes_first),
        cmocka_unit_test(a_killed_process_leaves_nothing_behind),
        cmocka_unit_test(bad_input_is_told),
        cmocka_unit_test(tokens_of_others_keep_their_time),
        cmocka_unit_test(two_processes_read_and_one_removes),
        cmocka_unit_test(what_is_removed_while_it_is_read_stays_removed),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_folder_may_be_for_reading_alone),
        cmocka_unit_test(a_process_opens_a_folder_once),
        cmocka_unit_test(a_kill_loses_the_document_under_way_at_most),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
