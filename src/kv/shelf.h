/* shelf.h: pages of prompts on disk: what the index of pages (prefix.h) may evict and a restart
 * would lose.
 *
 * An entry is a run of up to SHELF_PAGES page indices of a text, the pages of all lanes, following
 * the text that another entry, or none, ends. It is named by the key of its last page, a digest of
 * all tokens up to there and of whatever else its maker included. Looking up a text is walking from
 * entry to entry; a hit begins where the walk is and has the same tokens. Entries are stored in a
 * docstore, which removes old ones to make room and keeps entries complete or absent.
 *
 * One thread looks up and hands over; the shelf's own thread writes. It waits for the disk, and has
 * the lowest priority. */
#ifndef SAC_KV_SHELF_H
#define SAC_KV_SHELF_H

#include "base/sha256.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Limits the size of an entry: copying one is cheap compared with the bytes that a step reads. */
#define SHELF_PAGES 16u

/* Pages are reusable only where the same bits would be computed: the same model, KV types and
 * instruction set. */
struct shelf_form {
    uint64_t model; /* fingerprint */
    const char *model_name, *isa;
    uint8_t type_k, type_v;
    uint32_t page_tok, n_lane;
    size_t page_bytes; /* of one lane */
};

struct shelf_params {
    const char *dir;
    uint64_t bytes_max; /* total of all entries */
    struct shelf_form form;
    uint32_t n_touch_max; /* maximum entries of one text */
    /* `say` logs one line about a failure or its end; `ready` reports that the next entry can be
     * written. Both are called from any thread. */
    void (*say)(void *user, const char *line);
    void (*ready)(void *user);
    void *user;
};

struct shelf_stats {
    uint64_t n_entry, bytes;  /* on disk, including other forms, as of the last write */
    uint64_t n_read, n_write; /* entries */
    uint64_t bytes_read, bytes_written;
    uint64_t n_damaged, n_failed, n_evicted; /* entries; n_failed: writes that failed */
};

struct shelf_entry {
    const uint8_t *key; /* key of the last page */
    uint32_t first_page, n_page;
    const int32_t *tok; /* [n_page][page_tok] */
};

struct shelf;

/* Creates the folder, accessible only to its owner, if it is missing. A folder that can be read and
 * not written gives a read-only shelf. */
sac_status shelf_open(struct shelf **out, const struct shelf_params *params, sac_error *err);
/* Writes pending entries first. */
void shelf_close(struct shelf *s);

bool shelf_writable(const struct shelf *s);
/* Whether there is an entry from this page on whose last page has the key. */
bool shelf_has(struct shelf *s, uint32_t first_page, const uint8_t key[SHA256_BYTES]);
/* Starts read-ahead of the file, if it exists. */
void shelf_read_ahead(struct shelf *s, uint32_t first_page, const uint8_t key[SHA256_BYTES]);
/* The entry's pages [n_page][n_lane][page_bytes], valid until the next call; NULL: missing or
 * damaged. Damaged entries are logged and removed. */
const uint8_t *shelf_read(struct shelf *s, const struct shelf_entry *entry);

/* Whether no write is in progress, which the following functions require. */
bool shelf_is_idle(struct shelf *s);
/* The buffer for the pages of the next entry, as above; shelf_write stores them. */
uint8_t *shelf_room(struct shelf *s, uint32_t n_page);
void shelf_write(struct shelf *s, const struct shelf_entry *entry);
/* Updates the last use of these entries. */
void shelf_touch(struct shelf *s, const uint8_t (*key)[SHA256_BYTES], uint32_t n);
/* Waits until nothing is being written. */
void shelf_wait(struct shelf *s);

struct shelf_stats shelf_get_stats(struct shelf *s);

#endif
