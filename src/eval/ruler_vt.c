/* ruler_vt.c: RULER's variable tracking: one chain of five variables, each set to the previous one,
 * scattered in order over lines of noise; the expected answer is all names that hold the value.
 *
 * A worked example with short names and a short text, answer included, precedes the question. */
#include "eval/ruler_task.h"

#include "eval/prose.h"

#include <string.h>

#define N_NAME         5u
#define EXAMPLE_LINES  12u
#define EXAMPLE_LETTER 3u
#define LETTER         5u

struct chain {
    struct strlist name;
    unsigned value;
};

static void draw_chain(struct chain *c, struct rng *r, uint32_t n_letter)
{
    while (c->name.n < N_NAME && !c->name.failed) {
        char name[LETTER + 1] = {0};
        for (uint32_t i = 0; i < n_letter; i++) name[i] = (char)('A' + rng_below(r, 26));
        if (!strlist_has(&c->name, name)) strlist_add(&c->name, name);
    }
    c->value = 10000u + (unsigned)rng_below(r, 89999);
}

/* Appends n_line lines of noise with the statements in order among them, then the question; returns
 * the question's offset. */
static size_t add_text(struct strbuf *out, struct rng *r, const struct chain *c, uint32_t n_line)
{
    uint32_t at[N_NAME], next = 0;
    if (c->name.failed) {
        out->failed = true;
        return 0;
    }
    rng_sample_sorted(r, at, N_NAME, n_line + N_NAME);
    for (uint32_t i = 0; i < n_line + N_NAME; i++) {
        if (next == N_NAME || at[next] != i)
            strbuf_addf(out, "%s\n", prose_noise());
        else if (next == 0)
            strbuf_addf(out, "VAR %s = %u\n", c->name.item[next++], c->value);
        else {
            strbuf_addf(out, "VAR %s = VAR %s\n", c->name.item[next], c->name.item[next - 1]);
            next++;
        }
    }
    strbuf_adds(out, "\n");
    const size_t question_at = out->n;
    strbuf_addf(out, "Which variables hold the value %u in the text above?", c->value);
    return question_at;
}

static void add_prefix(struct strbuf *out, const struct chain *c)
{
    strbuf_addf(out,
                "%u variables hold the value %u, directly or through another variable:", N_NAME,
                c->value);
}

sac_status ruler_vt_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct ruler_draw *d = arg;
    struct rng r = ruler_rng(d);
    struct chain example = {0}, chain = {0};
    struct ruler_text text = {0};
    static const char head[] =
        "Follow the assignments of variables that are hidden in the text.\n\n";
    draw_chain(&example, &r, EXAMPLE_LETTER);
    draw_chain(&chain, &r, LETTER);
    strbuf_adds(&text.user, head);
    add_text(&text.user, &r, &example, EXAMPLE_LINES);
    strbuf_adds(&text.user, "\nAnswer: ");
    add_prefix(&text.user, &example);
    for (size_t i = 0; i < example.name.n; i++)
        strbuf_addf(&text.user, " %s%s", example.name.item[i],
                    i + 1 < example.name.n ? "," : ".\n\n");
    strbuf_adds(&text.user, head);
    text.question_at = add_text(&text.user, &r, &chain, size);
    add_prefix(&text.prefix, &chain);
    text.expected = chain.name;
    chain.name = (struct strlist){0};
    const sac_status status = ruler_finish(d, out, &text, err);
    ruler_text_deinit(&text);
    strlist_deinit(&example.name);
    strlist_deinit(&chain.name);
    return status;
}
