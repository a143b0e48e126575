/* question.c: see the header. The boundary between documents and question is found by rendering the
 * prompt with other questions: tokens may reach over the documents' end and templates may trim and
 * wrap, so only the tokenizer knows the result. Two other questions are tried, because one may
 * begin like the question itself. Both are words, as most questions are: some tokenizers cut the
 * blanks before a digit differently. */
#include "eval/question.h"

#include "eval/subjects.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

sac_status question_parse(struct question_rows *out, const char *text, sac_error *err)
{
    char *end;
    *out = (struct question_rows){.all = strcmp(text, "question") == 0};
    if (out->all) return SAC_OK;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 10);
    if (end == text || *end || errno || text[0] == '-' || n < 1 || n > UINT32_MAX)
        return error_set(err, SAC_ERR_ARG, "'%.40s' is neither 'question' nor a number from 1",
                         text);
    out->n = (uint32_t)n;
    return SAC_OK;
}

struct question_rows question_in_force(struct question_rows wanted, const char *prefill,
                                       const char *decode)
{
    const struct question_rows last = {.n = 1};
    const bool is_prefill_judged = strcmp(decode, "full") == 0 && strcmp(prefill, "dense") != 0;
    sac_method_info m;
    if (!wanted.all) return wanted;
    if (is_prefill_judged) return last;
    return subjects_method(&m, "decode", decode) && m.needs_question ? last : wanted;
}

const char *question_name(const struct question_rows *rows)
{
    return rows->all ? "question" : "last";
}

size_t question_rows_begin(const struct question_rows *rows, size_t n_tok, size_t begin)
{
    if (!rows->all) return n_tok > rows->n ? n_tok - rows->n : 0;
    return begin < n_tok ? begin : n_tok - 1;
}

sac_status question_alike(size_t *n, const int32_t *tok, const struct question_text *text,
                          const char *other, sac_error *err)
{
    int32_t *other_tok = NULL;
    size_t n_other = 0, at = 0;
    TRY(text->encode(text->arg, other, &other_tok, &n_other, err));
    while (at < *n && at < n_other && other_tok[at] == tok[at]) at++;
    sac_free(other_tok);
    *n = at;
    return SAC_OK;
}

sac_status question_find(size_t *out, const int32_t *tok, size_t n_tok,
                         const struct question_text *text, sac_error *err)
{
    size_t n = n_tok;
    TRY(question_alike(&n, tok, text, "A", err));
    TRY(question_alike(&n, tok, text, "B", err));
    *out = n;
    return SAC_OK;
}
