/* test_cache.c: prompts on disk: what an engine has read another one does not read again, with the
 * same bits; nobody else's is found, nothing damaged is used, and no trouble of the disk is more
 * than a line. */
#include "engine/engine.h"
#include "must.h"
#include "spec_make.h"
#include "tiny_model.h"

#include "saccade_cache.h"
#include "saccade_tier.h"

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

enum { N_TEXT = 2048, N_PROMPT = 40 * PAGE_TOK + 9, N_STORED = 40 * PAGE_TOK, N_ENTRY = 3 };

static sac_model *model, *stranger, *windowed;
static int32_t text[N_TEXT];
static char dir[64], said[4096];

static int open_models(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 5});
    stranger = tiny_open(&(struct tiny){.seed = 6});
    windowed = tiny_open(&(struct tiny){.seed = 7, .n_layer = 7, .n_kv_head = 1, .window = 70});
    for (int i = 0; i < N_TEXT; i++) text[i] = (i * 37 + i / 9 * 5 + i / 700) % TINY_VOCAB;
    return model && stranger && windowed ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(stranger);
    sac_model_free(windowed);
    return 0;
}

/* ---- The folder ---- */

/* Fails if the folder before it was not removed. */
static int make_dir(void **state)
{
    (void)state;
    if (dir[0]) return -1;
    const bool has_memory = access("/dev/shm", W_OK) == 0; /* a disk takes its time to sync */
    snprintf(dir, sizeof dir, "%s/saccade_cache_XXXXXX", has_memory ? "/dev/shm" : P_tmpdir);
    return mkdtemp(dir) ? 0 : -1;
}

static void each_file(const char *end, void (*fn)(const char *path, void *user), void *user)
{
    char path[512];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (*e->d_name == '.' || strlen(e->d_name) < strlen(end) ||
            strcmp(e->d_name + strlen(e->d_name) - strlen(end), end) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        fn(path, user);
    }
    closedir(d);
}

static void remove_one(const char *path, void *user)
{
    (void)user;
    unlink(path);
}

static int remove_dir(void **state)
{
    (void)state;
    chmod(dir, 0700);
    each_file("", remove_one, NULL);
    if (rmdir(dir) != 0) return -1;
    dir[0] = '\0';
    return 0;
}

struct files {
    uint32_t n;
    uint64_t bytes;
};

static void count_one(const char *path, void *user)
{
    struct files *f = user;
    struct stat st;
    f->n++;
    if (stat(path, &st) == 0) f->bytes += (uint64_t)st.st_size;
}

static struct files files(const char *end)
{
    struct files f = {0};
    each_file(end, count_one, &f);
    return f;
}

/* ---- Engines ---- */

struct setting {
    const sac_model *model;
    const char *decode;
    sac_kv_type type;
    uint32_t n_batch, n_thread;
    const struct sac_tier_params *tier;
    uint64_t bytes_max;
    bool off;
};

static void listen(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

static sac_status try_cache(sac_engine *e, uint64_t bytes_max, sac_error *err)
{
    const sac_cache_params p = {
        .dir = dir, .bytes_max = bytes_max ? bytes_max : 1u << 30, .say = listen};
    *said = 0;
    return sac_cache_open(e, &p, err);
}

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_TEXT;
    p.n_seq_max = 3;
    p.n_threads = s->n_thread ? s->n_thread : 1;
    if (s->n_batch) p.n_batch = s->n_batch;
    p.type_k = p.type_v = s->type;
    p.decode = &s->decode;
    p.n_decode = s->decode != NULL;
    p.sparse_min_ctx = 0;
    p.prefix_cache = true;
    p.tier = s->tier;
    must(sac_engine_create(&e, s->model ? s->model : model, &p, &err), &err);
    if (!s->off) must(try_cache(e, s->bytes_max, &err), &err);
    return e;
}

struct log {
    sac_event done;
    int32_t tok[6];
    float logprob[6];
    uint32_t n;
};

static bool on_event(void *user, const sac_event *event)
{
    struct log *log = user;
    if (event->kind == SAC_EVENT_TOKEN && log->n < 6) {
        log->logprob[log->n] = event->logprob;
        log->tok[log->n++] = event->tok;
    }
    if (event->kind == SAC_EVENT_DONE) log->done = *event;
    return false;
}

static void submit(sac_engine *e, struct log *log, uint32_t n, const char *salt)
{
    sac_request r = sac_request_default();
    sac_error err;
    uint64_t id;
    *log = (struct log){.n = 0};
    r.prompt = text;
    r.n_prompt = n;
    r.max_tokens = 6;
    r.ignore_eos = true;
    r.sampling.temp = 0;
    r.n_probs = 1;
    r.cache_salt = salt;
    r.on_event = on_event;
    r.user = log;
    must(sac_submit(e, &r, &id, &err), &err);
}

static void run(sac_engine *e)
{
    sac_error err;
    uint32_t n = 1;
    while (n) must(sac_run(e, &n, &err), &err);
}

/* The text's first n tokens, answered; what was read is on disk afterwards. */
static struct log ask(sac_engine *e, uint32_t n, const char *salt)
{
    struct log log;
    submit(e, &log, n, salt);
    run(e);
    sac_cache_flush(e, 10000);
    return log;
}

static struct log ask_anew(const struct setting *s, uint32_t n, const char *salt)
{
    sac_engine *e = new_engine(s);
    const struct log log = ask(e, n, salt);
    sac_engine_free(e);
    return log;
}

static void same_answer(const struct log *a, const struct log *b)
{
    assert_int_equal(a->n, 6);
    assert_memory_equal(a->tok, b->tok, sizeof a->tok);
    assert_memory_equal(a->logprob, b->logprob, sizeof a->logprob);
}

/* ---- Tests ---- */

static void a_restart_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    char swap[96];
    snprintf(swap, sizeof swap, "%s/swap", dir);
    const struct sac_tier_params tier = {
        .file = swap, .file_bytes = 64u << 20, .fast_bytes = 4u << 20};
    const struct setting settings[] = {
        {.model = model},
        {.model = model, .type = SAC_KV_Q8, .decode = "quest:budget=256", .n_thread = 2},
        {.model = model, .type = SAC_KV_BF16, .decode = "lfps", .n_batch = 96},
        {.model = model, .decode = "quest:budget=256"},
        {.model = windowed, .decode = "quest:budget=256"},
        {.model = model, .type = SAC_KV_Q8, .tier = &tier},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        struct setting off = settings[i];
        off.off = true;
        const char salt[] = {(char)('a' + i), 0};
        const struct log want = ask_anew(&off, N_PROMPT, salt);
        const struct log first = ask_anew(&settings[i], N_PROMPT, salt);
        assert_int_equal(first.done.timings.n_reused, 0);
        sac_engine *e = new_engine(&settings[i]);
        const struct log second = ask(e, N_PROMPT, salt);
        same_answer(&first, &want);
        same_answer(&second, &want);
        assert_true(second.done.timings.n_disk >= N_STORED - 3 * PAGE_TOK);
        assert_int_equal(second.done.timings.n_disk, second.done.timings.n_reused);
        assert_int_equal(sac_cache_get_stats(e).n_written, 0);
        const struct log third = ask(e, N_PROMPT, salt); /* from memory now */
        same_answer(&third, &want);
        assert_int_equal(third.done.timings.n_disk, 0);
        assert_int_equal(third.done.timings.n_reused, second.done.timings.n_reused);
        sac_engine_free(e);
    }
}

static void turns_add_entries_and_write_nothing_twice(void **state)
{
    (void)state;
    const struct setting s = {0};
    sac_engine *e = new_engine(&s);
    ask(e, 20 * PAGE_TOK + 3, "a");
    assert_int_equal(sac_cache_get_stats(e).n_written, 2); /* 16 pages, and 4 */
    ask(e, 20 * PAGE_TOK + 3, "a");
    assert_int_equal(sac_cache_get_stats(e).n_written, 2);
    sac_engine_free(e);
    e = new_engine(&s);
    struct log log = ask(e, 25 * PAGE_TOK + 3, "a");
    assert_int_equal(log.done.timings.n_disk, 20 * PAGE_TOK);
    assert_int_equal(log.done.timings.reuse_end, SAC_REUSE_DIFFERS);
    assert_int_equal(sac_cache_get_stats(e).n_written, 1); /* the 5 behind them */
    sac_engine_free(e);
    assert_int_equal(files(".doc").n, 3);
    log = ask_anew(&s, 60 * PAGE_TOK, "a");
    assert_int_equal(log.done.timings.n_disk, 25 * PAGE_TOK);
    /* A shorter text ends inside an entry: of that it takes a part. */
    log = ask_anew(&s, 10 * PAGE_TOK, "a");
    assert_int_equal(log.done.timings.n_disk, 0);
    log = ask_anew(&s, 16 * PAGE_TOK, "a");
    assert_int_equal(log.done.timings.n_disk, 15 * PAGE_TOK);
}

static void short_prompts_are_not_stored(void **state)
{
    (void)state;
    ask_anew(&(struct setting){0}, 8 * PAGE_TOK, "a"); /* 7 whole pages and a part */
    assert_int_equal(files(".doc").n, 0);
    ask_anew(&(struct setting){0}, 8 * PAGE_TOK + 1, "a");
    assert_int_equal(files(".doc").n, 1);
}

static void salts_models_and_types_keep_to_themselves(void **state)
{
    (void)state;
    ask_anew(&(struct setting){0}, N_PROMPT, "a");
    struct log log = ask_anew(&(struct setting){0}, N_PROMPT, "b");
    assert_int_equal(log.done.timings.n_disk, 0);
    assert_int_equal(log.done.timings.reuse_end, SAC_REUSE_NEW);
    assert_int_equal(files(".doc").n, 2 * N_ENTRY);
    log = ask_anew(&(struct setting){.model = stranger}, N_PROMPT, "a");
    assert_int_equal(log.done.timings.n_disk, 0);
    assert_non_null(strstr(said, "6 of the 6 entries"));
    assert_non_null(strstr(said, "another model, KV type, processor or version"));
    log = ask_anew(&(struct setting){.type = SAC_KV_Q8}, N_PROMPT, "a");
    assert_int_equal(log.done.timings.n_disk, 0);
    log = ask_anew(&(struct setting){0}, N_PROMPT, "a");
    assert_int_equal(log.done.timings.n_disk, N_STORED);
}

/* Changes a byte so far behind the file's begin, or cuts it there. */
struct harm {
    long at;
    bool cut;
};

static void harm_one(const char *path, void *user)
{
    const struct harm *h = user;
    if (h->cut) {
        assert_int_equal(truncate(path, h->at), 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, h->at, SEEK_SET);
    const int c = fgetc(f);
    fseek(f, h->at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void what_is_damaged_is_told_and_computed(void **state)
{
    (void)state;
    const struct setting s = {0};
    const struct harm harms[] = {{3, false},   {40, false},   {60, false}, {90, false},
                                 {100, false}, {9000, false}, {50, true},  {0, true}};
    const struct log want = ask_anew(&s, N_PROMPT, "a");
    for (size_t i = 0; i < sizeof harms / sizeof harms[0]; i++) {
        each_file(".doc", harm_one, (void *)&harms[i]);
        sac_engine *e = new_engine(&s);
        *said = 0;
        const struct log got = ask(e, N_PROMPT, "a");
        same_answer(&got, &want);
        assert_int_equal(got.done.timings.n_disk, 0);
        /* An empty file is taken for none when the folder is opened. */
        const bool is_told = !harms[i].cut || harms[i].at;
        assert_int_equal(sac_cache_get_stats(e).n_damaged, is_told ? N_ENTRY : 0);
        assert_true(!is_told == !strstr(said, "is damaged and not used, it is removed: "));
        sac_engine_free(e);
        const struct log again = ask_anew(&s, N_PROMPT, "a"); /* it was stored anew */
        assert_int_equal(again.done.timings.n_disk, N_STORED);
    }
}

static void room_is_made_by_age_ends_of_texts_first(void **state)
{
    (void)state;
    ask_anew(&(struct setting){0}, N_PROMPT, "a");
    const uint64_t bytes_max = files(".doc").bytes * 2;
    const char *const salt[] = {"b", "c", "d"};
    for (int i = 0; i < 3; i++) {
        ask_anew(&(struct setting){.bytes_max = bytes_max}, N_PROMPT, salt[i]);
        assert_true(files(".doc").bytes <= bytes_max);
    }
    struct log log = ask_anew(&(struct setting){0}, N_PROMPT, "d");
    assert_int_equal(log.done.timings.n_disk, N_STORED);
    sac_engine *e;
    sac_error err;
    e = new_engine(&(struct setting){.off = true});
    assert_int_equal(try_cache(e, 1000, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "1000 bytes hold no entry of 16 pages"));
    sac_engine_free(e);
}

/* While answers are written, a step brings one entry of other prompts and computes none of their
 * rows. */
static void decode_rows_do_not_wait_for_the_disk(void **state)
{
    (void)state;
    ask_anew(&(struct setting){0}, N_PROMPT, "a");
    sac_engine *e = new_engine(&(struct setting){0});
    struct log one, two;
    sac_error err;
    uint32_t n;
    submit(e, &one, 5, "z");
    while (one.n == 0) must(sac_run(e, &n, &err), &err); /* decode rows follow */
    submit(e, &two, N_PROMPT, "a");
    const uint64_t before = sac_engine_get_stats(e).reads.n_prompt_tok;
    for (uint32_t i = 1; i < N_ENTRY; i++) {
        must(sac_run(e, &n, &err), &err);
        assert_int_equal(sac_engine_get_stats(e).reads.n_disk_tok, i * 16 * PAGE_TOK);
        assert_int_equal(sac_engine_get_stats(e).reads.n_prompt_tok, before);
        assert_int_equal(one.n, 1 + i);
    }
    run(e);
    assert_int_equal(two.done.timings.n_disk, N_STORED);
    sac_engine_free(e);
}

static void a_full_disk_is_one_line(void **state)
{
    (void)state;
    struct rlimit old, low;
    const char *cut;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    sac_engine *e = new_engine(&(struct setting){0});
    const struct log want = ask(e, N_PROMPT, "a");
    low = (struct rlimit){50000, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    struct log got = ask(e, N_PROMPT, "b");
    same_answer(&got, &want);
    got = ask(e, N_PROMPT, "c");
    same_answer(&got, &want);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    cut = strstr(said, "is not kept on disk until that works again\n");
    assert_non_null(cut);
    assert_null(strstr(cut + 1, "is not kept"));
    assert_int_equal(sac_cache_get_stats(e).n_failed, 2);
    assert_int_equal(files(".part").n, 0);
    ask(e, N_PROMPT, "b");
    assert_non_null(strstr(said, "the disk takes entries again\n"));
    assert_int_equal(files(".doc").n, 2 * N_ENTRY);
    sac_engine_free(e);
    got = ask_anew(&(struct setting){0}, N_PROMPT, "b");
    assert_int_equal(got.done.timings.n_disk, N_STORED);
}

static int read_only(void)
{
    if (geteuid() == 0 && (chown(dir, 65534, 65534) != 0 || setuid(65534) != 0)) return 1;
    sac_engine *e = new_engine(&(struct setting){0});
    if (!strstr(said, "cannot be written: it is only read")) return 2;
    const struct log log = ask(e, N_TEXT - 10, "a");
    if (log.done.timings.n_disk != N_STORED) return 3;
    if (sac_cache_get_stats(e).writable || sac_cache_get_stats(e).n_failed) return 4;
    sac_engine_free(e);
    return 0;
}

static void own_one(const char *path, void *user)
{
    (void)user;
    if (geteuid() == 0) assert_int_equal(chown(path, 65534, 65534), 0);
    assert_int_equal(chmod(path, 0444), 0);
}

static void a_folder_may_be_for_reading_alone(void **state)
{
    (void)state;
    int code;
    ask_anew(&(struct setting){0}, N_PROMPT, "a");
    each_file("", own_one, NULL);
    assert_int_equal(chmod(dir, 0555), 0);
    const pid_t child = fork();
    if (child == 0) _exit(read_only());
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
}

/* Asks one text after another for ever; killed at any point. */
static void ask_for_ever(int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sac_engine *e = new_engine(&(struct setting){0});
    for (uint32_t i = 0;; i++) {
        char salt[16];
        snprintf(salt, sizeof salt, "%u", i);
        ask(e, N_PROMPT, salt);
        if (write(ready, "x", 1) != 1) _exit(2);
    }
}

static void a_kill_loses_the_entry_under_way_at_most(void **state)
{
    for (uint32_t round = 0; round < 4; round++) {
        int ready[2];
        char byte;
        uint32_t told = 0;
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) ask_for_ever(ready[1]);
        close(ready[1]);
        while (told < 1 && read(ready[0], &byte, 1) == 1) told++;
        nanosleep(&(struct timespec){.tv_nsec = 3000000L * round}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        while (read(ready[0], &byte, 1) == 1) told++;
        close(ready[0]);
        sac_engine *e = new_engine(&(struct setting){0});
        assert_int_equal(files(".part").n, 0);
        assert_in_range(files(".doc").n, told * N_ENTRY, (told + 1) * N_ENTRY);
        for (uint32_t i = 0; i <= told; i++) {
            char salt[16];
            snprintf(salt, sizeof salt, "%u", i);
            const struct log log = ask(e, N_PROMPT, salt);
            if (i < told) assert_int_equal(log.done.timings.n_disk, N_STORED);
        }
        assert_int_equal(sac_cache_get_stats(e).n_damaged, 0);
        sac_engine_free(e);
        assert_int_equal(remove_dir(state), 0);
        assert_int_equal(make_dir(state), 0);
    }
}

static void bad_calls_are_told(void **state)
{
    (void)state;
    sac_error err;
    sac_engine *e = new_engine(&(struct setting){0});
    assert_int_equal(try_cache(e, 0, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "has a cache on disk already"));
    sac_engine_free(e);
    e = new_engine(&(struct setting){.off = true});
    assert_int_equal(sac_cache_open(e, &(sac_cache_params){.dir = ""}, &err), SAC_ERR_ARG);
    assert_int_equal(
        sac_cache_open(e, &(sac_cache_params){.dir = "/proc/none", .bytes_max = 1u << 30}, &err),
        SAC_ERR_IO);
    assert_false(sac_cache_store(e));
    assert_false(sac_cache_get_stats(e).is_open);
    sac_engine_free(e);
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 64;
    must(sac_engine_create(&e, model, &p, &err), &err);
    assert_int_equal(try_cache(e, 0, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "needs an engine with prefix_cache"));
    sac_engine_free(e);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_goes_on_with_the_same_bits),
        cmocka_unit_test(turns_add_entries_and_write_nothing_twice),
        cmocka_unit_test(short_prompts_are_not_stored),
        cmocka_unit_test(salts_models_and_types_keep_to_themselves),
        cmocka_unit_test(what_is_damaged_is_told_and_computed),
        cmocka_unit_test(room_is_made_by_age_ends_of_texts_first),
        cmocka_unit_test(decode_rows_do_not_wait_for_the_disk),
        cmocka_unit_test(a_full_disk_is_one_line),
        cmocka_unit_test(a_folder_may_be_for_reading_alone),
        cmocka_unit_test(a_kill_loses_the_entry_under_way_at_most),
        cmocka_unit_test(bad_calls_are_told),
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i].setup_func = make_dir;
        tests[i].teardown_func = remove_dir;
    }
    return cmocka_run_group_tests(tests, open_models, free_models);
}
