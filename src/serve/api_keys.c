/* api_keys.c: see the header. A key is kept in a field of fixed size, padded with zeros, so that
 * every comparison takes the same time. */
#include "serve/api_keys.h"

#include "base/input.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#define KEY_BYTES 256u /* with the NUL */
#define KEYS_MAX  1024u

struct key_set {
    char (*key)[KEY_BYTES]; /* owned, [n] */
    size_t n;
};

struct api_keys {
    pthread_mutex_t lock;
    struct key_set set;
    struct key_set fixed; /* keys from the command line, also in `set` */
    char *file;           /* owned, or NULL */
};

static sac_status add_key(struct key_set *s, const char *key, size_t n, sac_error *err)
{
    if (n == 0 || n >= KEY_BYTES)
        return error_set(err, SAC_ERR_ARG, "an API key has %zu bytes: allowed are 1 to %u", n,
                         KEY_BYTES - 1);
    if (s->n == KEYS_MAX)
        return error_set(err, SAC_ERR_ARG, "there are more than %u API keys", KEYS_MAX);
    void *grown = mem_realloc(s->key, (s->n + 1) * sizeof *s->key);
    if (!grown) return error_set(err, SAC_ERR_MEMORY, "out of memory for API keys");
    s->key = grown;
    memset(s->key[s->n], 0, KEY_BYTES);
    memcpy(s->key[s->n++], key, n);
    return SAC_OK;
}

static sac_status add_lines(struct key_set *s, const char *text, sac_error *err)
{
    while (*text) {
        const size_t line = strcspn(text, "\n");
        size_t n = strcspn(text, "#\r\n"), skip = strspn(text, " \t");
        while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
        if (n > skip) TRY(add_key(s, text + skip, n - skip, err));
        text += line + (text[line] != 0);
    }
    return SAC_OK;
}

static sac_status read_set(struct key_set *out, const struct api_keys *k, sac_error *err)
{
    struct strbuf text = {0};
    sac_status status = SAC_OK;
    for (size_t i = 0; i < k->fixed.n && status == SAC_OK; i++)
        status = add_key(out, k->fixed.key[i], strlen(k->fixed.key[i]), err);
    if (status == SAC_OK && k->file) status = input_read(&text, k->file, err);
    if (status == SAC_OK && k->file) {
        strbuf_add(&text, "", 0);
        status = text.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for API keys")
                             : add_lines(out, text.data, err);
        if (status == SAC_OK && out->n == k->fixed.n)
            status = error_set(err, SAC_ERR_FORMAT, "%s holds no API key", k->file);
    }
    strbuf_deinit(&text);
    if (status != SAC_OK) mem_free(out->key);
    return status;
}

sac_status api_keys_reload(struct api_keys *k, sac_error *err)
{
    struct key_set fresh = {0};
    TRY(read_set(&fresh, k, err));
    pthread_mutex_lock(&k->lock);
    mem_free(k->set.key);
    k->set = fresh;
    pthread_mutex_unlock(&k->lock);
    return SAC_OK;
}

sac_status api_keys_create(struct api_keys **out, const char *const *key, size_t n,
                           const char *file, sac_error *err)
{
    struct api_keys *k = mem_calloc(1, sizeof *k);
    sac_status status = SAC_OK;
    if (!k) return error_set(err, SAC_ERR_MEMORY, "out of memory for API keys");
    pthread_mutex_init(&k->lock, NULL);
    for (size_t i = 0; i < n; i++) TRY_FAIL(add_key(&k->fixed, key[i], strlen(key[i]), err));
    if (file && !(k->file = mem_strdup(file)))
        TRY_FAIL(error_set(err, SAC_ERR_MEMORY, "out of memory for API keys"));
    TRY_FAIL(api_keys_reload(k, err));
    *out = k;
    return SAC_OK;
fail:
    api_keys_destroy(k);
    return status;
}

void api_keys_destroy(struct api_keys *k)
{
    if (!k) return;
    pthread_mutex_destroy(&k->lock);
    mem_free(k->set.key);
    mem_free(k->fixed.key);
    mem_free(k->file);
    mem_free(k);
}

bool api_keys_wanted(struct api_keys *k)
{
    pthread_mutex_lock(&k->lock);
    const bool wanted = k->set.n > 0;
    pthread_mutex_unlock(&k->lock);
    return wanted;
}

uint64_t api_keys_find(struct api_keys *k, const char *key)
{
    char padded[KEY_BYTES] = {0};
    const size_t n = strnlen(key, KEY_BYTES);
    size_t found = 0;
    if (n == KEY_BYTES) return 0;
    memcpy(padded, key, n);
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->set.n; i++) {
        volatile unsigned char different = 0; /* every byte of every key is compared */
        for (size_t b = 0; b < KEY_BYTES; b++)
            different |= (unsigned char)(padded[b] ^ k->set.key[i][b]);
        found |= different ? 0 : i + 1;
    }
    pthread_mutex_unlock(&k->lock);
    return found ? XXH3_64bits(padded, KEY_BYTES) | 1u : 0;
}
