/* saccade_cache.h: a prompt cache on disk, and news of the one in memory. Contract as in saccade.h.
 *
 * With the cache on disk the index of pages (sac_engine_params.prefix_cache) survives the engine.
 * When a request has ended, the pages of its prompt go to a folder. They come back when a prompt
 * with the same prefix and salt arrives; results are the same to the bit. Only engines with the
 * same model, types of keys and values, and instruction set share entries. Several engines and
 * processes may use one folder. */
#ifndef SACCADE_CACHE_H
#define SACCADE_CACHE_H

#include "saccade.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sac_cache_params {
    const char *dir;    /* created if missing, accessible only to its owner */
    uint64_t bytes_max; /* of all entries; the least recently used are removed */
    /* Both may be called from any thread, and either may be NULL. `say`: a line about trouble, or
     * its end. `ready`: sac_cache_store has work again. */
    void (*say)(void *user, const char *line);
    void (*ready)(void *user);
    void *user;
} sac_cache_params;

typedef struct sac_cache_stats {
    bool is_open, writable;
    uint64_t n_entry, bytes, bytes_max; /* on disk, as of the last writing */
    uint64_t n_read, n_written;         /* entries; tokens are in sac_reads.n_disk_tok */
    uint64_t bytes_read, bytes_written;
    uint64_t n_damaged, n_failed, n_evicted; /* entries; failed: could not be written */
} sac_cache_stats;

/* Once per engine, before its first request; closed with the engine. The engine must have
 * `prefix_cache`. A folder that cannot be written is only read. */
SAC_API SAC_NODISCARD sac_status sac_cache_open(sac_engine *engine, const sac_cache_params *params,
                                                sac_error *err);
/* Hands some of what is not on disk yet to a thread that writes it. Call it between calls of
 * sac_run, which it delays only for the time of copying. False: nothing is left. True: there may be
 * more once `ready` was called. */
SAC_API bool sac_cache_store(sac_engine *engine);
/* Writes everything that is left, or as much as fits in `ms`. */
SAC_API void sac_cache_flush(sac_engine *engine, uint32_t ms);
SAC_API sac_cache_stats sac_cache_get_stats(const sac_engine *engine);

/* A page of the index. Keys are SHA-256 digests of the tokens up to the page's end, of the salt and
 * of the model: the same text, salt and model have the same key in every process. */
typedef struct sac_cache_page {
    bool is_there;         /* prompts find it from now on; false: they do so no longer */
    const uint8_t *key;    /* [32] */
    const uint8_t *before; /* [32] that of the page before it; NULL: its text begins with it */
    const int32_t *tok;    /* [SAC_PAGE_TOK] */
    void *request_user;    /* sac_request.user of the request that computed it, or NULL */
} sac_cache_page;
/* Must not call the engine. All pointers are valid during the call. */
typedef void (*sac_cache_page_fn)(void *user, const sac_cache_page *page);

/* From now on `fn` is called for each page that prompts begin or cease to find in memory, wherever
 * tiers hold its bytes; pages that only the cache on disk has are not there. A page follows the one
 * before it, and leaves before it or together with it. NULL: no longer. */
SAC_API SAC_NODISCARD sac_status sac_cache_watch(sac_engine *engine, sac_cache_page_fn fn,
                                                 void *user, sac_error *err);

#ifdef __cplusplus
}
#endif

#endif
