/* shelf.h: pages of prompts on disk: what the index of pages (prefix.h) may let go and a restart
 * would lose.
 *
 * An entry is a run of up to SHELF_PAGES page indices of a text, the pages of all lanes, behind the
 * text that another entry, or none, ends. It is called by the key of its last page, a digest of all
 * tokens up to there and of what else its maker put in, so looking for a text is walking from entry
 * to entry; a hit begins where the walk is and has the same tokens. Entries live in a docstore,
 * which makes room by age and keeps them whole or not at all.
 *
 * One thread asks and hands over, the shelf's own writes: that thread waits for the disk, and it is
 * the least urgent of the machine's. */
#ifndef SAC_KV_SHELF_H
#define SAC_KV_SHELF_H

#include "base/sha256.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Of an entry. So its copy is a small part of the bytes that a step reads. */
#define SHELF_PAGES 16u

/* Pages are of use to who would compute the same bits: the same model, types of keys and values,
 * and instruction set. */
struct shelf_form {
    uint64_t model; /* its fingerprint */
    const char *model_name, *isa;
    uint8_t type_k, type_v;
    uint32_t page_tok, n_lane;
    size_t page_bytes; /* of one lane */
};

struct shelf_params {
    const char *dir;
    uint64_t bytes_max; /* of all entries */
    struct shelf_form form;
    uint32_t n_touch_max; /* entries that one text may have */
    /* One line that tells of trouble, or of its end; and: an entry may be handed over again. Both
     * come from any thread. */
    void (*say)(void *user, const char *line);
    void (*ready)(void *user);
    void *user;
};

struct shelf_stats {
    uint64_t n_entry, bytes;  /* on disk, of all forms, as of the last writing */
    uint64_t n_read, n_write; /* entries */
    uint64_t bytes_read, bytes_written;
    uint64_t n_damaged, n_failed, n_evicted; /* entries; n_failed: could not be written */
};

struct shelf_entry {
    const uint8_t *key; /* of its last page */
    uint32_t first_page, n_page;
    const int32_t *tok; /* [n_page][page_tok] */
};

struct shelf;

/* Makes the folder, which nobody else may read, if it is not there. One that may be read and not
 * written gives a shelf that is only read. */
sac_status shelf_open(struct shelf **out, const struct shelf_params *params, sac_error *err);
/* What was handed over is written first. */
void shelf_close(struct shelf *s);

bool shelf_writable(const struct shelf *s);
/* Whether there is an entry from this page on whose last page has the key. */
bool shelf_has(struct shelf *s, uint32_t first_page, const uint8_t key[SHA256_BYTES]);
/* The kernel begins to read it, if it is there. */
void shelf_read_ahead(struct shelf *s, uint32_t first_page, const uint8_t key[SHA256_BYTES]);
/* The entry's pages [n_page][n_lane][page_bytes], until the next call; NULL: it is not there, or
 * not what it should be, which is told and removed. */
const uint8_t *shelf_read(struct shelf *s, const struct shelf_entry *entry);

/* Nothing is being written. What follows is for then. */
bool shelf_is_idle(struct shelf *s);
/* Where the pages of the next entry belong, as above; shelf_write takes them. */
uint8_t *shelf_room(struct shelf *s, uint32_t n_page);
void shelf_write(struct shelf *s, const struct shelf_entry *entry);
/* These entries were used. */
void shelf_touch(struct shelf *s, const uint8_t (*key)[SHA256_BYTES], uint32_t n);
/* Waits until nothing is being written. */
void shelf_wait(struct shelf *s);

struct shelf_stats shelf_get_stats(struct shelf *s);

#endif
