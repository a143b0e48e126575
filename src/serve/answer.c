/* answer.c: see the header. A piece is one block: the struct, its probabilities, its text. */
#include "serve/answer.h"

#include "base/mem.h"
#include "serve/structured_output.h"

#include <string.h>

struct answer *answer_create(struct api_request *request)
{
    const uint32_t n = request->work ? 1 : request->n_prompt * request->n;
    struct answer *a = mem_calloc(1, sizeof *a);
    struct answer_choice *choice = mem_calloc(n, sizeof *choice);
    if (!a || !choice) {
        mem_free(a);
        mem_free(choice);
        return NULL;
    }
    a->request = *request;
    *request = (struct api_request){0};
    a->choice = choice;
    a->n_choice = a->n_left = n;
    a->fd = a->slot = -1;
    a->end = &a->first;
    a->n_ref = 1;
    for (uint32_t i = 0; i < n; i++)
        choice[i] = (struct answer_choice){.answer = a, .i = i, .seq = SAC_SEQ_NONE};
    return a;
}

bool answer_is_read(const struct answer *a)
{
    return a->request.attention || a->request.audit || a->sampled;
}

void answer_pieces_free(struct answer_piece *first)
{
    while (first) {
        struct answer_piece *next = first->next;
        mem_free(first);
        first = next;
    }
}

void answer_free(struct answer *a)
{
    if (!a) return;
    answer_pieces_free(a->first);
    for (uint32_t i = 0; i < a->n_choice; i++) {
        structured_output_free(a->choice[i].structured_output);
        reading_free(a->choice[i].reading);
        strbuf_deinit(&a->choice[i].said);
    }
    api_request_deinit(&a->request);
    mem_free(a->choice);
    mem_free(a);
}

/* Creates a piece with copies of the probabilities and the text. */
static struct answer_piece *piece_create(const sac_prob *prob, uint32_t n_prob, const char *text,
                                         size_t n_text)
{
    const size_t prob_bytes = n_prob * sizeof *prob;
    struct answer_piece *p = mem_alloc(sizeof *p + prob_bytes + n_text);
    if (!p) return NULL;
    char *at = (char *)(p + 1);
    *p = (struct answer_piece){.prob = (const sac_prob *)(const void *)at,
                               .n_prob = n_prob,
                               .text = at + prob_bytes,
                               .n_text = n_text,
                               .stop_i = -1};
    if (n_prob) memcpy(at, prob, prob_bytes);
    if (n_text) memcpy(at + prob_bytes, text, n_text);
    return p;
}

static int find_stop(const struct answer *a, const char *stop)
{
    for (uint32_t i = 0; stop && i < a->request.n_stop; i++)
        if (strcmp(a->request.stop[i], stop) == 0) return (int)i;
    return -1;
}

struct answer_piece *answer_piece_of(const struct answer *a, uint32_t choice_i, const sac_event *e)
{
    const bool failed = e->finish == SAC_FINISH_ERROR && e->error;
    const char *text = failed ? e->error : e->text;
    const bool has_prob = e->kind == SAC_EVENT_TOKEN && e->n_probs;
    struct answer_piece *p = piece_create(e->probs, has_prob ? e->n_probs : 0, text,
                                          failed ? strlen(text) : e->text_bytes);
    if (!p) return NULL;
    p->kind = e->kind == SAC_EVENT_PROMPT  ? ANSWER_PROMPT
              : e->kind == SAC_EVENT_TOKEN ? ANSWER_TOKEN
                                           : ANSWER_DONE;
    p->choice_i = choice_i;
    p->n_prompt = e->n_prompt;
    p->n_prompt_done = e->n_prompt_done;
    p->tok = e->tok;
    p->logprob = e->logprob;
    p->finish = e->finish;
    p->stop_i = find_stop(a, e->stop);
    p->status = e->status;
    p->timings = e->timings;
    return p;
}

struct answer_piece *answer_piece_bare(enum answer_piece_kind kind, uint32_t choice_i)
{
    struct answer_piece *p = piece_create(NULL, 0, NULL, 0);
    if (!p) return NULL;
    p->kind = kind;
    p->choice_i = choice_i;
    return p;
}

struct answer_piece *answer_piece_failed(uint32_t choice_i, sac_status status, const char *message)
{
    struct answer_piece *p = piece_create(NULL, 0, message, strlen(message));
    if (!p) return NULL;
    p->kind = ANSWER_DONE;
    p->choice_i = choice_i;
    p->finish = SAC_FINISH_ERROR;
    p->status = status;
    return p;
}

struct answer_piece *answer_piece_whole(const struct strbuf *text)
{
    if (text->failed) return NULL;
    struct answer_piece *p = piece_create(NULL, 0, text->data, text->n);
    if (!p) return NULL;
    p->kind = ANSWER_DONE;
    p->finish = SAC_FINISH_STOP;
    return p;
}

struct answer_piece *answer_piece_progress(uint32_t n_done, uint32_t n_all)
{
    struct answer_piece *p = answer_piece_bare(ANSWER_PROMPT, 0);
    if (!p) return NULL;
    p->n_prompt = n_all;
    p->n_prompt_done = n_done;
    return p;
}

struct answer_piece *answer_piece_cancelled(uint32_t choice_i)
{
    struct answer_piece *p = answer_piece_bare(ANSWER_DONE, choice_i);
    if (p) p->finish = SAC_FINISH_CANCELLED;
    return p;
}
