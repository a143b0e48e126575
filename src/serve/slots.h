/* slots.h: llama.cpp's slots. A slot is a number under which the server remembers the text that was
 * answered last: the prompt and the answer, as tokens. Keys and values of a prompt are pages that
 * are found by content, so remembering costs no page. To save a slot, what is no longer there is
 * computed again; a restored text stays in memory, and the next prompt that begins with it goes on
 * from there. The engine's thread only. */
#ifndef SAC_SERVE_SLOTS_H
#define SAC_SERVE_SLOTS_H

#include "serve/answer.h"
#include "serve/library.h"

struct slots;

struct slots_options {
    const char *dir;
    uint32_t n; /* slots; the engine has as many sequences more, and one */
};

/* Borrows the engine and what the options point to. */
sac_status slots_open(struct slots **out, sac_engine *engine, const struct slots_options *options,
                      sac_error *err);
void slots_close(struct slots *s);

/* Gives an answer its slot: the one that it names, one whose restored text it begins with, or the
 * one that was not used for longest. What it shares with a restored text goes into a sequence of
 * the choice's own. Answers of several choices or with documents have no slot. */
void slots_begin(struct slots *s, struct answer *a);
/* The choice has ended, with its answer in `said`; takes over its sequence. Those without a slot
 * are left as they are. */
void slots_end(struct slots *s, struct answer_choice *c);

/* Saves, restores or erases, as the ask says; `out` gets the answer's JSON. */
sac_status slots_work(struct slots *s, const struct ask *ask, uint64_t key,
                      struct library_wait wait, struct strbuf *out, sac_error *err);
/* Before a step: gives up restored texts, the oldest first, if they hold pages that answers need.
 */
void slots_make_room(struct slots *s);

/* What an answer's pages are known by: its key and its salt. */
#define SLOTS_SALT_BYTES (32 + ASK_SALT_BYTES)
void slots_salt(char out[SLOTS_SALT_BYTES], uint64_t key, const char *cache_salt);

#endif
