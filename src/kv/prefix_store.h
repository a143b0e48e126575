/* prefix_store.h: pages of prompts on disk: what the index of pages (prefix.h) may evict and a
 * restart would lose.
 *
 * An entry is a run of up to PREFIX_STORE_PAGES page indices of a text, the pages of all lanes,
 * following the text that another entry, or none, ends. It is named by the key of its last page, a
 * digest of all tokens up to there and of whatever else its maker included. Looking up a text is
 * walking from entry to entry; a hit begins where the walk is and has the same tokens. Entries are
 * stored in a docstore, which removes old ones to make room and keeps entries complete or absent.
 *
 * One thread looks up and hands over; the store's own thread writes. It waits for the disk, and has
 * the lowest priority. */
#ifndef SAC_KV_PREFIX_STORE_H
#define SAC_KV_PREFIX_STORE_H

#include "base/sha256.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Limits the size of an entry: copying one is cheap compared with the bytes that a step reads. */
#define PREFIX_STORE_PAGES 16u

/* Pages are reusable only where the same bits would be computed: the same model, KV types and
 * instruction set. */
struct prefix_store_form {
    uint64_t model; /* fingerprint */
    const char *model_name, *isa;
    uint8_t type_k, type_v;
    uint32_t page_tok, n_lane;
    size_t page_bytes; /* of one lane */
};

struct prefix_store_params {
    const char *dir;
    uint64_t bytes_max; /* total of all entries */
    struct prefix_store_form form;
    uint32_t n_touch_max; /* maximum entries of one text */
    /* `say` logs one line about a failure or its end; `ready` reports that the next entry can be
     * written. Both are called from any thread. */
    void (*say)(void *user, const char *line);
    void (*ready)(void *user);
    void *user;
};

struct prefix_store_stats {
    uint64_t n_entry, bytes;  /* on disk, including other forms, as of the last write */
    uint64_t n_read, n_write; /* entries */
    uint64_t bytes_read, bytes_written;
    uint64_t n_damaged, n_failed, n_evicted; /* entries; n_failed: writes that failed */
};

struct prefix_store_entry {
    const uint8_t *key; /* key of the last page */
    uint32_t first_page, n_page;
    const int32_t *tok; /* [n_page][page_tok] */
};

struct prefix_store;

/* Creates the folder, accessible only to its owner, if it is missing. A folder that can be read and
 * not written gives a read-only store. */
sac_status prefix_store_open(struct prefix_store **out, const struct prefix_store_params *params,
                             sac_error *err);
/* Writes pending entries first. */
void prefix_store_close(struct prefix_store *s);

bool prefix_store_writable(const struct prefix_store *s);
/* Whether there is an entry from this page on whose last page has the key. */
bool prefix_store_has(struct prefix_store *s, uint32_t first_page, const uint8_t key[SHA256_BYTES]);
/* Starts read-ahead of the file, if it exists. */
void prefix_store_read_ahead(struct prefix_store *s, uint32_t first_page,
                             const uint8_t key[SHA256_BYTES]);
/* The entry's pages [n_page][n_lane][page_bytes], valid until the next call; NULL: missing or
 * damaged. Damaged entries are logged and removed. */
const uint8_t *prefix_store_read(struct prefix_store *s, const struct prefix_store_entry *entry);

/* Whether no write is in progress, which the following functions require. */
bool prefix_store_is_idle(struct prefix_store *s);
/* The buffer for the pages of the next entry, as above; prefix_store_write stores them. */
uint8_t *prefix_store_room(struct prefix_store *s, uint32_t n_page);
void prefix_store_write(struct prefix_store *s, const struct prefix_store_entry *entry);
/* Updates the last use of these entries. */
void prefix_store_touch(struct prefix_store *s, const uint8_t (*key)[SHA256_BYTES], uint32_t n);
/* Waits until nothing is being written. */
void prefix_store_wait(struct prefix_store *s);

struct prefix_store_stats prefix_store_get_stats(struct prefix_store *s);

#endif
