/* fuzz_gbnf.c: a grammar of an unknown user, and a text that runs through it as far as it goes.
 *
 * Up to the first zero byte the input is the grammar, behind it the text. Where the text stands
 * then, the mask must say of each token what its bytes say. */
#include "grammar/gbnf.h"
#include "grammar/matcher.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const words[] = {
    "a",  "ab", "abc", "\"",   "\":", "{",    "}",    "[",        "]",        ",",     " ",    "  ",
    "\n", "1",  "12",  "true", "\\",  "\xc3", "\xa4", "\xc3\xa4", "\xe2\x82", "\xacx", "<|t|>"};

static struct trie *make_trie(void)
{
    struct trie_token tok[64];
    struct trie *t = NULL;
    const uint32_t n = sizeof words / sizeof words[0];
    for (uint32_t i = 0; i < n; i++)
        tok[i] = (struct trie_token){
            .bytes = words[i], .n = (uint32_t)strlen(words[i]), .control = i == n - 1};
    tok[n] = (struct trie_token){.bytes = "", .ends = true};
    if (trie_create(&t, tok, n + 1, NULL) != SAC_OK) __builtin_trap();
    return t;
}

static void check_mask(struct matcher *t)
{
    const uint64_t *mask;
    if (matcher_mask(t, &mask, NULL) != SAC_OK) return;
    const uint64_t allowed = mask[0];
    for (uint32_t tok = 0; tok < t->automaton->trie->n_tok; tok++) {
        const uint32_t was = t->config;
        const uint64_t n_forgotten = t->automaton->n_forgotten;
        const sac_status status = matcher_accept(t, (int32_t)tok, NULL);
        if (n_forgotten != t->automaton->n_forgotten || status == SAC_ERR_CONTEXT) return;
        if ((status == SAC_OK) != (allowed >> tok & 1)) __builtin_trap();
        t->config = was;
        t->over = false;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *const zero = memchr(data, 0, n);
    const size_t n_gbnf = zero ? (size_t)(zero - data) : n;
    struct program *p = NULL;
    struct automaton *m = NULL;
    struct matcher *t = NULL;
    sac_error err = {0};
    if (gbnf_parse(&p, (const char *)data, n_gbnf, &gbnf_limits_given, &err) != SAC_OK) {
        if (err.msg[0] == '\0') __builtin_trap();
        return 0;
    }
    struct trie *const trie = make_trie();
    if (automaton_create(&m, p, trie, &err) == SAC_OK && matcher_create(&t, m, &err) == SAC_OK) {
        for (size_t i = n_gbnf + 1; i < n; i++)
            if (matcher_accept_bytes(t, (const char *)data + i, 1, NULL) != SAC_OK) break;
        check_mask(t);
    }
    matcher_free(t);
    automaton_free(m);
    trie_free(trie);
    return 0;
}
