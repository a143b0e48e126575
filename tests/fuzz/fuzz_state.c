/* fuzz_state.c: any bytes as a saved sequence. Loading gives a status, with a message unless it is
 * SAC_OK; what was loaded is used as any sequence is: decode rows, a prompt, a cut, saved again.
 *
 * Input: a method's number, then either (bit 7 of that byte) the state itself, or patches of a good
 * one, each a place (16 bits, from the end with bit 15) and a byte, with its checksums made right
 * again: what a checksum keeps out is not worth a fuzzer's time. */
#include "../unit/spec_make.h"
#include "../unit/state_repair.h"
#include "../unit/tiny_model.h"
#include "engine/segment.h"

enum { N_TOK = 100, N_CTX = 160, METHODS_MAX = 64 };

struct subject {
    char spec[SPEC_MAKE_BYTES];
    sac_engine *engine;
    uint8_t *good; /* [n] the state of a sequence of N_TOK tokens */
    size_t n;
};

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool holds)
{
    if (!holds) abort();
}

static void compute(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind)
{
    int32_t tok[N_TOK];
    uint32_t n_row = 1;
    for (size_t i = 0; i < n; i++) tok[i] = (int32_t)(i * 7 % TINY_VOCAB);
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_LAST, NULL) == SAC_OK);
    while (n_row) must(sac_step(e, NULL, NULL, &n_row, NULL) == SAC_OK);
}

/* A page of another sequence, for states that hold segments. */
static void attach_page(sac_engine *e, sac_seq to)
{
    sac_seq from;
    must(sac_seq_create(e, &from, NULL) == SAC_OK);
    compute(e, from, PAGE_TOK, SAC_ROW_PROMPT);
    const struct segment_source page = {.seq = from, .n_tok = PAGE_TOK, .offset = 9};
    must(segment_attach(e, to, &page, NULL) == SAC_OK);
    sac_seq_remove(e, from);
}

static void open_subject(struct subject *s, const sac_model *model, const struct method *m,
                         sac_kv_type type)
{
    const char *const list[] = {s->spec};
    sac_engine_params p = sac_engine_params_default();
    const bool is_prefill = strcmp(m->kind, "prefill") == 0;
    sac_seq seq;
    spec_make_part(s->spec, m, 40);
    p.n_ctx = N_CTX;
    p.n_seq_max = 2;
    p.n_threads = 1;
    p.n_batch = 64;
    p.type_k = p.type_v = type;
    p.sparse_min_ctx = 0;
    p.decode = p.prefill = list;
    p.n_decode = !is_prefill;
    p.n_prefill = is_prefill;
    must(sac_engine_create(&s->engine, model, &p, NULL) == SAC_OK);
    must(sac_seq_create(s->engine, &seq, NULL) == SAC_OK);
    if (m->meets_segments) attach_page(s->engine, seq);
    compute(s->engine, seq, N_TOK - 3 - sac_seq_length(s->engine, seq, NULL), SAC_ROW_PROMPT);
    compute(s->engine, seq, 3, SAC_ROW_DECODE);
    must(sac_seq_to_bytes(s->engine, seq, &s->good, &s->n, NULL) == SAC_OK);
    sac_seq_remove(s->engine, seq);
}

/* An engine for each method that has state, and for one that has none. */
static size_t open_subjects(struct subject *subjects)
{
    const sac_model *model = tiny_open(&(struct tiny){.seed = 3});
    const struct method *m;
    size_t n = 0;
    must(model != NULL);
    for (size_t i = 0; (m = method_at(i)); i++) {
        const bool has_state =
            (m->decode && m->decode->state_bytes) || (m->prefill && m->prefill->state_bytes);
        if (!has_state && strcmp(m->name, "quest") != 0) continue;
        must(n < METHODS_MAX);
        open_subject(&subjects[n], model, m, n % 2 ? SAC_KV_Q8 : SAC_KV_F16);
        n++;
    }
    return n;
}

static void use(sac_engine *e, sac_seq seq)
{
    uint8_t *bytes;
    size_t n;
    const uint32_t n_tok = sac_seq_length(e, seq, NULL);
    const sac_status status = sac_seq_truncate(e, seq, n_tok > 5 ? n_tok - 5 : 0, NULL);
    (void)status; /* the page that it would have to cut may be gone */
    if (sac_seq_length(e, seq, NULL) + 2 + 9 + 1 <= N_CTX) {
        compute(e, seq, 2, SAC_ROW_DECODE);
        compute(e, seq, 9, SAC_ROW_PROMPT);
        compute(e, seq, 1, SAC_ROW_DECODE);
    }
    must(sac_seq_to_bytes(e, seq, &bytes, &n, NULL) == SAC_OK);
    sac_free(bytes);
}

static void load(sac_engine *e, const uint8_t *bytes, size_t n)
{
    const uint64_t n_free = sac_engine_get_stats(e).n_page_free;
    sac_error err = {0};
    sac_seq seq;
    if (sac_seq_from_bytes(e, bytes, n, &seq, &err) == SAC_OK) {
        use(e, seq);
        sac_seq_remove(e, seq);
    } else {
        must(err.msg[0] != 0);
    }
    must(sac_engine_get_stats(e).n_page_free == n_free);
}

static struct subject subjects[METHODS_MAX];
static size_t n_subject;

/* Takes seconds, which are not the first input's. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    n_subject = open_subjects(subjects);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const struct subject *s = &subjects[(data[0] & 127) % n_subject];
    if (data[0] & 128) {
        load(s->engine, data + 1, n - 1);
        return 0;
    }
    uint8_t *bytes = malloc(s->n);
    must(bytes != NULL);
    memcpy(bytes, s->good, s->n);
    for (size_t i = 1; i + 3 <= n; i += 3) {
        const size_t place = data[i] | (size_t)(data[i + 1] & 127) << 8;
        if (place < s->n) bytes[data[i + 1] & 128 ? s->n - 1 - place : place] = data[i + 2];
    }
    state_repair(bytes, s->good, s->n);
    load(s->engine, bytes, s->n);
    free(bytes);
    return 0;
}
