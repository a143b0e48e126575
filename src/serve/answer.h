/* answer.h: the answers to one HTTP request, on their way from the engine's thread to an HTTP
 * thread.
 *
 * The engine's thread adds pieces (a token, progress, the end); the HTTP side takes them and
 * formats them as text. Both hold one reference; the last one to release it frees the answer.
 *
 * Access: `ask`, `n_choice`, `key` and the callbacks do not change after loop_submit, except for
 * the passages of a prompt over documents, which the engine's thread locates before it starts the
 * answer. Fields under "lock" are protected by loop.h's lock, those under "engine" belong to the
 * engine's thread alone. */
#ifndef SAC_SERVE_ANSWER_H
#define SAC_SERVE_ANSWER_H

#include "serve/ask.h"
#include "serve/reading.h"

#include <stdbool.h>
#include <stdint.h>

enum answer_piece_kind {
    ANSWER_TAKEN,  /* the engine accepts the request: what can be refused was not */
    ANSWER_PROMPT, /* n_prompt_done of n_prompt were computed */
    ANSWER_TOKEN,
    ANSWER_DONE, /* of one choice */
    ANSWER_PING, /* nothing came for a while */
};

struct answer_piece {
    struct answer_piece *next;
    enum answer_piece_kind kind;
    uint32_t choice_i;
    uint32_t n_prompt, n_prompt_done;
    int32_t tok;
    float logprob;
    const sac_prob *prob; /* [n_prob], in the piece's own block, as is `text` */
    uint32_t n_prob;
    const char *text; /* [n_text] */
    size_t n_text;
    sac_finish finish;
    int stop_i;        /* of ask.stop; -1: none */
    sac_status status; /* SAC_FINISH_ERROR: why, in `text` */
    sac_timings timings;
    uint64_t us; /* when it came */
};

struct answer_choice {
    struct answer *answer;
    uint32_t i;
    struct loop *loop;        /* engine; borrowed */
    uint64_t request_id;      /* engine; 0: not submitted */
    struct shape_text *shape; /* owned; engine's until it has ended; or NULL */
    struct reading *reading;  /* owned; as `reads`; or NULL */
    sac_seq seq;              /* engine; holds documents, or what was restored; or SAC_SEQ_NONE */
    size_t n_held;            /* engine; tokens of the prompt that it holds */
    struct strbuf said;       /* owned; engine; the answer's tokens, if it has a slot */
    bool submitted;           /* engine; it has a place among those that are computed */
    bool started, ended;      /* engine */
    uint64_t token_us;        /* engine; when the last token came, 0: none yet */
    sac_reads reads;          /* engine; the HTTP side's when ANSWER_DONE was taken */
};

struct answer {
    struct ask ask;               /* owned */
    struct answer_choice *choice; /* owned, [n_choice]; answer i is to prompt i / ask.n */
    uint32_t n_choice;
    uint64_t key; /* of the client, keys.h; 0: none was asked for */
    int fd;       /* lock: the client's socket, watched until the client is gone; -1: none */
    /* The HTTP side sleeps until wake. */
    void (*sleep)(void *user); /* called under the lock */
    void (*wake)(void *user);
    void *user;
    bool eager; /* wake for every piece, not at the end alone */

    int32_t slot;              /* engine, before ANSWER_TAKEN; -1: none */
    bool sampled;              /* audited for the metrics alone */
    bool waits;                /* engine: its turn has not come */
    sac_compose_report joined; /* engine; of its documents; as `reads` */

    /* Lock. */
    struct answer *next;
    struct answer_piece *first, **end;
    size_t piece_bytes;
    uint32_t n_left; /* choices that have not ended */
    bool asleep;
    bool gone;         /* nobody will read: to be cancelled */
    _Atomic bool slow; /* gone because it read too slowly; read without the lock, too */
    _Atomic bool
        left; /* gone because its client closed the connection; read without the lock, too */
    _Atomic bool lost;            /* a piece found no memory; read without the lock, too */
    uint64_t submit_us, piece_us; /* when it was queued; when the last piece came */
    uint32_t n_ref;
};

/* Whether what it reads is recorded. */
bool answer_is_read(const struct answer *a);
/* Takes over `ask`, which is empty then. NULL: out of memory, `ask` is as it was. */
struct answer *answer_create(struct ask *ask);
void answer_free(struct answer *a);

/* A copy of an event as a piece; NULL: out of memory. */
struct answer_piece *answer_piece_of(const struct answer *a, uint32_t choice_i, const sac_event *e);
/* One that says nothing but its kind; NULL: out of memory. */
struct answer_piece *answer_piece_bare(enum answer_piece_kind kind, uint32_t choice_i);
/* All that the store of documents answers. */
struct answer_piece *answer_piece_whole(const struct strbuf *text);
/* So much of a document was computed. */
struct answer_piece *answer_piece_progress(uint32_t n_done, uint32_t n_all);
/* The end of a choice that the engine did not take. */
struct answer_piece *answer_piece_failed(uint32_t choice_i, sac_status status, const char *message);
/* The end of a choice that nobody waits for, before it began. */
struct answer_piece *answer_piece_cancelled(uint32_t choice_i);
void answer_pieces_free(struct answer_piece *first);

#endif
