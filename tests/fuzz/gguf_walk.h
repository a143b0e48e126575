/* gguf_walk.h: touches everything that an open GGUF file hands out, for the fuzzer and the mutation
 * test. Whatever gguf_open accepted must be readable to the last byte; run under AddressSanitizer.
 */
#ifndef SAC_TESTS_GGUF_WALK_H
#define SAC_TESTS_GGUF_WALK_H

#include "model/gguf.h"
#include "model/gguf_key.h"
#include "ops/quant.h"

#include <stdlib.h>

#define WALK_ELEMS_MAX ((size_t)1 << 16) /* of a row; longer ones are read up to here */

static inline uint64_t walk_bytes(const void *data, size_t n)
{
    uint64_t sum = n;
    for (size_t i = 0; i < n; i++) sum = sum * 31 + ((const uint8_t *)data)[i];
    return sum;
}

static inline uint64_t walk_key(const struct gguf_key *k)
{
    uint64_t sum = 0;
    size_t at = 0;
    for (uint64_t i = 0; i < k->n; i++) {
        char text[GGUF_KEY_TEXT];
        struct gguf_str s;
        uint32_t u;
        int32_t v;
        float f;
        sac_error err;
        if (k->type == GGUF_STRING) {
            if (gguf_key_next_str(k, &at, &s, &err) != SAC_OK) abort();
            sum += walk_bytes(s.s, s.n);
        } else {
            gguf_key_format(k, i, text);
            sum += walk_bytes(text, 1);
        }
        sum += gguf_key_u32(k, i, &u, &err) == SAC_OK ? u : 0;
        sum += gguf_key_i32(k, i, &v, &err) == SAC_OK ? (uint64_t)v : 0;
        sum += gguf_key_f32(k, i, &f, &err) == SAC_OK ? walk_bytes(&f, sizeof f) : 0;
    }
    if (at != (k->type == GGUF_STRING ? k->bytes : 0)) abort();
    return sum;
}

static inline uint64_t walk_tensor(const struct gguf_tensor *t)
{
    const size_t block = quant_block_elems(t->type);
    const size_t most = WALK_ELEMS_MAX / block * block;
    const size_t n = t->ne[0] < most ? (size_t)t->ne[0] : most;
    float *row = malloc(n * sizeof *row);
    if (!row) abort();
    quant_dequant_row(row, t->type, t->data, n);
    const uint64_t sum = walk_bytes(row, n * sizeof *row) + walk_bytes(t->data, t->bytes);
    free(row);
    return sum;
}

static inline void walk_gguf(const struct gguf *g)
{
    uint64_t sum = gguf_alignment(g) + gguf_version(g);
    for (size_t i = 0; i < gguf_n_key(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        if (gguf_key_find(g, k->name) != k) abort();
        sum += walk_key(k);
    }
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (gguf_tensor_find(g, t->name) != t) abort();
        if (gguf_tensor_offset(g, t) + t->bytes > gguf_file_bytes(g)) abort();
        sum += walk_tensor(t);
    }
    __asm__ volatile("" : : "r"(sum)); /* the sum, and so every read, is wanted */
}

#endif
