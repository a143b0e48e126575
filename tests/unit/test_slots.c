/* test_slots.c: which slot an answer gets, what of a restored text it goes on from, whose texts are
 * saved and restored, and that pages of restored texts are for answers first. What the engine would
 * do between slots_begin and slots_end is done here. */
#include "base/mem.h"
#include "engine/engine.h"
#include "must.h"
#include "serve/dialects.h"
#include "serve/slots.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "store_dir.h"

enum { N_CTX = 256, N_BATCH = 64, N_SLOT = 3, N_SEQ = 2 * N_SLOT + 1, N_SAID = 8, N_TEXT = 100 };

struct bench {
    sac_engine *engine;
    struct slots *slots;
};

static void open_slots(struct bench *b, sac_model *model, uint64_t n_kv_tok)
{
    sac_engine_params p = sac_engine_params_default();
    sac_error err;
    p.n_ctx = N_CTX;
    p.n_batch = N_BATCH;
    p.n_seq_max = N_SEQ;
    p.n_threads = 1;
    p.n_kv_tok = n_kv_tok;
    make_dir();
    must(sac_engine_create(&b->engine, model, &p, &err), &err);
    must(slots_open(&b->slots, b->engine, &(struct slots_options){dir, N_SLOT}, &err), &err);
}

static void close_slots(struct bench *b)
{
    slots_close(b->slots);
    sac_engine_free(b->engine);
    remove_dir();
}

/* ---- Answers ---- */

struct want {
    int32_t text;
    size_t n; /* tokens of the prompt; 0: N_TEXT */
    uint64_t key;
    const char *salt;
    int slot; /* named: its number and one; 0: none */
    uint32_t n_choice;
};

static int32_t token(int32_t text, size_t i)
{
    return (int32_t)(((size_t)text * 11 + i * 37) % TINY_VOCAB);
}

static struct answer *begin(struct bench *b, const struct want *want)
{
    struct api_request request = {.n = want->n_choice ? want->n_choice : 1, .n_prompt = 1};
    const size_t n = want->n ? want->n : N_TEXT;
    int32_t *tok = mem_alloc(n * sizeof *tok);
    for (size_t i = 0; i < n; i++) tok[i] = token(want->text, i);
    request.prompt[0] = (struct api_request_prompt){.tok = tok, .n = n};
    request.cache_salt = want->salt ? mem_strdup(want->salt) : NULL;
    request.names_slot = want->slot > 0;
    request.slot = want->slot > 0 ? (uint32_t)want->slot - 1 : 0;
    struct answer *a = answer_create(&request);
    assert_non_null(a);
    a->key = want->key;
    slots_begin(b->slots, a);
    return a;
}

/* The prompt behind what the slot had, and an answer of n tokens. */
static void say(struct bench *b, struct answer *a, size_t n)
{
    struct answer_choice *c = &a->choice[0];
    const struct api_request_prompt *prompt = &a->request.prompt[0];
    sac_error err;
    uint32_t n_row = 1;
    if (c->seq != SAC_SEQ_NONE)
        must(sac_seq_append(b->engine, c->seq, prompt->tok + c->n_held, prompt->n - c->n_held,
                            SAC_ROW_PROMPT, SAC_WANT_NONE, &err),
             &err);
    while (n_row > 0) must(sac_step(b->engine, NULL, NULL, &n_row, &err), &err);
    for (size_t i = 0; i < n; i++) {
        const int32_t tok = token(7, i);
        strbuf_add(&c->said, (const char *)&tok, sizeof tok);
    }
}

static void end(struct bench *b, struct answer *a)
{
    slots_end(b->slots, &a->choice[0]);
    assert_true(a->choice[0].seq == SAC_SEQ_NONE);
    answer_free(a);
}

/* Returns the slot. */
static int32_t answer(struct bench *b, const struct want *want)
{
    struct answer *a = begin(b, want);
    const int32_t slot = a->slot;
    say(b, a, N_SAID);
    end(b, a);
    return slot;
}

/* How much of its prompt an answer would find; nothing changes but when its slot was used. */
static size_t held(struct bench *b, const struct want *want)
{
    struct answer *a = begin(b, want);
    const size_t n = a->choice[0].n_held;
    if (n > 0) {
        assert_int_equal(sac_seq_length(b->engine, a->choice[0].seq, NULL), n);
        assert_memory_equal(sac_seq_tokens(b->engine, a->choice[0].seq), a->request.prompt[0].tok,
                            n * sizeof(int32_t));
    }
    end(b, a);
    return n;
}

/* ---- Work ---- */

static bool go_on(void *user, double share)
{
    (void)user;
    assert_true(share >= 0 && share <= 1);
    return false;
}

static bool give_up(void *user, double share)
{
    (void)user, (void)share;
    return true;
}

struct done {
    sac_status status;
    sac_error err;
    int n; /* n_saved and so on */
};

static struct done work_while(struct bench *b, enum api_request_work what, uint32_t slot,
                              const struct want *whose, sac_progress_fn progress)
{
    static const char *const count[] = {"n_saved", "n_restored", "n_erased"};
    char file[] = "a file", salt[32];
    struct api_request request = {.work = what, .slot = slot};
    struct strbuf out = {0};
    struct done done = {.n = -1};
    if (what != API_REQUEST_SLOT_ERASE) request.slot_file = file;
    snprintf(salt, sizeof salt, "%s", whose->salt ? whose->salt : "");
    request.cache_salt = salt;
    done.status = slots_work(b->slots, &request, whose->key,
                             (struct doc_library_wait){progress, NULL}, &out, &done.err);
    if (done.status == SAC_OK) {
        cJSON *o = cJSON_Parse(out.data);
        const cJSON *n = cJSON_GetObjectItem(o, count[what - API_REQUEST_SLOT_SAVE]);
        assert_true(cJSON_IsNumber(n));
        done.n = n->valueint;
        assert_int_equal(cJSON_GetObjectItem(o, "id_slot")->valueint, slot);
        cJSON_Delete(o);
    }
    strbuf_deinit(&out);
    return done;
}

static struct done work(struct bench *b, enum api_request_work what, uint32_t slot,
                        const struct want *whose)
{
    return work_while(b, what, slot, whose, go_on);
}

/* That of nobody in particular; returns the count. */
static int work_well(struct bench *b, enum api_request_work what, uint32_t slot)
{
    const struct done done = work(b, what, slot, &(struct want){0});
    must(done.status, &done.err);
    return done.n;
}

static void refused(const struct done *done, sac_status status)
{
    assert_int_equal(done->status, status);
    if (strstr(done->err.msg, dir)) fail_msg("it tells where: %s", done->err.msg);
}

/* ---- Which slot ---- */

static void the_longest_unused_is_taken(void **state)
{
    struct bench b;
    open_slots(&b, *state, 0);
    for (int i = 0; i < 2 * N_SLOT; i++)
        assert_int_equal(answer(&b, &(struct want){.text = i}), i % N_SLOT);
    assert_int_equal(answer(&b, &(struct want){.slot = 1}), 0);
    assert_int_equal(answer(&b, &(struct want){.text = 1}), 1);
    assert_int_equal(answer(&b, &(struct want){.text = 1}), 2);
    close_slots(&b);
}

static void one_that_answers_is_taken_last(void **state)
{
    struct bench b;
    struct answer *a[N_SLOT];
    open_slots(&b, *state, 0);
    for (int i = 0; i < N_SLOT; i++) a[i] = begin(&b, &(struct want){.text = i});
    end(&b, a[1]);
    assert_int_equal(answer(&b, &(struct want){.text = 5}), 1);
    assert_int_equal(answer(&b, &(struct want){.text = 6}), 1);
    end(&b, a[0]);
    end(&b, a[2]);
    close_slots(&b);
}

/* Slot 0 holds a text that was answered, saved and restored. */
static void open_restored(struct bench *b, sac_model *model)
{
    open_slots(b, model, 0);
    answer(b, &(struct want){.slot = 1});
    work_well(b, API_REQUEST_SLOT_SAVE, 0);
    work_well(b, API_REQUEST_SLOT_RESTORE, 0);
}

static void a_restored_text_stays_while_there_are_others(void **state)
{
    struct bench b;
    open_restored(&b, *state);
    for (int slot = 1; slot < N_SLOT; slot++)
        answer(&b, &(struct want){.text = 5, .slot = slot + 1});
    assert_int_equal(answer(&b, &(struct want){.text = 6}), 1);
    close_slots(&b);
}

static void several_answers_have_no_slot(void **state)
{
    struct bench b;
    open_slots(&b, *state, 0);
    struct answer *a = begin(&b, &(struct want){.n_choice = 2});
    assert_int_equal(a->slot, -1);
    end(&b, a);
    const struct done done = work(&b, API_REQUEST_SLOT_SAVE, 0, &(struct want){0});
    refused(&done, SAC_ERR_ARG);
    close_slots(&b);
}

/* ---- What is restored ---- */

static void an_answer_goes_on_from_whole_pages(void **state)
{
    struct bench b;
    open_slots(&b, *state, 0);
    answer(&b, &(struct want){.slot = 1});
    assert_int_equal(held(&b, &(struct want){.n = 200, .slot = 1}), 0);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_SAVE, 0), N_TEXT + N_SAID);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_RESTORE, 2), N_TEXT + N_SAID);
    assert_int_equal(held(&b, &(struct want){.n = 200}), 96);
    assert_int_equal(held(&b, &(struct want){.n = 97}), 96);
    assert_int_equal(held(&b, &(struct want){.n = 96}), 64); /* one token has to be computed */
    assert_int_equal(held(&b, &(struct want){.n = 32}), 0);
    assert_int_equal(held(&b, &(struct want){.text = 1, .n = 200}), 0);
    assert_int_equal(held(&b, &(struct want){.n = 200, .slot = 1}), 0);
    /* Whose text it is. */
    assert_int_equal(held(&b, &(struct want){.n = 200, .key = 7}), 0);
    assert_int_equal(held(&b, &(struct want){.n = 200, .salt = "salt"}), 0);
    close_slots(&b);
}

static void a_slot_goes_on_with_its_answers(void **state)
{
    struct bench b;
    open_restored(&b, *state);
    assert_int_equal(answer(&b, &(struct want){.n = 161}), 0);
    assert_int_equal(held(&b, &(struct want){.n = 250}), 160);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_SAVE, 0), 161 + N_SAID);
    /* The last token of a prompt is no row of a prompt: its page is not kept. */
    assert_int_equal(answer(&b, &(struct want){.n = 192}), 0);
    assert_int_equal(held(&b, &(struct want){.n = 250}), 160);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_ERASE, 0), 192 + N_SAID);
    assert_int_equal(held(&b, &(struct want){.n = 250}), 0);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_ERASE, 0), 0);
    close_slots(&b);
}

static void what_fails_costs_nothing(void **state)
{
    struct bench b;
    open_slots(&b, *state, 0);
    answer(&b, &(struct want){.slot = 1});
    struct answer *a = begin(&b, &(struct want){.text = 1, .slot = 1});
    end(&b, a); /* said nothing */
    a = begin(&b, &(struct want){.text = 1, .slot = 1});
    say(&b, a, N_SAID);
    a->choice[0].said.failed = true;
    end(&b, a);
    struct done done = work(&b, API_REQUEST_SLOT_RESTORE, 0, &(struct want){0});
    refused(&done, SAC_ERR_NOT_FOUND);
    assert_non_null(strstr(done.err.msg, "'a file'"));
    done = work_while(&b, API_REQUEST_SLOT_SAVE, 0, &(struct want){0}, give_up);
    refused(&done, SAC_ERR_CANCELLED);
    const sac_engine_stats stats = sac_engine_get_stats(b.engine);
    assert_int_equal(stats.n_page_free, stats.n_page);
    done = work(&b, API_REQUEST_SLOT_RESTORE, 0, &(struct want){0});
    refused(&done, SAC_ERR_NOT_FOUND);
    assert_int_equal(work_well(&b, API_REQUEST_SLOT_SAVE, 0), N_TEXT + N_SAID);
    close_slots(&b);
}

/* ---- Whose it is ---- */

static void texts_are_of_their_key_and_salt(void **state)
{
    static const struct want others[] = {{0}, {.key = 8}, {.key = 7}, {.key = 7, .salt = "other"}};
    const struct want own = {.key = 7, .salt = "salt", .slot = 1};
    struct bench b;
    char folder[128], path[192];
    open_slots(&b, *state, 0);
    answer(&b, &own);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct done done = work(&b, API_REQUEST_SLOT_SAVE, 0, &others[i]);
        refused(&done, SAC_ERR_ARG);
        done = work(&b, API_REQUEST_SLOT_ERASE, 0, &others[i]);
        refused(&done, SAC_ERR_ARG);
    }
    struct done done = work(&b, API_REQUEST_SLOT_SAVE, 0, &own);
    must(done.status, &done.err);
    /* Files are of their key: they have a folder of its own. */
    for (uint64_t key = 0; key < 9; key += 8) {
        done = work(&b, API_REQUEST_SLOT_RESTORE, 0, &(struct want){.key = key});
        refused(&done, SAC_ERR_NOT_FOUND);
    }
    done = work(&b, API_REQUEST_SLOT_RESTORE, 0, &own);
    must(done.status, &done.err);
    for (int key = 7; key < 9; key++) {
        snprintf(folder, sizeof folder, "%s/%016x", dir, key);
        snprintf(path, sizeof path, "%s/a file", folder);
        assert_int_equal(unlink(path) == 0, key == 7);
        assert_int_equal(rmdir(folder), 0);
    }
    close_slots(&b);
}

/* ---- Pages ---- */

/* Texts of three whole pages in a pool of 14, where a step of all sequences may need nine. */
static void restored_texts_give_way_the_oldest_first(void **state)
{
    struct bench b;
    open_slots(&b, *state, 14 * SAC_PAGE_TOK);
    answer(&b, &(struct want){.slot = 1});
    work_well(&b, API_REQUEST_SLOT_SAVE, 0);
    work_well(&b, API_REQUEST_SLOT_ERASE, 0);
    work_well(&b, API_REQUEST_SLOT_RESTORE, 1);
    slots_make_room(b.slots);
    assert_int_equal(held(&b, &(struct want){.slot = 2}), 96);
    work_well(&b, API_REQUEST_SLOT_RESTORE, 0);
    slots_make_room(b.slots);
    assert_int_equal(held(&b, &(struct want){.slot = 2}), 0);
    assert_int_equal(held(&b, &(struct want){.slot = 1}), 96);
    close_slots(&b);
}

/* There are pages for one of them. */
static void a_text_is_restored_in_place_of_others(void **state)
{
    struct bench b;
    open_slots(&b, *state, N_CTX);
    answer(&b, &(struct want){.n = 200, .slot = 1});
    work_well(&b, API_REQUEST_SLOT_SAVE, 0);
    for (uint32_t slot = 0; slot < N_SLOT; slot++)
        assert_int_equal(work_well(&b, API_REQUEST_SLOT_RESTORE, slot), 200 + N_SAID);
    assert_int_equal(held(&b, &(struct want){.n = 200, .slot = 1}), 0);
    assert_int_equal(held(&b, &(struct want){.n = 200, .slot = N_SLOT}), 192);
    close_slots(&b);
}

/* ---- Requests ---- */

static enum api_error_kind read_of(const char *id, const char *action, const char *file,
                                   struct api_request *a)
{
    const struct api_request_rules rules = {.n_slot = N_SLOT};
    struct api_error error = {0};
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "id_slot", id);
    cJSON_AddStringToObject(body, "action", action);
    if (file) cJSON_AddStringToObject(body, "filename", file);
    *a = (struct api_request){0};
    const sac_status status = slot_action_dialect.read(a, body, &rules, &error);
    assert_int_equal(status == SAC_OK, error.kind == API_ERROR_NONE);
    cJSON_Delete(body);
    return error.kind;
}

static bool takes(const char *id, const char *action, const char *file)
{
    struct api_request a;
    const enum api_error_kind kind = read_of(id, action, file, &a);
    api_request_deinit(&a);
    assert_true(kind == API_ERROR_NONE || kind == API_ERROR_REQUEST);
    return kind == API_ERROR_NONE;
}

static void actions_are_read(void **state)
{
    static const char *const name[] = {"save", "restore", "erase"};
    struct api_request a;
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(read_of("2", name[i], "file", &a), API_ERROR_NONE);
        assert_int_equal(a.work, API_REQUEST_SLOT_SAVE + i);
        assert_int_equal(a.slot, 2);
        if (i < 2)
            assert_string_equal(a.slot_file, "file");
        else
            assert_null(a.slot_file);
        api_request_deinit(&a);
        assert_int_equal(takes("0", name[i], NULL), i == 2);
        assert_false(takes("3", name[i], "file"));
        assert_false(takes("-1", name[i], "file"));
        assert_false(takes("", name[i], "file"));
        assert_false(takes("4294967296", name[i], "file"));
    }
    assert_false(takes("0", "load", "file"));
}

static void files_are_plain_names(void **state)
{
    static const char *const bad[] = {"",     ".",  "..",   "../x", "a/b",   "/x",
                                      "a\\b", ".x", "a\nb", "\x7f", "x.part"};
    char name[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(takes("0", "save", bad[i]));
    for (size_t n = 199; n < 203; n++) {
        memset(name, 'n', n);
        name[n] = 0;
        assert_int_equal(takes("0", "restore", name), n <= 200);
    }
    assert_true(takes("0", "save", "x.y z..part2"));
    assert_true(takes("0", "save", "\xc3\xa9"));
    assert_true(takes("0", "save", "part"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_unused_is_taken),
        cmocka_unit_test(one_that_answers_is_taken_last),
        cmocka_unit_test(a_restored_text_stays_while_there_are_others),
        cmocka_unit_test(several_answers_have_no_slot),
        cmocka_unit_test(an_answer_goes_on_from_whole_pages),
        cmocka_unit_test(a_slot_goes_on_with_its_answers),
        cmocka_unit_test(what_fails_costs_nothing),
        cmocka_unit_test(texts_are_of_their_key_and_salt),
        cmocka_unit_test(restored_texts_give_way_the_oldest_first),
        cmocka_unit_test(a_text_is_restored_in_place_of_others),
        cmocka_unit_test(actions_are_read),
        cmocka_unit_test(files_are_plain_names),
    };
    return cmocka_run_group_tests_name("test_slots", tests, tiny_setup, tiny_teardown);
}
