/* fuzz_schema.c: a JSON schema of an unknown user. What becomes GBNF is compiled, unless its rules
 * are left-recursive or cannot end, and a text begins in it. */
#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void begin_text(struct program *p)
{
    const struct trie_token tok[] = {{.bytes = "{\"", .n = 2}, {.bytes = "", .ends = true}};
    struct trie *trie = NULL;
    struct automaton *m = NULL;
    struct matcher *t = NULL;
    const uint64_t *mask;
    if (trie_create(&trie, tok, 2, NULL) != SAC_OK) __builtin_trap();
    if (automaton_create(&m, p, trie, NULL) != SAC_OK) __builtin_trap();
    if (matcher_create(&t, m, NULL) == SAC_OK && matcher_mask(t, &mask, NULL) == SAC_OK &&
        (mask[0] & 1) != (matcher_accept(t, 0, NULL) == SAC_OK))
        __builtin_trap();
    matcher_free(t);
    automaton_free(m);
    trie_free(trie);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct strbuf gbnf = {0};
    struct program *p = NULL;
    sac_error err = {0};
    const sac_status status = schema_gbnf(&gbnf, "root", (const char *)data, n, &err);
    if (status != SAC_OK && err.msg[0] == '\0') __builtin_trap();
    if (status == SAC_OK) {
        const sac_status made = gbnf_parse(&p, gbnf.data, gbnf.n, &gbnf_limits_made, &err);
        /* Only what is true of the schema: it begins with itself, cannot end or is too large. */
        if (made == SAC_ERR_NOT_FOUND || (made == SAC_ERR_FORMAT && !strstr(err.msg, "never end")))
            __builtin_trap();
        if (made == SAC_OK) begin_text(p);
    }
    strbuf_deinit(&gbnf);
    return 0;
}
