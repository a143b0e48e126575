/* ruler_words.c: RULER's two counting tasks over lists of words: common words (cwe: ten words are
 * frequent, the others are not) and frequent words (fwe: frequencies fall as rank^-2).
 *
 * The words of cwe are nouns, and adjective-noun pairs where there are not enough; the ten that
 * count are always nouns. */
#include "eval/ruler_task.h"

#include "base/mem.h"
#include "eval/words.h"

#include <math.h>
#include <string.h>

#define N_COMMON  10u
#define N_ASKED   3u /* words that fwe asks for */
#define LETTERS   6u
#define SHORT_CTX 4096u
#define STEP      1000003u /* a prime above the number of pairs: see add_pair_word */

/* ---- Common words ---- */

static uint32_t count_pairs(void)
{
    return words_n_adjective() * words_n_noun();
}

/* The i-th of all pairs, in an order that looks random and has no repetition: the step is a prime
 * larger than their number, so the two have no common divisor. */
static void add_pair_word(struct strbuf *out, uint32_t first, uint32_t i)
{
    const uint32_t p = (uint32_t)((first + (uint64_t)i * STEP) % count_pairs());
    strbuf_addf(out, "%s-%s", words_adjective(p / words_n_noun()),
                words_noun(p % words_n_noun(), NULL));
}

struct list {
    uint32_t n_word;      /* distinct words, of which the first N_COMMON are common */
    uint32_t often, rare; /* occurrences of a common word, and of another */
    const uint32_t *noun; /* [n_noun] shuffled nouns */
    uint32_t first_pair;
};

/* "1. otter 2. kettle ...": every word as often as its kind, shuffled. */
static void add_list(struct strbuf *out, struct rng *r, const struct list *l)
{
    const size_t n = (size_t)N_COMMON * l->often + (size_t)(l->n_word - N_COMMON) * l->rare;
    uint32_t *item = mem_alloc(n * sizeof *item);
    size_t at = 0;
    if (!item) {
        out->failed = true;
        return;
    }
    for (uint32_t w = 0; w < l->n_word; w++)
        for (uint32_t k = 0; k < (w < N_COMMON ? l->often : l->rare); k++) item[at++] = w;
    rng_shuffle(r, item, n);
    for (size_t i = 0; i < n; i++) {
        strbuf_addf(out, "%zu. ", i + 1);
        if (item[i] < words_n_noun())
            strbuf_adds(out, words_noun(l->noun[item[i]], NULL));
        else
            add_pair_word(out, l->first_pair, item[i] - words_n_noun());
        strbuf_adds(out, i + 1 < n ? " " : "\n");
    }
    mem_free(item);
}

static void add_common(struct strbuf *out, const uint32_t *noun)
{
    for (uint32_t i = 0; i < N_COMMON; i++)
        strbuf_addf(out, " %u. %s", i + 1, words_noun(noun[i], NULL));
}

sac_status ruler_cwe_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    static const char head[] = "Below is a numbered list of words. Some of them occur more often "
                               "than the others. Memorise those that occur most often.\n";
    static const char question[] = "Which are the 10 most common words of the list above?";
    static const char answer[] = "The 10 most common words of the list are:";
    const struct ruler_draw *d = arg;
    const bool is_short = d->cell->ctx < SHORT_CTX;
    const uint32_t n_noun = words_n_noun();
    struct rng r = ruler_rng(d);
    struct ruler_text text = {0};
    uint32_t *noun = mem_alloc(n_noun * sizeof *noun);
    if (!noun) return error_set(err, SAC_ERR_MEMORY, "out of memory for a list of words");
    for (uint32_t i = 0; i < n_noun; i++) noun[i] = i;
    rng_shuffle(&r, noun, n_noun);
    /* The example's words come from the end of the shuffled nouns, which long lists use as well, as
     * in the original. */
    const uint32_t n_example = is_short ? 20 : 40;
    const struct list example = {n_example, is_short ? 3 : 10, is_short ? 1 : 3,
                                 noun + n_noun - n_example, 0};
    const struct list list = {size, is_short ? 6 : 30, is_short ? 1 : 3, noun,
                              (uint32_t)rng_below(&r, count_pairs())};
    strbuf_adds(&text.user, head);
    add_list(&text.user, &r, &example);
    strbuf_addf(&text.user, "%s\nAnswer: %s", question, answer);
    add_common(&text.user, example.noun);
    strbuf_addf(&text.user, "\n\n%s", head);
    add_list(&text.user, &r, &list);
    text.question_at = text.user.n;
    strbuf_adds(&text.user, question);
    strbuf_adds(&text.prefix, answer);
    for (uint32_t i = 0; i < N_COMMON; i++) strlist_add(&text.expected, words_noun(noun[i], NULL));
    const sac_status status = ruler_finish(d, out, &text, err);
    ruler_text_deinit(&text);
    mem_free(noun);
    return status;
}

/* ---- Frequent words ---- */

/* Occurrences of the word of rank k (from 1) among `n`. */
static uint32_t zeta_count(uint32_t n, uint32_t k)
{
    const double zeta2 = M_PI * M_PI / 6;
    return (uint32_t)((double)n / ((double)k * k) / zeta2);
}

static void draw_words(struct strlist *out, struct rng *r, uint32_t n)
{
    strlist_add(out, "..."); /* rank 1 is not a word, as in the original */
    while (out->n < n && !out->failed) {
        char word[LETTERS + 1] = {0};
        for (uint32_t i = 0; i < LETTERS; i++) word[i] = (char)('a' + rng_below(r, 26));
        if (!strlist_has(out, word)) strlist_add(out, word);
    }
}

static void add_coded_text(struct strbuf *out, struct rng *r, const struct strlist *word,
                           uint32_t size)
{
    size_t n = 0;
    for (uint32_t k = 1; k <= word->n; k++) n += zeta_count(size, k);
    uint32_t *item = mem_alloc(n * sizeof *item);
    size_t at = 0;
    if (!item) {
        out->failed = true;
        return;
    }
    for (uint32_t k = 1; k <= word->n; k++)
        for (uint32_t i = 0; i < zeta_count(size, k); i++) item[at++] = k - 1;
    rng_shuffle(r, item, n);
    for (size_t i = 0; i < n; i++) strbuf_addf(out, "%s%s", i ? " " : "", word->item[item[i]]);
    mem_free(item);
}

sac_status ruler_fwe_build(const void *arg, uint32_t size, struct task_sample *out, sac_error *err)
{
    const struct ruler_draw *d = arg;
    struct rng r = ruler_rng(d);
    struct strlist word = {0};
    struct ruler_text text = {0};
    const uint32_t n_word = d->cell->ctx / 50;
    draw_words(&word, &r, n_word > 2 * N_ASKED ? n_word : 2 * N_ASKED);
    strbuf_adds(&text.user,
                "The following text is written in code words. Keep count of them. Dots are "
                "no code word.\n\n");
    if (!word.failed) add_coded_text(&text.user, &r, &word, size);
    strbuf_adds(&text.user, "\n\n");
    text.question_at = text.user.n;
    strbuf_adds(&text.user,
                "Which are the three code words that occur most often in the text above? Dots do "
                "not count.");
    strbuf_adds(&text.prefix, "The three code words that occur most often are:");
    for (uint32_t i = 1; i <= N_ASKED && !word.failed; i++)
        strlist_add(&text.expected, word.item[i]);
    text.user.failed |= word.failed;
    const sac_status status = ruler_finish(d, out, &text, err);
    strlist_deinit(&word);
    ruler_text_deinit(&text);
    return status;
}
