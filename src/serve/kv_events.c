/* kv_events.c: see the header.
 *
 * Invariants:
 *  1. Consecutive pages of one text that are stored become one event, and so do consecutive pages
 *     that are removed: the open run. It is closed by whatever does not go on from it.
 *  2. Who reads all batches knows what is cached. A batch that is lost for want of memory is made
 *     up for by one that clears everything: readers then know too little, never too much. */
#include "serve/kv_events.h"

#include "base/mem.h"
#include "serve/api_request.h"
#include "serve/msgpack.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define KEY_BYTES 32u

enum run_kind { RUN_NONE, RUN_STORED, RUN_REMOVED };

struct run {
    enum run_kind kind;
    uint32_t n_block;
    bool has_before;
    uint64_t before; /* hash of the block before the first */
    uint8_t last[KEY_BYTES];
    char salt[1 + API_REQUEST_SALT_BYTES]; /* of the first block; "": none */
    struct strbuf hashes, tokens;          /* encoded as msgpack */
};

struct kv_events {
    struct publisher *publisher; /* owned */
    struct run run;
    struct strbuf events; /* closed events of the current batch, as msgpack */
    uint32_t n_event;
};

/* The low 64 bits, as in vLLM. */
static uint64_t hash_of(const uint8_t *key)
{
    uint64_t hash = 0;
    for (uint32_t i = KEY_BYTES - 8; i < KEY_BYTES; i++) hash = hash << 8 | key[i];
    return hash;
}

/* ---- Events ---- */

static void put_type(struct kv_events *k, uint32_t n_field, const char *type)
{
    k->n_event++;
    msgpack_map(&k->events, n_field + 1);
    msgpack_text(&k->events, "type");
    msgpack_text(&k->events, type);
}

static void put_hashes(struct kv_events *k)
{
    msgpack_text(&k->events, "block_hashes");
    msgpack_array(&k->events, k->run.n_block);
    strbuf_add(&k->events, k->run.hashes.data, k->run.hashes.n);
}

/* The memory that attention reads from. Consumers expect this name whatever the device. */
static void put_medium(struct kv_events *k)
{
    msgpack_text(&k->events, "medium");
    msgpack_text(&k->events, "GPU");
}

/* What distinguishes blocks with equal tokens: one list per block. */
static void put_extra_keys(struct kv_events *k)
{
    msgpack_text(&k->events, "extra_keys");
    msgpack_array(&k->events, k->run.n_block);
    msgpack_array(&k->events, 1);
    msgpack_text(&k->events, k->run.salt);
    for (uint32_t i = 1; i < k->run.n_block; i++) msgpack_nil(&k->events);
}

static void put_stored(struct kv_events *k)
{
    const struct run *run = &k->run;
    struct strbuf *b = &k->events;
    put_type(k, *run->salt ? 8 : 7, "BlockStored");
    put_hashes(k);
    msgpack_text(b, "parent_block_hash");
    if (run->has_before)
        msgpack_uint(b, run->before);
    else
        msgpack_nil(b);
    msgpack_text(b, "token_ids");
    msgpack_array(b, run->n_block * SAC_PAGE_TOK);
    strbuf_add(b, run->tokens.data, run->tokens.n);
    msgpack_text(b, "block_size");
    msgpack_uint(b, SAC_PAGE_TOK);
    msgpack_text(b, "lora_id");
    msgpack_nil(b);
    put_medium(k);
    msgpack_text(b, "lora_name");
    msgpack_nil(b);
    if (*run->salt) put_extra_keys(k);
}

static void put_removed(struct kv_events *k)
{
    put_type(k, 2, "BlockRemoved");
    put_hashes(k);
    put_medium(k);
}

static void put_cleared(struct kv_events *k)
{
    put_type(k, 0, "AllBlocksCleared");
}

static void close_run(struct kv_events *k)
{
    struct run *run = &k->run;
    if (run->hashes.failed || run->tokens.failed) k->events.failed = true;
    if (run->kind == RUN_STORED) put_stored(k);
    if (run->kind == RUN_REMOVED) put_removed(k);
    run->kind = RUN_NONE;
    run->n_block = 0;
    strbuf_reset(&run->hashes);
    strbuf_reset(&run->tokens);
}

static bool continues(const struct run *run, const sac_cache_page *page)
{
    if (run->kind != (page->is_there ? RUN_STORED : RUN_REMOVED)) return false;
    return !page->is_there || (page->before && memcmp(page->before, run->last, KEY_BYTES) == 0);
}

static void open_run(struct run *run, const sac_cache_page *page, const char *salt)
{
    run->kind = page->is_there ? RUN_STORED : RUN_REMOVED;
    run->has_before = page->before != NULL;
    run->before = page->before ? hash_of(page->before) : 0;
    snprintf(run->salt, sizeof run->salt, "%s", salt ? salt : "");
}

void kv_events_page(struct kv_events *k, const sac_cache_page *page, const char *salt)
{
    struct run *run = &k->run;
    if (!continues(run, page)) {
        close_run(k);
        open_run(run, page, salt);
    }
    run->n_block++;
    memcpy(run->last, page->key, KEY_BYTES);
    msgpack_uint(&run->hashes, hash_of(page->key));
    for (uint32_t i = 0; i < SAC_PAGE_TOK && page->is_there; i++)
        msgpack_uint(&run->tokens, (uint64_t)page->tok[i]);
}

/* ---- Batches ---- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Time, events, and the data-parallel rank, which is always 0. */
static bool send_batch(struct kv_events *k)
{
    struct strbuf batch = {0};
    size_t n = 0;
    msgpack_array(&batch, 3);
    msgpack_double(&batch, now_s());
    msgpack_array(&batch, k->n_event);
    strbuf_add(&batch, k->events.data, k->events.n);
    msgpack_uint(&batch, 0);
    batch.failed = batch.failed || k->events.failed;
    char *bytes = strbuf_detach(&batch, &n);
    return bytes && publisher_send(k->publisher, bytes, n);
}

static void begin_batch(struct kv_events *k)
{
    strbuf_deinit(&k->events);
    k->n_event = 0;
}

void kv_events_flush(struct kv_events *k)
{
    close_run(k);
    if (k->n_event == 0) return;
    const bool sent = send_batch(k);
    begin_batch(k);
    if (!sent) put_cleared(k);
}

/* ---- Creation and destruction ---- */

sac_status kv_events_create(struct kv_events **out, const struct publisher_options *options,
                            sac_error *err)
{
    struct kv_events *k = mem_calloc(1, sizeof *k);
    if (!k) return error_set(err, SAC_ERR_MEMORY, "out of memory for KV events");
    const sac_status status = publisher_create(&k->publisher, options, err);
    if (status != SAC_OK) {
        mem_free(k);
        return status;
    }
    put_cleared(k);
    kv_events_flush(k);
    *out = k;
    return SAC_OK;
}

void kv_events_destroy(struct kv_events *k)
{
    if (!k) return;
    close_run(k);
    begin_batch(k);
    put_cleared(k);
    kv_events_flush(k);
    publisher_destroy(k->publisher);
    strbuf_deinit(&k->events);
    strbuf_deinit(&k->run.hashes);
    strbuf_deinit(&k->run.tokens);
    mem_free(k);
}

const struct publisher *kv_events_publisher(const struct kv_events *k)
{
    return k->publisher;
}
