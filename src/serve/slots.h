/* slots.h: llama.cpp's slots. A slot is a number under which the server remembers the text that was
 * answered last: the prompt and the answer, as tokens. Keys and values of a prompt are pages that
 * are found by content, so remembering costs no page. To save a slot, what is no longer there is
 * computed again; a restored text stays in memory, and the next prompt that begins with it goes on
 * from there. The engine's thread only. */
#ifndef SAC_SERVE_SLOTS_H
#define SAC_SERVE_SLOTS_H

#include "serve/answer.h"
#include "serve/doc_library.h"

struct slots;

struct slots_options {
    const char *dir;
    uint32_t n; /* number of slots; the engine has n + 1 additional sequences */
};

/* Borrows the engine and what the options point to. */
sac_status slots_open(struct slots **out, sac_engine *engine, const struct slots_options *options,
                      sac_error *err);
void slots_close(struct slots *s);

/* Assigns a slot: the one that the request names, the one whose restored text the prompt begins
 * with, or the least recently used. The common prefix with a restored text is forked into the
 * choice's sequence. Answers with several choices or with documents have no slot. */
void slots_begin(struct slots *s, struct answer *a);
/* Stores prompt and answer (`said`) in the slot of a choice that has ended, and takes over its
 * sequence. Choices without a slot are unchanged. */
void slots_end(struct slots *s, struct answer_choice *c);

/* Saves, restores or erases a slot; appends the JSON response to `out`. */
sac_status slots_work(struct slots *s, const struct api_request *request, uint64_t key,
                      struct doc_library_wait wait, struct strbuf *out, sac_error *err);
/* Call before a step: evicts restored texts, the oldest first, while answers need their pages. */
void slots_make_room(struct slots *s);

/* The cache salt of an answer: its key and the client's salt. */
#define SLOTS_SALT_BYTES (32 + API_REQUEST_SALT_BYTES)
void slots_salt(char out[SLOTS_SALT_BYTES], uint64_t key, const char *cache_salt);

#endif
