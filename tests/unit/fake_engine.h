/* fake_engine.h: an engine whose tokens are known beforehand, for what drives an engine.
 *
 * It keeps token lists and counts pages as the real pool does, so that waiting, giving way and
 * starting again can be driven. Its first prompt token says how a sequence goes on:
 *  - below N_SCRIPT: the bytes of that script, one token each, then END;
 *  - RANDOM: logits that are a hash of all tokens before, so that any difference in what a request
 *    was computed from changes its text. */
#ifndef SAC_TESTS_UNIT_FAKE_ENGINE_H
#define SAC_TESTS_UNIT_FAKE_ENGINE_H

#include "base/workers.h"
#include "engine/engine.h"
#include "engine/reuse_disk.h"
#include "engine/state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum {
    FILL = 256, /* what prompts consist of behind their first token */
    RANDOM,
    BROKEN, /* every logit is NaN */
    END,
    N_VOCAB,
    N_SEQ_MAX = 16,
    N_CTX = 256,
    N_SCRIPT = 4,
};

static const char *const scripts[N_SCRIPT] = {
    "The cat sat. STOP here",
    "caf\xc3\xa9 \xf0\x9f\x90\x88!",
    "broken \xff and cut \xe2\x82",
    "",
};

struct fake_seq {
    bool alive;
    uint32_t n_done, n_all;
    int32_t tok[N_CTX];
    bool decode[N_CTX], want[N_CTX];
    uint32_t n_top;
    sac_reads reads;
    int32_t priority;
    const uint64_t *mask;
};

struct fake {
    sac_engine base; /* only params and requests are used */
    struct fake_seq seqs[N_SEQ_MAX];
    uint32_t n_step;
    sac_status step_status; /* what the next step says */
};

static const sac_model model; /* nobody looks inside */

/* Engines reach the fakes as const, too; there is no const fake. */
static struct fake *fake_of(const sac_engine *e)
{
    return (struct fake *)(uintptr_t)e;
}

struct request_list *engine_requests(sac_engine *e)
{
    return fake_of(e)->base.requests;
}

const sac_model *engine_model(const sac_engine *e)
{
    (void)e;
    return &model;
}

uint64_t engine_now(const sac_engine *e)
{
    return (void)e, clock_us();
}

sac_reads sac_seq_take_reads(sac_engine *e, sac_seq seq)
{
    const sac_reads reads = fake_of(e)->seqs[seq].reads;
    fake_of(e)->seqs[seq].reads = (sac_reads){0};
    return reads;
}

static uint32_t pages_used(const struct fake *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SEQ_MAX; i++) n += f->seqs[i].n_done / PAGE_TOK;
    return n;
}

/* What a sequence is, but for its pages, its reads and how it is set. */
sac_status state_park(sac_engine *e, sac_seq seq, uint8_t **out, size_t *out_n, sac_error *err)
{
    struct fake_seq *s = &fake_of(e)->seqs[seq];
    *out_n = sizeof *s;
    *out = mem_alloc(sizeof *s);
    if (!*out) return error_set(err, SAC_ERR_MEMORY, "no memory to put the sequence aside");
    s->n_all = s->n_done;
    memcpy(*out, s, sizeof *s);
    s->n_done = s->n_all = 0;
    return SAC_OK;
}

sac_status state_unpark(sac_engine *e, sac_seq seq, const uint8_t *bytes, size_t n, sac_error *err)
{
    struct fake_seq *s = &fake_of(e)->seqs[seq], was;
    assert_int_equal(n, sizeof was);
    memcpy(&was, bytes, n);
    assert_int_equal(s->n_all, 0);
    if (pages_used(fake_of(e)) + was.n_done / PAGE_TOK >
        fake_of(e)->base.params.n_kv_tok / PAGE_TOK)
        return error_set(err, SAC_ERR_CONTEXT, "no room for the sequence");
    was.reads = s->reads;
    *s = was;
    return SAC_OK;
}

sac_status engine_check_sparse(const sac_engine *e, uint32_t decode_i, uint32_t prefill_i,
                               const sac_sparse *sparse, sac_error *err)
{
    return (void)e, (void)decode_i, (void)prefill_i, (void)sparse, (void)err, SAC_OK;
}

sac_status sac_seq_use_sparse(sac_engine *e, sac_seq seq, const sac_sparse *sparse, sac_error *err)
{
    return (void)e, (void)seq, (void)sparse, (void)err, SAC_OK;
}

void engine_use_priority(sac_engine *e, sac_seq seq, int32_t priority)
{
    fake_of(e)->seqs[seq].priority = priority;
}

void engine_use_reader(sac_engine *e, sac_seq seq, sac_read_fn fn, void *user)
{
    (void)e;
    (void)seq;
    (void)fn;
    (void)user;
}

/* Nobody waits. */
void admit_join(sac_engine *e, sac_seq id)
{
    (void)e, (void)id;
}

uint64_t admit_leave(sac_engine *e, sac_seq id)
{
    return (void)e, (void)id, 0;
}

bool admit_has_joined(const sac_engine *e, sac_seq id)
{
    return fake_of(e)->seqs[id].alive;
}

/* Nothing is found, and nothing kept. */
void reuse_salt_digest(const sac_engine *e, const char *salt, uint8_t out[SHA256_BYTES])
{
    (void)e;
    (void)salt;
    memset(out, 0, SHA256_BYTES);
}

void reuse_use_salt(sac_engine *e, uint32_t seq_i, const uint8_t digest[SHA256_BYTES])
{
    (void)e;
    (void)seq_i;
    (void)digest;
}

void reuse_use_owner(sac_engine *e, uint32_t seq_i, void *owner)
{
    (void)e;
    (void)seq_i;
    (void)owner;
}

void reuse_disk_want(sac_engine *e, uint32_t seq_i)
{
    (void)e;
    (void)seq_i;
}

sac_reuse_end reuse_end_of(const sac_engine *e, sac_seq seq)
{
    (void)e;
    (void)seq;
    return SAC_REUSE_OFF;
}

void engine_use_mask(sac_engine *e, sac_seq seq, const uint64_t *mask)
{
    fake_of(e)->seqs[seq].mask = mask;
}

sac_status sac_seq_use_top(sac_engine *e, sac_seq seq, uint32_t n_top, sac_error *err)
{
    (void)err;
    fake_of(e)->seqs[seq].n_top = n_top;
    return SAC_OK;
}

const int32_t *sac_seq_tokens(const sac_engine *e, sac_seq seq)
{
    return fake_of(e)->seqs[seq].tok;
}

sac_model_info sac_model_get_info(const sac_model *m)
{
    (void)m;
    return (sac_model_info){.n_vocab = N_VOCAB};
}

const char *sac_token_piece(const sac_model *m, int32_t tok, bool special, size_t *out_bytes)
{
    static char bytes[256];
    (void)m;
    (void)special;
    *out_bytes = tok >= 0 && tok < 256;
    if (!*out_bytes) return "";
    bytes[tok] = (char)tok;
    return bytes + tok;
}

bool sac_token_is_eog(const sac_model *m, int32_t tok)
{
    (void)m;
    return tok == END;
}

sac_engine_params sac_engine_get_params(const sac_engine *e)
{
    return fake_of(e)->base.params;
}

sac_engine_stats sac_engine_get_stats(const sac_engine *e)
{
    const uint64_t n_page = fake_of(e)->base.params.n_kv_tok / PAGE_TOK;
    return (sac_engine_stats){.n_page = n_page, .n_page_free = n_page - pages_used(fake_of(e))};
}

sac_status sac_seq_create(sac_engine *e, sac_seq *out, sac_error *err)
{
    struct fake *f = fake_of(e);
    for (uint32_t i = 0; i < f->base.params.n_seq_max; i++)
        if (!f->seqs[i].alive) {
            f->seqs[i] = (struct fake_seq){.alive = true};
            *out = i;
            return SAC_OK;
        }
    return error_set(err, SAC_ERR_CONTEXT, "no sequence is free");
}

void sac_seq_remove(sac_engine *e, sac_seq seq)
{
    assert_true(fake_of(e)->seqs[seq].alive);
    fake_of(e)->seqs[seq] = (struct fake_seq){0};
}

sac_status sac_seq_use_decode(sac_engine *e, sac_seq seq, uint32_t decode_i, sac_error *err)
{
    return (void)e, (void)seq, (void)decode_i, (void)err, SAC_OK;
}

sac_status sac_seq_use_prefill(sac_engine *e, sac_seq seq, uint32_t prefill_i, sac_error *err)
{
    return (void)e, (void)seq, (void)prefill_i, (void)err, SAC_OK;
}

sac_status sac_seq_truncate(sac_engine *e, sac_seq seq, uint32_t n_tok, sac_error *err)
{
    struct fake_seq *s = &fake_of(e)->seqs[seq];
    if (n_tok > s->n_all) return error_set(err, SAC_ERR_ARG, "too long");
    s->n_all = n_tok;
    if (n_tok < s->n_done) s->n_done = n_tok;
    return SAC_OK;
}

const char *engine_why_broken(const sac_engine *e, sac_seq seq)
{
    return (void)e, (void)seq, NULL;
}

uint32_t sac_seq_length(const sac_engine *e, sac_seq seq, uint32_t *out_pending)
{
    const struct fake_seq *s = &fake_of(e)->seqs[seq];
    if (out_pending) *out_pending = s->n_all - s->n_done;
    return s->n_done;
}

sac_status engine_append(sac_engine *e, sac_seq seq, const int32_t *tok, size_t n,
                         sac_row_kind kind, sac_want want, sac_error *err)
{
    struct fake_seq *s = &fake_of(e)->seqs[seq];
    if (!s->alive) return error_set(err, SAC_ERR_NOT_FOUND, "there is no sequence %u", seq);
    if (n > fake_of(e)->base.params.n_ctx - s->n_all)
        return error_set(err, SAC_ERR_CONTEXT, "full");
    for (size_t i = 0; i < n; i++) {
        s->tok[s->n_all] = tok[i];
        s->decode[s->n_all] = kind == SAC_ROW_DECODE;
        s->want[s->n_all++] = want == SAC_WANT_LAST && i + 1 == n;
    }
    return SAC_OK;
}

/* A row's kind is part of the hash: a real engine computes the two kinds by different kernels. */
static void fake_logits(const struct fake_seq *s, uint32_t pos, float *logits)
{
    uint32_t hash = 2166136261u, n_said = pos;
    for (uint32_t i = 0; i <= pos; i++)
        hash = (hash ^ (uint32_t)s->tok[i] ^ (s->decode[i] ? 1u << 20 : 0)) * 16777619u;
    if (s->tok[0] == RANDOM) {
        for (uint32_t i = 0; i < N_VOCAB; i++) {
            hash = hash * 1664525u + 1013904223u;
            logits[i] = i >= 'a' && i <= 'z' ? (float)(hash >> 20) * 1e-3f : -20;
        }
        return;
    }
    for (uint32_t i = 1; i <= pos && s->tok[i] == FILL; i++) n_said = pos - i;
    const bool broken = s->tok[0] == BROKEN;
    for (uint32_t i = 0; i < N_VOCAB; i++) logits[i] = broken ? NAN : -10;
    if (broken) return;
    const char *script = scripts[s->tok[0]];
    logits[n_said < strlen(script) ? (uint8_t)script[n_said] : END] = 10;
    logits['?'] = 5; /* the second choice */
}

static bool compute_row(struct fake *f, uint32_t seq_i, sac_row_fn fn, void *user)
{
    struct fake_seq *s = &f->seqs[seq_i];
    const uint32_t n_page = (uint32_t)(f->base.params.n_kv_tok / PAGE_TOK), pos = s->n_done;
    if ((pos + 1) % PAGE_TOK == 0 && pages_used(f) == n_page) return false;
    s->n_done++;
    *(s->decode[pos] ? &s->reads.n_decode_tok : &s->reads.n_prompt_tok) += 1;
    if (!s->want[pos]) return true;
    float logits[N_VOCAB];
    fake_logits(s, pos, logits);
    fn(user, &(sac_row){.seq = seq_i, .pos = pos, .tok = s->tok[pos], .logits = logits});
    return true;
}

sac_status engine_step(sac_engine *e, sac_row_fn fn, void *user, uint32_t *out_n, sac_error *err)
{
    struct fake *f = fake_of(e);
    uint32_t n_row = 0;
    bool starved = false;
    (void)out_n;
    f->n_step++;
    if (f->step_status != SAC_OK) return error_set(err, f->step_status, "the step failed");
    for (uint32_t i = 0; i < N_SEQ_MAX; i++) {
        struct fake_seq *s = &f->seqs[i];
        const bool decode = s->decode[s->n_done];
        while (s->alive && s->n_done < s->n_all && s->decode[s->n_done] == decode &&
               n_row < f->base.params.n_batch) {
            if (!compute_row(f, i, fn, user)) {
                starved = true;
                break;
            }
            n_row++;
            if (decode) break; /* one narrow row of a sequence per step */
        }
    }
    return n_row == 0 && starved ? error_set(err, SAC_ERR_CONTEXT, "the KV pool is full") : SAC_OK;
}

#endif
