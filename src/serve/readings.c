/* readings.c: see the header. A list, oldest first; it is short, so it is walked. */
#include "serve/readings.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct kept {
    struct kept *next;
    char id[48];
    uint64_t key;
    struct strbuf text; /* owned */
};

struct readings {
    pthread_mutex_t lock;
    struct kept *first, **end;
    size_t bytes, bytes_max;
};

sac_status readings_create(struct readings **out, size_t bytes_max, sac_error *err)
{
    struct readings *r = mem_calloc(1, sizeof *r);
    if (!r) return error_set(err, SAC_ERR_MEMORY, "out of memory for readings");
    pthread_mutex_init(&r->lock, NULL);
    r->end = &r->first;
    r->bytes_max = bytes_max;
    *out = r;
    return SAC_OK;
}

static size_t bytes_of(const struct kept *k)
{
    return sizeof *k + k->text.n;
}

static void drop_first(struct readings *r)
{
    struct kept *k = r->first;
    r->first = k->next;
    if (!r->first) r->end = &r->first;
    r->bytes -= bytes_of(k);
    strbuf_deinit(&k->text);
    mem_free(k);
}

void readings_destroy(struct readings *r)
{
    if (!r) return;
    while (r->first) drop_first(r);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

void readings_put(struct readings *r, const char *id, uint64_t key, struct strbuf *text)
{
    struct kept *k = mem_calloc(1, sizeof *k);
    if (!k || text->failed || sizeof *k + text->n > r->bytes_max) {
        strbuf_deinit(text);
        mem_free(k);
        return;
    }
    snprintf(k->id, sizeof k->id, "%s", id);
    k->key = key;
    k->text = *text;
    *text = (struct strbuf){0};
    pthread_mutex_lock(&r->lock);
    r->bytes += bytes_of(k);
    *r->end = k;
    r->end = &k->next;
    while (r->bytes > r->bytes_max) drop_first(r);
    pthread_mutex_unlock(&r->lock);
}

bool readings_get(struct readings *r, const char *id, uint64_t key, struct strbuf *out)
{
    bool found = false;
    pthread_mutex_lock(&r->lock);
    for (const struct kept *k = r->first; k && !found; k = k->next) {
        if (k->key != key || strcmp(k->id, id) != 0) continue;
        strbuf_add(out, k->text.data, k->text.n);
        found = true;
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}
