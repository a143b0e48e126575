/* tokenizer_bpe.c: byte-level BPE: words from the pre-tokeniser, one symbol per byte, merges by
 * rank.
 *
 * Symbols are ids of the vocabulary's texts, so a merge is one lookup of a pair of numbers. The
 * merges of a careless file may produce texts that are not tokens; these get ids after the
 * vocabulary and are finally encoded as the tokens of their bytes.
 *
 * Patterns and vocabularies assume valid UTF-8. Invalid bytes are repaired first, as in llama.cpp
 * (the peer): a byte that cannot be decoded becomes U+FFFD, an overlong form its shortest one.
 * Surrogates stay as they are in the words; PCRE2, which must not see them, gets a private-use
 * character of the same length and of no class that a pattern names. A byte for which the
 * vocabulary has no token produces none, also as in the peer. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "model/tokenizer_kind.h"
#include "model/utf8.h"

#include <assert.h>
#include <string.h>

static uint32_t pair_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    return (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & b->pair_mask;
}

static uint32_t find_pair(const void *ctx, const struct merge_symbol *left,
                          const struct merge_symbol *right, uint32_t *out_id)
{
    const struct bpe *const b = ctx;
    if (left->id == STRTAB_NONE || right->id == STRTAB_NONE) return MERGE_NONE;
    for (uint32_t i = pair_slot(b, left->id, right->id);; i = (i + 1) & b->pair_mask) {
        const struct bpe_pair *const p = &b->pair[i];
        if (p->left == STRTAB_NONE) return MERGE_NONE;
        if (p->left != left->id || p->right != right->id) continue;
        *out_id = p->id;
        return p->rank;
    }
}

/* The first of equal merges counts. */
static void insert_pair(struct bpe *b, struct bpe_pair pair)
{
    uint32_t i = pair_slot(b, pair.left, pair.right);
    for (; b->pair[i].left != STRTAB_NONE; i = (i + 1) & b->pair_mask) {
        if (b->pair[i].left == pair.left && b->pair[i].right == pair.right) return;
    }
    b->pair[i] = pair;
}

/* The id of a text, which is added if it has none. */
static bool intern(struct strtab *t, const char *s, size_t n, uint32_t *out)
{
    *out = strtab_find(t, s, n);
    if (*out != STRTAB_NONE) return true;
    *out = t->n;
    return strtab_add(t, s, n, true);
}

/* Reads merge `rank`, two texts separated by a blank; without a blank it is no merge. */
static bool add_merge(struct bpe *b, struct vocab *v, struct gguf_str s, uint32_t rank,
                      struct strbuf *joined)
{
    const char *const blank = s.n > 1 ? memchr(s.s + 1, ' ', s.n - 1) : NULL;
    if (!blank) return true;
    const size_t n_left = (size_t)(blank - s.s), n_right = s.n - n_left - 1;
    if (n_right == 0) return true;
    struct bpe_pair pair = {.rank = rank};
    strbuf_reset(joined);
    strbuf_add(joined, s.s, n_left);
    strbuf_add(joined, blank + 1, n_right);
    const bool ok = !joined->failed && intern(&v->text, s.s, n_left, &pair.left) &&
                    intern(&v->text, blank + 1, n_right, &pair.right) &&
                    intern(&v->text, joined->data, joined->n, &pair.id);
    if (ok) insert_pair(b, pair);
    return ok;
}

static sac_status read_merges(struct bpe *b, struct vocab *v, const struct gguf *g, sac_error *err)
{
    static const char name[] = "tokenizer.ggml.merges";
    const struct gguf_key *const key = gguf_key_find(g, name);
    if (!key) return error_set(err, SAC_ERR_NOT_FOUND, "%s: no key %s", gguf_path(g), name);
    if (!key->is_array || key->type != GGUF_STRING || key->n > INT32_MAX / 2)
        return error_set(err, SAC_ERR_FORMAT, "%s: %s is no list of merges", gguf_path(g), name);
    uint64_t n_slot = 16;
    while (n_slot < 2 * key->n) n_slot *= 2;
    b->pair = mem_alloc(n_slot * sizeof *b->pair);
    if (!b->pair) return error_set(err, SAC_ERR_MEMORY, "%s: no memory for merges", gguf_path(g));
    memset(b->pair, 0xff, n_slot * sizeof *b->pair);
    b->pair_mask = (uint32_t)(n_slot - 1);

    struct strbuf joined = {0};
    sac_status status = SAC_OK;
    size_t at = 0;
    for (uint32_t i = 0; status == SAC_OK && i < key->n; i++) {
        struct gguf_str s;
        status = gguf_key_next_str(key, &at, &s, err);
        if (status == SAC_OK && !add_merge(b, v, s, i, &joined))
            status = error_set(err, SAC_ERR_MEMORY, "%s: no memory for merges", gguf_path(g));
    }
    strbuf_deinit(&joined);
    return status;
}

sac_status tokenizer_bpe_init(struct bpe *b, struct vocab *v, const struct gguf *g,
                              struct pretok *pretok, sac_error *err)
{
    b->vocab = v;
    b->pretok = pretok;
    TRY(read_merges(b, v, g, err));
    for (uint32_t byte = 0; byte < 256; byte++) {
        char c[4];
        const size_t n = utf8_put(c, vocab_byte_char((uint8_t)byte));
        b->byte_id[byte] = strtab_find(&v->text, c, n);
    }
    return SAC_OK;
}

void tokenizer_bpe_deinit(struct bpe *b)
{
    pretok_destroy(b->pretok);
    mem_free(b->pair);
    *b = (struct bpe){0};
}

/* ---- Encoding ---- */

struct run {
    const struct bpe *bpe;
    struct encode *encode;
    const char *text; /* the current part, repaired */
    struct pretok_run *pretok;
    char *repaired, *subject; /* owned, each with room for the whole text; NULL until needed */
    size_t n_repaired;
    struct strbuf spelled; /* a word in the vocabulary's alphabet */
};

/* The token that equals a whole word, for models that do not merge such words. */
static int32_t find_word(struct run *r, const char *word, size_t n)
{
    const struct vocab *const v = r->bpe->vocab;
    strbuf_reset(&r->spelled);
    for (size_t i = 0; i < n; i++) {
        const uint32_t id = r->bpe->byte_id[(uint8_t)word[i]];
        if (id == STRTAB_NONE) return VOCAB_NO_TOKEN;
        size_t n_char;
        const char *const c = strtab_get(&v->text, id, &n_char);
        strbuf_add(&r->spelled, c, n_char);
    }
    r->encode->failed |= r->spelled.failed;
    return r->spelled.failed ? VOCAB_NO_TOKEN : vocab_find(v, r->spelled.data, r->spelled.n);
}

static void put_symbol(struct run *r, const char *word, const struct merge_symbol *s)
{
    if (s->id < r->bpe->vocab->n_tok) {
        encode_put(r->encode, (int32_t)s->id);
        return;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t id = r->bpe->byte_id[(uint8_t)word[s->at + i]];
        if (id < r->bpe->vocab->n_tok) encode_put(r->encode, (int32_t)id);
    }
}

static void merge_word(struct run *r, const char *word, size_t n)
{
    struct merge *const m = &r->encode->merge;
    merge_clear(m);
    for (uint32_t i = 0; i < n; i++)
        merge_add(m,
                  (struct merge_symbol){.at = i, .n = 1, .id = r->bpe->byte_id[(uint8_t)word[i]]});
    merge_run(m);
    r->encode->failed |= m->failed;
    if (m->failed) return;
    for (size_t i = 0; i < m->n; i++) put_symbol(r, word, &m->symbol[i]);
}

static void encode_word(void *user, size_t at, size_t n)
{
    struct run *const r = user;
    const char *const word = r->text + at;
    uint64_t hash;
    if (encode_repeat(r->encode, word, n, &hash)) return;
    const size_t id_at = r->encode->n;
    const int32_t whole =
        pretok_get_traits(r->bpe->pretok).ignore_merges ? find_word(r, word, n) : VOCAB_NO_TOKEN;
    if (whole != VOCAB_NO_TOKEN) {
        encode_put(r->encode, whole);
    } else {
        merge_word(r, word, n);
    }
    encode_remember(r->encode, word, n, hash, id_at);
}

/* Appends a repaired part after earlier ones; returns its new length. */
static size_t repair(struct run *r, const char *s, size_t n)
{
    char *const out = r->repaired + r->n_repaired, *const subject = r->subject + r->n_repaired;
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t step = utf8_get_loose(s + i, n - i, &cp);
        const bool lost = step == 0 || cp > 0x10ffff; /* four bytes reach up to 0x1fffff */
        const bool surrogate = !lost && cp >= 0xd800 && cp < 0xe000;
        utf8_put(subject + done, lost ? 0xfffd : surrogate ? 0xe000 : cp);
        done += utf8_put(out + done, lost ? 0xfffd : cp);
        i += lost ? 1 : step;
    }
    r->n_repaired += done;
    return done;
}

static sac_status encode_part(struct run *r, const char *s, size_t n, size_t n_all, sac_error *err)
{
    if (utf8_valid_prefix(s, n) == n) {
        r->text = s;
        return pretok_split(r->pretok, s, n, encode_word, r, err);
    }
    if (!r->repaired) {
        /* A lost byte becomes three; utf8_put writes up to four at a place. */
        r->repaired = mem_alloc(3 * n_all + 4);
        r->subject = mem_alloc(3 * n_all + 4);
    }
    if (!r->repaired || !r->subject)
        return error_set(err, SAC_ERR_MEMORY, "no memory to repair invalid UTF-8");
    const size_t at = r->n_repaired;
    const size_t n_repaired = repair(r, s, n);
    assert(utf8_valid_prefix(r->subject + at, n_repaired) == n_repaired);
    r->text = r->repaired + at;
    return pretok_split(r->pretok, r->subject + at, n_repaired, encode_word, r, err);
}

sac_status tokenizer_bpe_encode(const struct bpe *b, struct encode *e, const char *text,
                                const struct special_parts *parts, sac_error *err)
{
    struct run r = {.bpe = b, .encode = e};
    e->merge.pair = find_pair;
    e->merge.ctx = b;
    size_t n_all = 0;
    for (size_t i = 0; i < parts->n; i++) n_all += parts->part[i].n;
    sac_status status = pretok_run_create(&r.pretok, b->pretok, err);
    for (size_t i = 0; status == SAC_OK && i < parts->n; i++) {
        const struct special_part p = parts->part[i];
        if (p.tok == VOCAB_NO_TOKEN) {
            status = encode_part(&r, text + p.at, p.n, n_all, err);
        } else {
            encode_put(e, p.tok);
        }
    }
    pretok_run_destroy(r.pretok);
    mem_free(r.repaired);
    mem_free(r.subject);
    strbuf_deinit(&r.spelled);
    return status;
}
