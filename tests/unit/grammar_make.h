/* grammar_make.h: grammars and small vocabularies for tests. */
#ifndef SAC_TESTS_GRAMMAR_MAKE_H
#define SAC_TESTS_GRAMMAR_MAKE_H

#include "must.h"

#include "grammar/gbnf.h"
#include "grammar/matcher.h"

#include <string.h>

/* A vocabulary of texts; one that begins with "<|" is a control token, "<|end|>" ends a text. Every
 * byte is a token as well, behind them. */
struct grammar_vocab {
    struct trie *trie;
    struct trie_token tok[1024];
    uint32_t n;
};

static char grammar_bytes[256];

static inline struct grammar_vocab grammar_vocab_make(const char *const *text)
{
    struct grammar_vocab v = {0};
    sac_error err;
    for (; *text; text++) {
        const bool control = strncmp(*text, "<|", 2) == 0;
        v.tok[v.n++] = (struct trie_token){.bytes = *text,
                                           .n = (uint32_t)strlen(*text),
                                           .control = control,
                                           .ends = control && strcmp(*text, "<|end|>") == 0};
    }
    for (int b = 0; b < 256; b++) {
        grammar_bytes[b] = (char)b;
        v.tok[v.n++] = (struct trie_token){.bytes = &grammar_bytes[b], .n = 1};
    }
    must(trie_create(&v.trie, v.tok, v.n, &err), &err);
    return v;
}

struct grammar_case {
    struct automaton *automaton;
    struct matcher *matcher;
};

static inline struct grammar_case grammar_open(const char *gbnf, const struct trie *trie)
{
    struct grammar_case c;
    struct program *program;
    sac_error err;
    must(gbnf_parse(&program, gbnf, strlen(gbnf), &gbnf_limits_given, &err), &err);
    must(automaton_create(&c.automaton, program, trie, &err), &err);
    must(matcher_create(&c.matcher, c.automaton, &err), &err);
    return c;
}

static inline void grammar_close(struct grammar_case *c)
{
    matcher_free(c->matcher);
    automaton_free(c->automaton);
}

/* Whether a text from its beginning to its end is of the grammar. */
static inline bool grammar_matches(struct automaton *m, const char *text, size_t n)
{
    struct matcher *t;
    sac_error err;
    must(matcher_create(&t, m, &err), &err);
    const bool yes = matcher_accept_bytes(t, text, n, &err) == SAC_OK && matcher_can_end(t);
    matcher_free(t);
    return yes;
}

#endif
