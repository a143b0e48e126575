/* constraint.c: see the header. A grammar that fails in the middle of an answer returns an empty
 * mask, which ends the request with an error; the reason is kept here. */
#include "grammar/constraint.h"

#include "base/mem.h"
#include "grammar/gbnf.h"
#include "grammar/schema.h"

#include <string.h>

struct constraint {
    struct matcher *matcher; /* owned */
    uint64_t *mask;          /* owned, [automaton->mask_words] */
    sac_error why;
};

sac_status constraint_compile(struct program **out, enum constraint_kind kind, const char *text,
                              size_t n, sac_error *err)
{
    struct strbuf gbnf = {0};
    if (kind == CONSTRAINT_GBNF) return gbnf_parse(out, text, n, &gbnf_limits_given, err);
    sac_status status = schema_gbnf(&gbnf, "root", text, n, err);
    if (status == SAC_OK) {
        status = gbnf_parse(out, gbnf.data, gbnf.n, &gbnf_limits_made, err);
        if (status != SAC_OK) status = error_prefix(err, status, "schema");
    }
    strbuf_deinit(&gbnf);
    return status;
}

sac_status constraint_create(struct constraint **out, struct automaton *automaton, sac_error *err)
{
    struct constraint *const c = mem_calloc(1, sizeof *c);
    sac_status status = SAC_ERR_MEMORY;
    if (c) c->mask = mem_calloc(automaton->mask_words, sizeof *c->mask);
    if (c && c->mask)
        status = matcher_create(&c->matcher, automaton, err);
    else
        status = error_set(err, status, "out of memory for a grammar");
    if (status != SAC_OK)
        constraint_free(c);
    else
        *out = c;
    return status;
}

void constraint_free(struct constraint *c)
{
    if (!c) return;
    matcher_free(c->matcher);
    mem_free(c->mask);
    mem_free(c);
}

static const uint64_t *get_mask(void *user)
{
    struct constraint *const c = user;
    const uint64_t *mask = NULL;
    const size_t bytes = c->matcher->automaton->mask_words * sizeof *c->mask;
    if (c->why.msg[0] == '\0' && matcher_mask(c->matcher, &mask, &c->why) == SAC_OK)
        memcpy(c->mask, mask, bytes);
    else
        memset(c->mask, 0, bytes);
    return c->mask;
}

static void hear_choice(void *user, int32_t tok)
{
    struct constraint *const c = user;
    if (c->why.msg[0] == '\0') (void)!matcher_accept(c->matcher, tok, &c->why);
}

sac_guide constraint_guide(struct constraint *c)
{
    return (sac_guide){.mask = get_mask, .chosen = hear_choice, .user = c};
}

const char *constraint_failure(const struct constraint *c)
{
    return c->why.msg[0] ? c->why.msg : NULL;
}
