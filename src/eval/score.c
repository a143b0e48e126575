/* score.c: see the header. Words become numbers first (one lexicon for the answer and the
 * reference), so everything after that is arithmetic on short arrays.
 *
 * The definitions, where they are not obvious:
 *  - Normalisation (SQuAD): ASCII lower case, punctuation dropped, then the words a, an, the.
 *  - METRIC_ROUGE_L follows version 1.0.1 of the package. Texts are cut into sentences at '.'. The
 *    words on the longest common subsequences of all pairs of sentences are united and counted as a
 *    set, against the sets of words of both texts. Among several longest subsequences, the one is
 *    taken that a walk from the end finds if it prefers to shorten the answer.
 *  - METRIC_CODE: the first line without '`', '#' or "//"; similarity is 2 LCS / (|a| + |b|) over
 *    bytes.
 *
 * Not supported: Chinese (LongBench cuts it into words with a dictionary). */
#include "eval/score.h"

#include "base/mem.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define SPACE " \t\n\r\v\f"

static const char *const names[METRIC_N] = {
    [METRIC_ALL_MATCH] = "all_match",
    [METRIC_ANY_MATCH] = "any_match",
    [METRIC_EXACT] = "exact",
    [METRIC_F1] = "f1",
    [METRIC_ROUGE_L] = "rouge_l",
    [METRIC_ROUGE_L_RECALL] = "rouge_l_recall",
    [METRIC_CLASSIFICATION] = "accuracy",
    [METRIC_RETRIEVAL] = "retrieval",
    [METRIC_COUNT] = "count",
    [METRIC_CODE] = "edit_similarity",
};

const char *score_metric_name(enum metric metric)
{
    assert(metric < METRIC_N);
    return names[metric];
}

enum metric score_metric_find(const char *name)
{
    unsigned i = 0;
    while (i < METRIC_N && strcmp(names[i], name) != 0) i++;
    return (enum metric)i;
}

/* ---- Words as numbers ---- */

struct words {
    uint32_t *id; /* [n], index into the lexicon */
    size_t n, room;
    bool failed;
};

static void add_word(struct words *w, struct strlist *lexicon, const char *s, size_t n)
{
    uint32_t id = 0;
    while (id < lexicon->n && (strncmp(lexicon->item[id], s, n) != 0 || lexicon->item[id][n])) id++;
    if (id == lexicon->n) strlist_addn(lexicon, s, n);
    if (w->n == w->room && !w->failed) {
        const size_t room = w->room ? 2 * w->room : 64;
        uint32_t *grown = mem_realloc(w->id, room * sizeof *grown);
        w->failed = !grown;
        if (grown) {
            w->id = grown;
            w->room = room;
        }
    }
    if (w->failed || lexicon->failed)
        w->failed = true;
    else
        w->id[w->n++] = id;
}

static void add_words(struct words *w, struct strlist *lexicon, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t skipped = strspn(text + i, SPACE);
        size_t length = strcspn(text + i + skipped, SPACE);
        if (i + skipped >= n) break;
        if (i + skipped + length > n) length = n - i - skipped;
        add_word(w, lexicon, text + i + skipped, length);
        i += skipped + length;
    }
}

/* SQuAD's normal form of a text; NULL without memory. */
static char *normalise(const char *text)
{
    const size_t n = strlen(text);
    char *plain = mem_strndup(text, n);
    size_t at = 0;
    if (!plain) return NULL;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x80 || !ispunct(c)) plain[at++] = (char)(c < 0x80 ? tolower(c) : c);
    }
    plain[at] = 0;
    size_t kept = 0;
    for (size_t i = 0; i < at;) {
        i += strspn(plain + i, SPACE);
        const size_t length = strcspn(plain + i, SPACE);
        const char *w = plain + i;
        const bool article = (length == 1 && w[0] == 'a') ||
                             (length == 2 && memcmp(w, "an", 2) == 0) ||
                             (length == 3 && memcmp(w, "the", 3) == 0);
        i += length;
        if (article || length == 0) continue;
        if (kept > 0) plain[kept++] = ' '; /* kept < i: this place has been read */
        memmove(plain + kept, w, length);
        kept += length;
    }
    plain[kept] = 0;
    return plain;
}

/* ---- Longest common subsequences ---- */

/* Lengths for all prefixes: table[i * (n_b + 1) + j]. NULL without memory. */
static uint32_t *lcs_table(const struct words *a, const struct words *b)
{
    const size_t stride = b->n + 1;
    uint32_t *table = mem_calloc((a->n + 1) * stride, sizeof *table);
    for (size_t i = 1; table && i <= a->n; i++)
        for (size_t j = 1; j <= b->n; j++) {
            const uint32_t up = table[(i - 1) * stride + j], left = table[i * stride + j - 1];
            table[i * stride + j] = a->id[i - 1] == b->id[j - 1]
                                        ? table[(i - 1) * stride + j - 1] + 1
                                    : up > left ? up
                                                : left;
        }
    return table;
}

/* Marks in `is_common` [lexicon] the words on a longest common subsequence. */
static bool mark_common(bool *is_common, const struct words *reference, const struct words *answer)
{
    uint32_t *table = lcs_table(reference, answer);
    if (!table) return false;
    const size_t stride = answer->n + 1;
    size_t i = reference->n, j = answer->n;
    while (i > 0 && j > 0) {
        if (reference->id[i - 1] == answer->id[j - 1]) {
            is_common[reference->id[i - 1]] = true;
            i--;
            j--;
        } else if (table[(i - 1) * stride + j] > table[i * stride + j - 1]) {
            i--;
        } else {
            j--;
        }
    }
    mem_free(table);
    return true;
}

/* ---- Rouge-L of the package ---- */

#define SENTENCE_MAX 4096u

struct sentences {
    struct words word; /* all of them, in order */
    size_t first[SENTENCE_MAX + 1];
    size_t n;
};

/* Sentences end at '.'; one of white space only counts as one empty word, as it does there. */
static void cut_sentences(struct sentences *s, struct strlist *lexicon, const char *text)
{
    for (const char *at = text; *at && s->n < SENTENCE_MAX;) {
        const size_t length = strcspn(at, ".");
        if (length > 0) {
            s->first[s->n++] = s->word.n;
            add_words(&s->word, lexicon, at, length);
            if (s->word.n == s->first[s->n - 1]) add_word(&s->word, lexicon, "", 0);
        }
        at += length + (at[length] == '.');
    }
    s->first[s->n] = s->word.n;
}

static struct words sentence(const struct sentences *s, size_t i)
{
    return (struct words){.id = s->word.id + s->first[i], .n = s->first[i + 1] - s->first[i]};
}

static size_t count_distinct(const struct words *w, bool *seen, size_t n_lexicon)
{
    size_t n = 0;
    memset(seen, 0, n_lexicon * sizeof *seen);
    for (size_t i = 0; i < w->n; i++) {
        n += !seen[w->id[i]];
        seen[w->id[i]] = true;
    }
    return n;
}

static bool rouge_l_of(double *out, const struct sentences *answer,
                       const struct sentences *reference, size_t n_lexicon)
{
    bool *flag = mem_calloc(n_lexicon, sizeof *flag);
    if (!flag) return false;
    bool ok = true;
    size_t n_common = 0;
    const size_t n_answer = count_distinct(&answer->word, flag, n_lexicon);
    const size_t n_reference = count_distinct(&reference->word, flag, n_lexicon);
    memset(flag, 0, n_lexicon * sizeof *flag);
    for (size_t i = 0; ok && i < reference->n; i++)
        for (size_t j = 0; ok && j < answer->n; j++) {
            const struct words r = sentence(reference, i), a = sentence(answer, j);
            ok = mark_common(flag, &r, &a);
        }
    for (size_t i = 0; i < n_lexicon; i++) n_common += flag[i];
    mem_free(flag);
    const double recall = (double)n_common / (double)n_reference;
    const double precision = (double)n_common / (double)n_answer;
    *out = 2 * (precision * recall / (precision + recall + 1e-8)); /* the package's guard */
    return ok;
}

static bool rouge_l(double *out, const char *answer, const char *reference)
{
    struct strlist lexicon = {0};
    struct sentences *s = mem_calloc(2, sizeof *s);
    bool ok = s != NULL;
    *out = 0;
    if (ok) {
        cut_sentences(&s[0], &lexicon, answer);
        cut_sentences(&s[1], &lexicon, reference);
        ok = !s[0].word.failed && !s[1].word.failed;
        if (ok && s[0].n && s[1].n) ok = rouge_l_of(out, &s[0], &s[1], lexicon.n);
        mem_free(s[0].word.id);
        mem_free(s[1].word.id);
    }
    mem_free(s);
    strlist_deinit(&lexicon);
    return ok;
}

/* ---- Pairs of word lists ---- */

static double f1(const struct words *answer, const struct words *reference, uint32_t *count)
{
    size_t n_same = 0;
    if (answer->n == 0 || reference->n == 0) return answer->n == reference->n ? 1 : 0;
    for (size_t i = 0; i < reference->n; i++) count[reference->id[i]]++;
    for (size_t i = 0; i < answer->n; i++)
        if (count[answer->id[i]] > 0) {
            count[answer->id[i]]--;
            n_same++;
        }
    return 2 * (double)n_same / (double)(answer->n + reference->n);
}

/* F1 of normalised texts, or Rouge-L's recall of the texts as they are. */
static bool compare_words(double *out, enum metric metric, const char *answer,
                          const char *reference)
{
    struct strlist lexicon = {0};
    struct words a = {0}, r = {0};
    add_words(&a, &lexicon, answer, strlen(answer));
    add_words(&r, &lexicon, reference, strlen(reference));
    /* For F1 a counter per word, for Rouge-L the table of subsequences. */
    uint32_t *work = NULL;
    if (!a.failed && !r.failed)
        work = metric == METRIC_F1 ? mem_calloc(lexicon.n, sizeof *work) : lcs_table(&a, &r);
    const bool ok = work != NULL;
    if (ok && metric == METRIC_F1) *out = f1(&a, &r, work);
    if (ok && metric != METRIC_F1)
        *out = r.n ? (double)work[(a.n + 1) * (r.n + 1) - 1] / (double)r.n : a.n == 0;
    mem_free(work);
    mem_free(a.id);
    mem_free(r.id);
    strlist_deinit(&lexicon);
    return ok;
}

/* SQuAD's exact match and F1. */
static bool compare_normalised(double *out, enum metric metric, const char *answer,
                               const char *reference)
{
    char *a = normalise(answer), *r = normalise(reference);
    bool ok = a && r;
    if (ok && metric == METRIC_EXACT) *out = strcmp(a, r) == 0;
    if (ok && metric == METRIC_F1) ok = compare_words(out, metric, a, r);
    mem_free(a);
    mem_free(r);
    return ok;
}

/* ---- The rest of LongBench ---- */

/* Share of the numbers in `answer` that are spelt as `number`. */
static double share_of_numbers(const char *answer, const char *number, size_t n_number)
{
    size_t n = 0, n_right = 0;
    for (const char *at = answer; *at;) {
        at += strcspn(at, "0123456789");
        const size_t length = strspn(at, "0123456789");
        n += length > 0;
        n_right += length > 0 && length == n_number && memcmp(at, number, length) == 0;
        at += length;
    }
    return n ? (double)n_right / (double)n : 0;
}

static double retrieval(const char *answer, const char *reference)
{
    static const char word[] = "Paragraph ";
    const char *at = strstr(reference, word);
    if (!at) return 0; /* jsonl.c refuses references without a number */
    at += sizeof word - 1;
    return share_of_numbers(answer, at, strspn(at, "0123456789"));
}

static double classification(const char *answer, const char *truth, const struct strlist *classes)
{
    size_t n_found = 0;
    bool found_truth = false;
    for (size_t i = 0; i < classes->n; i++) {
        const char *name = classes->item[i];
        const bool is_truth = strcmp(name, truth) == 0;
        /* A name contained in the true name is not a second guess. */
        if (!strstr(answer, name) || (!is_truth && strstr(truth, name))) continue;
        n_found++;
        found_truth |= is_truth;
    }
    return found_truth ? 1.0 / (double)n_found : 0;
}

sac_status score_edit_similarity(double *out, const char *a, const char *b, sac_error *err)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    uint32_t *row = mem_calloc(n_b + 1, sizeof *row);
    if (!row) return error_set(err, SAC_ERR_MEMORY, "out of memory for a score");
    for (size_t i = 0; i < n_a; i++) {
        uint32_t diagonal = 0;
        for (size_t j = 0; j < n_b; j++) {
            const uint32_t above = row[j + 1];
            const uint32_t best = above > row[j] ? above : row[j];
            row[j + 1] = a[i] == b[j] ? diagonal + 1 : best;
            diagonal = above;
        }
    }
    const double share = n_a + n_b ? 2.0 * row[n_b] / (double)(n_a + n_b) : 1;
    mem_free(row);
    *out = nearbyint(share * 100) / 100;
    return SAC_OK;
}

/* The first line that does not look like a comment or a code fence; owned by the caller. */
static char *first_code_line(const char *answer)
{
    for (const char *at = answer + strspn(answer, "\n");; at++) {
        const size_t length = strcspn(at, "\n");
        char *line = mem_strndup(at, length);
        if (!line || (!strpbrk(line, "`#") && !strstr(line, "//"))) return line;
        mem_free(line);
        at += length;
        if (*at == 0) return mem_strdup("");
    }
}

static bool code(double *out, const char *answer, const char *reference)
{
    char *line = first_code_line(answer);
    const bool ok = line && score_edit_similarity(out, line, reference, NULL) == SAC_OK;
    mem_free(line);
    return ok;
}

void score_keep_first_line(char *answer)
{
    const size_t skipped = strspn(answer, "\n"), length = strcspn(answer + skipped, "\n");
    memmove(answer, answer + skipped, length);
    answer[length] = 0;
}

/* ---- The public function ---- */

static bool score_one(double *out, const struct score_args *a, const char *reference)
{
    switch (a->metric) {
    case METRIC_ALL_MATCH:
    case METRIC_ANY_MATCH: *out = strcasestr(a->answer, reference) != NULL; return true;
    case METRIC_EXACT:
    case METRIC_F1: return compare_normalised(out, a->metric, a->answer, reference);
    case METRIC_ROUGE_L: return rouge_l(out, a->answer, reference);
    case METRIC_ROUGE_L_RECALL: return compare_words(out, a->metric, a->answer, reference);
    case METRIC_CLASSIFICATION:
        *out = classification(a->answer, reference, a->classes);
        return true;
    case METRIC_RETRIEVAL: *out = retrieval(a->answer, reference); return true;
    case METRIC_COUNT:
        *out = share_of_numbers(a->answer, reference, strlen(reference));
        return true;
    case METRIC_CODE: return code(out, a->answer, reference);
    case METRIC_N: break;
    }
    return false;
}

sac_status score_answer(double *out, const struct score_args *a, sac_error *err)
{
    double best = 0, sum = 0;
    assert(a->expected->n > 0 && a->metric < METRIC_N);
    assert(a->metric != METRIC_CLASSIFICATION || a->classes);
    for (size_t i = 0; i < a->expected->n; i++) {
        double one = 0;
        if (!score_one(&one, a, a->expected->item[i]))
            return error_set(err, SAC_ERR_MEMORY, "out of memory for a score");
        assert(one >= 0 && one <= 1);
        sum += one;
        if (one > best) best = one;
    }
    *out = a->metric == METRIC_ALL_MATCH ? sum / (double)a->expected->n : best;
    return SAC_OK;
}
