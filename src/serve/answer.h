/* answer.h: the answers to one HTTP request, on their way from the engine's thread to an HTTP
 * thread.
 *
 * The engine's thread adds pieces (a token, progress, the end); the HTTP side takes them and
 * formats them as text. Both hold one reference; the last one to release it frees the answer.
 *
 * Access: `request`, `n_choice`, `key` and the callbacks do not change after engine_loop_submit,
 * except for the passages of a prompt over documents, which the engine's thread locates before it
 * starts the answer. Fields under "lock" are protected by engine_loop.h's lock, those under
 * "engine" belong to the engine's thread alone. */
#ifndef SAC_SERVE_ANSWER_H
#define SAC_SERVE_ANSWER_H

#include "serve/api_request.h"
#include "serve/reading.h"

#include <stdbool.h>
#include <stdint.h>

enum answer_piece_kind {
    ANSWER_TAKEN,  /* the engine has accepted the request: it is valid */
    ANSWER_PROMPT, /* progress: n_prompt_done of n_prompt tokens are computed */
    ANSWER_TOKEN,
    ANSWER_DONE, /* a choice has ended */
    ANSWER_PING, /* keeps a silent connection open */
};

struct answer_piece {
    struct answer_piece *next;
    enum answer_piece_kind kind;
    uint32_t choice_i;
    uint32_t n_prompt, n_prompt_done;
    int32_t tok;
    float logprob;
    const sac_prob *prob; /* [n_prob], inside the piece's allocation, as is `text` */
    uint32_t n_prob;
    const char *text; /* [n_text] */
    size_t n_text;
    sac_finish finish;
    int stop_i;        /* index into request.stop; -1: none */
    sac_status status; /* the reason of SAC_FINISH_ERROR; `text` describes it */
    sac_timings timings;
    uint64_t us; /* when the piece was added */
};

struct answer_choice {
    struct answer *answer;
    uint32_t i;
    struct engine_loop *loop; /* engine; borrowed */
    uint64_t request_id;      /* engine; 0: not submitted */
    struct structured_output
        *structured_output;  /* owned; engine, until the choice has ended; or NULL */
    struct reading *reading; /* owned; access as for `reads`; or NULL */
    sac_seq seq;             /* engine; joined documents or a restored slot; or SAC_SEQ_NONE */
    size_t n_held;           /* engine; how many tokens of the prompt `seq` covers */
    struct strbuf said;      /* owned; engine; the answer's tokens, if it has a slot */
    bool submitted;          /* engine; the engine is computing it */
    bool started, ended;     /* engine */
    uint64_t token_us;       /* engine; time of the last token; 0: none yet */
    sac_reads reads;         /* engine; the HTTP side's after ANSWER_DONE */
};

struct answer {
    struct api_request request;   /* owned */
    struct answer_choice *choice; /* owned, [n_choice]; choice i answers prompt i / request.n */
    uint32_t n_choice;
    uint64_t key; /* of the client (api_keys.h); 0: none */
    int fd;       /* lock; the client's socket, polled for a disconnect; -1: none */
    /* The HTTP side sleeps until `wake` is called. */
    void (*sleep)(void *user); /* called under the lock */
    void (*wake)(void *user);
    void *user;
    bool eager; /* wake for every piece, not only at the end */

    int32_t slot;              /* engine, until ANSWER_TAKEN; -1: none */
    bool sampled;              /* audited for the metrics only */
    bool waits;                /* engine; not started yet */
    sac_compose_report joined; /* engine; how its documents were joined; access as for `reads` */

    /* Lock. */
    struct answer *next;
    struct answer_piece *first, **end;
    size_t piece_bytes;
    uint32_t n_left; /* choices that have not ended */
    bool asleep;
    bool gone;         /* nobody will read the answer: cancel it */
    _Atomic bool slow; /* gone because it read too slowly; also read without the lock */
    _Atomic bool left; /* gone because the client disconnected; also read without the lock */
    _Atomic bool lost; /* a piece could not be allocated; also read without the lock */
    uint64_t submit_us, piece_us; /* time of submission, and of the last piece */
    uint32_t n_ref;
};

/* Whether attention is recorded while the answer is computed. */
bool answer_is_read(const struct answer *a);
/* Takes ownership of the contents of `request` and leaves it empty. NULL: out of memory, and
 * `request` is unchanged. */
struct answer *answer_create(struct api_request *request);
void answer_free(struct answer *a);

/* Converts an engine event to a piece; NULL: out of memory. */
struct answer_piece *answer_piece_of(const struct answer *a, uint32_t choice_i, const sac_event *e);
/* A piece that consists of its kind alone; NULL: out of memory. */
struct answer_piece *answer_piece_bare(enum answer_piece_kind kind, uint32_t choice_i);
/* A complete answer of the document store, as one piece. */
struct answer_piece *answer_piece_whole(const struct strbuf *text);
/* Progress of adding a document, in tokens. */
struct answer_piece *answer_piece_progress(uint32_t n_done, uint32_t n_all);
/* Ends a choice that the engine refused. */
struct answer_piece *answer_piece_failed(uint32_t choice_i, sac_status status, const char *message);
/* Ends a choice that was cancelled before it started. */
struct answer_piece *answer_piece_cancelled(uint32_t choice_i);
void answer_pieces_free(struct answer_piece *first);

#endif
