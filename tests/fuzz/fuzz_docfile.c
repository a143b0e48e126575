/* fuzz_docfile.c: any bytes as the file of a stored document. Loading, verifying and comparing give
 * a status, with a message unless it is SAC_OK; a document that was loaded is joined with a good
 * one, by a method that reads its statistics, and asked.
 *
 * Input: tokens that the index tells of, then either (bit 7 of that byte) the file itself, or
 * patches of a good one, each a place (16 bits, from the end with bit 15) and a byte, with the
 * checksums made right again: what a checksum keeps out is not worth a fuzzer's time. */
#include "../unit/state_repair.h"
#include "../unit/tiny_model.h"
#include "engine/doc_stats.h"
#include "engine/docfile.h"

#include <sys/mman.h>
#include <unistd.h>

enum { N_HEAD = 32, N_TEXT = 96, N_ALL = N_HEAD + N_TEXT, N_CTX = 320 };

struct end { /* as docfile.c has it */
    char magic[8];
    uint64_t state_bytes, n_float, check;
};

static sac_model *model;
static sac_engine *engine;
static uint8_t *good; /* [n_good] */
static size_t n_good;
static sac_seq good_seq;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool holds)
{
    if (!holds) abort();
}

static void compute(sac_seq s, size_t n)
{
    int32_t tok[N_ALL];
    uint32_t n_row = 1;
    for (size_t i = 0; i < n; i++) tok[i] = (int32_t)(i * 7 % TINY_VOCAB);
    must(sac_seq_append(engine, s, tok, n, SAC_ROW_PROMPT, SAC_WANT_LAST, NULL) == SAC_OK);
    while (n_row) must(sac_step(engine, NULL, NULL, &n_row, NULL) == SAC_OK);
}

/* The leak check does not look into what the engine maps. */
static void close_engine(void)
{
    sac_engine_free(engine);
    sac_model_free(model);
    free(good);
}

static void open_engine(void)
{
    sac_engine_params p = sac_engine_params_default();
    struct doc_stats_watch watch;
    model = tiny_open(&(struct tiny){.seed = 3});
    must(model != NULL);
    p.n_ctx = N_CTX;
    p.n_seq_max = 4;
    p.n_threads = 1;
    p.n_batch = 64;
    p.compose = true;
    must(sac_engine_create(&engine, model, &p, NULL) == SAC_OK);
    must(sac_seq_create(engine, &good_seq, NULL) == SAC_OK);
    must(doc_stats_begin(&watch, engine, good_seq, N_HEAD, N_TEXT, NULL) == SAC_OK);
    compute(good_seq, N_ALL);
    must(doc_stats_make(&watch, engine, NULL) == SAC_OK);
    doc_stats_end(&watch, engine);
    char *bytes;
    FILE *f = open_memstream(&bytes, &n_good);
    must(f && docfile_write(engine, good_seq, f, "memory", NULL) == SAC_OK && fclose(f) == 0);
    good = (uint8_t *)bytes;
    must(atexit(close_engine) == 0);
}

static void repair(uint8_t *bytes, size_t n)
{
    struct end end;
    XXH3_state_t hash;
    memcpy(&end, good + n_good - sizeof end, sizeof end); /* where the parts really lie */
    const size_t n_state = end.state_bytes, n_notes = n - sizeof end - n_state;
    state_repair(bytes, good, n_state);
    XXH3_64bits_reset(&hash);
    XXH3_64bits_update(&hash, bytes + n_state, n_notes);
    XXH3_64bits_update(&hash, bytes + n - sizeof end, offsetof(struct end, check));
    const uint64_t sum = XXH3_64bits_digest(&hash);
    memcpy(bytes + n - sizeof sum, &sum, sizeof sum);
}

/* Joined, it must be of whole pages behind the same head, or be refused. */
static void use(sac_seq seq)
{
    static const char *const method[] = {"samkv", "cacheblend", "auto"};
    const int32_t question[] = {1, 2, 3};
    for (size_t i = 0; i < sizeof method / sizeof method[0]; i++) {
        const sac_compose_params p = {.method = method[i],
                                      .doc = (const sac_seq[]){good_seq, seq},
                                      .n_doc = 2,
                                      .n_head = N_HEAD,
                                      .question = question,
                                      .n_question = 3};
        sac_error err = {0};
        sac_seq joined;
        if (sac_compose(engine, &p, &joined, NULL, &err) == SAC_OK) {
            compute(joined, 3);
            sac_seq_remove(engine, joined);
        } else {
            must(err.msg[0] != 0);
        }
    }
}

static void load(const uint8_t *bytes, size_t n, uint32_t n_text)
{
    char path[64];
    sac_error err = {0};
    sac_seq seq;
    int32_t tok[N_ALL];
    const uint64_t n_free = sac_engine_get_stats(engine).n_page_free;
    const int fd = memfd_create("document", MFD_CLOEXEC);
    must(fd >= 0 && (n == 0 || write(fd, bytes, n) == (ssize_t)n));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(docfile_verify(path, &err) == SAC_OK || err.msg[0] != 0);
    for (size_t i = 0; i < N_ALL; i++) tok[i] = (int32_t)(i * 7 % TINY_VOCAB);
    (void)docfile_holds(path, tok, N_ALL);
    err.msg[0] = 0;
    if (docfile_load(engine, path, n_text, &seq, &err) == SAC_OK) {
        use(seq);
        sac_seq_remove(engine, seq);
    } else {
        must(err.msg[0] != 0);
    }
    close(fd);
    must(sac_engine_get_stats(engine).n_page_free == n_free);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!engine) open_engine();
    if (n == 0) return 0;
    const uint32_t n_text = (data[0] & 127) * 32u;
    if (data[0] & 128) {
        load(data + 1, n - 1, n_text);
        return 0;
    }
    uint8_t *bytes = malloc(n_good);
    must(bytes != NULL);
    memcpy(bytes, good, n_good);
    for (size_t i = 1; i + 3 <= n; i += 3) {
        const size_t place = data[i] | (size_t)(data[i + 1] & 127) << 8;
        if (place < n_good) bytes[data[i + 1] & 128 ? n_good - 1 - place : place] = data[i + 2];
    }
    repair(bytes, n_good);
    load(bytes, n_good, n_text);
    free(bytes);
    return 0;
}
