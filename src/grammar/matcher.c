/* matcher.c: see the header. A call that finds a table full makes the automaton discard what living
 * texts do not need, and tries again once. */
#include "grammar/matcher.h"

#include "base/mem.h"
#include "grammar/mask.h"

#include <assert.h>

static void begin_call(struct automaton *m)
{
    m->effort = 0;
    m->full = m->wide = false;
}

/* Whether a call that gave up should be repeated after compacting the tables. */
static bool try_again(struct automaton *m, int attempt)
{
    if (!m->full || attempt > 0) return false;
    automaton_forget(m);
    begin_call(m);
    return true;
}

sac_status matcher_create(struct matcher **out, struct automaton *automaton, sac_error *err)
{
    struct matcher *const t = mem_calloc(1, sizeof *t);
    uint32_t config;
    if (!t) return error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    t->automaton = automaton;
    begin_call(automaton);
    const uint32_t entry = automaton->program->rule[automaton->program->root].entry;
    for (int attempt = 0;; attempt++) {
        config = automaton_enter(automaton, entry, AUTOMATON_END);
        if (config != AUTOMATON_UNKNOWN) break;
        if (try_again(automaton, attempt)) continue;
        mem_free(t);
        return automaton_refuse(automaton, err);
    }
    t->config = config;
    t->next = automaton->matchers;
    if (t->next) t->next->before = t;
    automaton->matchers = t;
    *out = t;
    return SAC_OK;
}

void matcher_free(struct matcher *t)
{
    if (!t) return;
    if (t->next) t->next->before = t->before;
    if (t->before)
        t->before->next = t->next;
    else
        t->automaton->matchers = t->next;
    mem_free(t);
}

sac_status matcher_mask(struct matcher *t, const uint64_t **out_mask, sac_error *err)
{
    struct automaton *const m = t->automaton;
    begin_call(m);
    for (int attempt = 0;; attempt++) {
        const uint64_t *const mask = mask_of(m, t->over ? AUTOMATON_DEAD : t->config);
        if (mask) {
            *out_mask = mask;
            return SAC_OK;
        }
        if (!try_again(m, attempt)) return automaton_refuse(m, err);
    }
}

/* The config after `n` bytes; AUTOMATON_UNKNOWN as in automaton_step. */
static uint32_t run_bytes(const struct matcher *t, const char *bytes, size_t n, size_t *out_done)
{
    uint32_t config = t->config;
    size_t i = 0;
    while (i < n && config != AUTOMATON_DEAD) {
        const uint32_t next = automaton_next(t->automaton, config, (uint8_t)bytes[i]);
        if (next == AUTOMATON_UNKNOWN) return next;
        if (next != AUTOMATON_DEAD) i++;
        config = next;
    }
    *out_done = i;
    return config;
}

sac_status matcher_accept_bytes(struct matcher *t, const char *bytes, size_t n, sac_error *err)
{
    struct automaton *const m = t->automaton;
    size_t done = 0;
    if (t->over) return error_set(err, SAC_ERR_ARG, "the text has ended");
    begin_call(m);
    for (int attempt = 0;; attempt++) {
        const uint32_t config = run_bytes(t, bytes, n, &done);
        if (config == AUTOMATON_DEAD)
            return error_set(err, SAC_ERR_ARG, "the grammar does not allow byte %zu, 0x%02x", done,
                             (uint8_t)bytes[done]);
        if (config != AUTOMATON_UNKNOWN) {
            t->config = config;
            return SAC_OK;
        }
        if (!try_again(m, attempt)) return automaton_refuse(m, err);
    }
}

sac_status matcher_accept(struct matcher *t, int32_t tok, sac_error *err)
{
    const struct trie *const trie = t->automaton->trie;
    uint32_t n;
    if (tok < 0 || (uint32_t)tok >= trie->n_tok)
        return error_set(err, SAC_ERR_ARG, "token %d: the vocabulary has %u", tok, trie->n_tok);
    if (trie_ends(trie, tok)) {
        if (t->over || !matcher_can_end(t))
            return error_set(err, SAC_ERR_ARG, "the grammar does not allow the text to end here");
        t->over = true;
        return SAC_OK;
    }
    const char *const bytes = trie_bytes(trie, tok, &n);
    if (n == 0)
        return error_set(err, SAC_ERR_ARG, "token %d has no text, a grammar cannot allow it", tok);
    return matcher_accept_bytes(t, bytes, n, err);
}

bool matcher_can_end(const struct matcher *t)
{
    return !t->over && automaton_holds(t->automaton, t->config, AUTOMATON_END);
}
