/* gguf_parse.c: the wire format. Magic, version, two counts, keys, tensor descriptions, padding to
 * the alignment, tensor data.
 *
 * Invariants:
 *  1. Bytes are read through `take` only, which knows the end of the file.
 *  2. A count is compared with what the bytes left could hold before anything of its size is
 *     allocated or walked, so memory used is a small multiple of the file's size.
 *  3. Sizes from the file are never summed unchecked: products by __builtin_mul_overflow, ends by
 *     comparing a size with the room that is left.
 *  4. When gguf_parse succeeds every key's data and every tensor's data lie inside the file,
 *     tensors do not overlap, and every tensor has a supported type and whole blocks per row.
 *
 * Messages read "FILE: key 'NAME': what is wrong"; the cursor remembers where it is. What values
 * mean (is a vocabulary as long as the embedding?) is for the readers of keys to check. */
#include "model/gguf_parse.h"

#include "base/mem.h"
#include "model/gguf_key.h"
#include "ops/quant.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES  24u /* magic, version, two counts */
#define KEY_BYTES_MIN 14u /* name length, one byte of name, type, one byte of value */
/* Name length, one byte of name, rank, one dimension, type, offset. */
#define TENSOR_BYTES_MIN 33u
#define PATH_SHOWN       160u

struct cursor {
    const struct gguf_part *part;
    size_t at;          /* <= part->bytes */
    size_t string_left; /* of GGUF_STRINGS_MAX */
    char where[160];    /* "header", "key 'x'", "tensor 'y'" */
    sac_error *err;
};

/* The end of a path identifies it best; a long path must not push the reason out of the message. */
static const char *shown_path(const char *path)
{
    const size_t n = strlen(path);
    return n > PATH_SHOWN ? path + n - PATH_SHOWN : path;
}

__attribute__((format(printf, 3, 4))) static void explain(const struct cursor *c, sac_status code,
                                                          const char *fmt, ...)
{
    char reason[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    error_set(c->err, code, "%s: %s: %s", shown_path(c->part->path), c->where, reason);
}

/* The status of a refusal, with its message; `code` stays visible to the compiler. */
#define refuse(c, code, ...) (explain((c), (code), __VA_ARGS__), (code))

__attribute__((format(printf, 2, 3))) static void enter(struct cursor *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->where, sizeof c->where, fmt, ap);
    va_end(ap);
}

static size_t bytes_left(const struct cursor *c)
{
    assert(c->at <= c->part->bytes);
    return c->part->bytes - c->at;
}

/* The next `n` bytes; `what` names them in the message. */
static sac_status take(struct cursor *c, uint64_t n, const char *what, const uint8_t **out)
{
    if (n > bytes_left(c))
        return refuse(c, SAC_ERR_FORMAT,
                      "the file ends at byte %zu inside %s (%" PRIu64 " bytes at %zu)",
                      c->part->bytes, what, n, c->at);
    *out = c->part->base + c->at;
    c->at += (size_t)n;
    return SAC_OK;
}

static sac_status take_u32(struct cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    TRY(take(c, 4, what, &p));
    *out = gguf_key_load_u32(p);
    return SAC_OK;
}

static sac_status take_u64(struct cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    TRY(take(c, 8, what, &p));
    *out = gguf_key_load_u64(p);
    return SAC_OK;
}

static sac_status take_str(struct cursor *c, const char *what, struct gguf_str *out)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    TRY(take_u64(c, what, &n));
    TRY(take(c, n, what, &p));
    if (n > c->string_left)
        return refuse(c, SAC_ERR_FORMAT, "the strings of the file exceed %zu bytes in all",
                      GGUF_STRINGS_MAX);
    c->string_left -= (size_t)n;
    *out = (struct gguf_str){(const char *)p, (size_t)n};
    return SAC_OK;
}

/* A name as an owned C string. A NUL in it is refused: the name would compare equal to another
 * one. */
static sac_status take_name(struct cursor *c, size_t n_max, const char **out)
{
    struct gguf_str s = {0};
    TRY(take_str(c, "its name", &s));
    if (s.n == 0) return refuse(c, SAC_ERR_FORMAT, "the name is empty");
    if (s.n > n_max)
        return refuse(c, SAC_ERR_FORMAT, "the name has %zu bytes, at most %zu are allowed", s.n,
                      n_max);
    if (memchr(s.s, 0, s.n))
        return refuse(c, SAC_ERR_FORMAT, "the name '%.*s' holds a NUL byte", (int)s.n, s.s);
    *out = mem_strndup(s.s, s.n);
    return *out ? SAC_OK : refuse(c, SAC_ERR_MEMORY, "no memory for a name of %zu bytes", s.n);
}

/* ---- Keys ---- */

static sac_status take_values(struct cursor *c, struct gguf_key *k)
{
    const size_t start = c->at;
    k->data = c->part->base + start;
    if (k->type == GGUF_STRING) {
        /* No allocation depends on n: the walk over a wrong count stops at the end of the file. */
        struct gguf_str s = {0};
        for (uint64_t i = 0; i < k->n; i++) TRY(take_str(c, "a string", &s));
    } else {
        const size_t size = gguf_key_type_bytes(k->type);
        const uint8_t *p = NULL;
        if (k->n > bytes_left(c) / size)
            return refuse(c, SAC_ERR_FORMAT,
                          "%" PRIu64 " values of type %s are claimed, the file has %zu bytes left",
                          k->n, gguf_key_type_name(k->type), bytes_left(c));
        TRY(take(c, k->n * size, "its value", &p));
        for (uint64_t i = 0; k->type == GGUF_BOOL && i < k->n; i++)
            if (p[i] > 1) return refuse(c, SAC_ERR_FORMAT, "value %u is not a bool (0 or 1)", p[i]);
    }
    k->bytes = c->at - start;
    return SAC_OK;
}

static sac_status take_key(struct cursor *c, struct gguf_key *k, size_t key_i)
{
    uint32_t type = 0;
    enter(c, "key %zu", key_i);
    TRY(take_name(c, GGUF_KEY_NAME_MAX, &k->name));
    enter(c, "key '%.128s'", k->name);
    TRY(take_u32(c, "its type", &type));
    k->is_array = type == GGUF_ARRAY;
    k->n = 1;
    if (k->is_array) {
        TRY(take_u32(c, "its element type", &type));
        TRY(take_u64(c, "its length", &k->n));
        if (type == GGUF_ARRAY)
            return refuse(c, SAC_ERR_UNSUPPORTED, "arrays of arrays are not supported");
    }
    if (type > GGUF_F64) return refuse(c, SAC_ERR_FORMAT, "value type %u is unknown", type);
    k->type = (enum gguf_type)type;
    return take_values(c, k);
}

static sac_status take_keys(struct cursor *c, struct gguf_part *p, uint64_t n)
{
    if (n > GGUF_KEYS_MAX || n > bytes_left(c) / KEY_BYTES_MIN)
        return refuse(c, SAC_ERR_FORMAT,
                      "%" PRIu64 " keys are claimed in %zu bytes (limit %" PRIu64 ")", n,
                      bytes_left(c), GGUF_KEYS_MAX);
    p->keys = mem_calloc((size_t)n, sizeof *p->keys);
    if (!p->keys) return refuse(c, SAC_ERR_MEMORY, "no memory for %" PRIu64 " keys", n);
    while (p->n_key < n) {
        /* Counted first: deinit frees the name even if the value is wrong. */
        const size_t i = p->n_key++;
        TRY(take_key(c, &p->keys[i], i));
    }
    size_t twin;
    enter(c, "keys");
    const sac_status status =
        gguf_names_init(&p->key_names, p->keys, p->n_key, sizeof *p->keys, &twin, c->err);
    if (status != SAC_OK) return error_prefix(c->err, status, "%s", shown_path(p->path));
    if (twin != GGUF_NAMES_NONE)
        return refuse(c, SAC_ERR_FORMAT, "'%.128s' is there twice", p->keys[twin].name);
    return SAC_OK;
}

static sac_status read_alignment(struct cursor *c, struct gguf_part *p)
{
    p->alignment = GGUF_ALIGNMENT_UNSAID;
    const size_t i = gguf_names_find(&p->key_names, "general.alignment");
    if (i == GGUF_NAMES_NONE) return SAC_OK;
    enter(c, "key 'general.alignment'");
    if (p->keys[i].is_array) return refuse(c, SAC_ERR_FORMAT, "it is an array, not one value");
    const sac_status status = gguf_key_u32(&p->keys[i], 0, &p->alignment, c->err);
    if (status != SAC_OK) return error_prefix(c->err, status, "%s", shown_path(p->path));
    const uint32_t a = p->alignment;
    if (a < GGUF_ALIGNMENT_MIN || a > GGUF_ALIGNMENT_MAX || (a & (a - 1)) != 0)
        return refuse(c, SAC_ERR_FORMAT, "%u is not a power of two in %u..%u", a,
                      GGUF_ALIGNMENT_MIN, GGUF_ALIGNMENT_MAX);
    return SAC_OK;
}

/* ---- Tensors ---- */

struct extent {
    uint64_t start; /* from the start of the data section */
    size_t bytes;
    size_t tensor_i;
};

static sac_status take_shape(struct cursor *c, struct gguf_tensor *t)
{
    TRY(take_u32(c, "its rank", &t->n_dim));
    if (t->n_dim == 0 || t->n_dim > GGUF_DIMS_MAX)
        return refuse(c, SAC_ERR_FORMAT, "rank %u is not in 1..%u", t->n_dim, GGUF_DIMS_MAX);
    uint64_t n_elem = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        t->ne[i] = 1;
        if (i < t->n_dim) TRY(take_u64(c, "its dimensions", &t->ne[i]));
        if (t->ne[i] == 0) return refuse(c, SAC_ERR_FORMAT, "dimension %u is 0", i);
        if (__builtin_mul_overflow(n_elem, t->ne[i], &n_elem) || n_elem > INT64_MAX)
            return refuse(c, SAC_ERR_FORMAT,
                          "dimension %u is %" PRIu64 ": the number of elements overflows", i,
                          t->ne[i]);
    }
    return SAC_OK;
}

/* Reads the type, from which the size in bytes follows. */
static sac_status take_type(struct cursor *c, struct gguf_tensor *t)
{
    TRY(take_u32(c, "its type", &t->type));
    const char *name = quant_name(t->type);
    if (!name) return refuse(c, SAC_ERR_FORMAT, "tensor type %u is unknown", t->type);
    if (!quant_supported(t->type))
        return refuse(c, SAC_ERR_UNSUPPORTED, "tensor type %s is not supported", name);
    const uint32_t block = quant_block_elems(t->type);
    if (t->ne[0] % block != 0)
        return refuse(c, SAC_ERR_FORMAT,
                      "rows of %" PRIu64 " elements are not whole blocks of %u (%s)", t->ne[0],
                      block, name);
    uint64_t bytes = t->ne[0] / block;
    bool overflow = __builtin_mul_overflow(bytes, quant_block_bytes(t->type), &bytes);
    for (uint32_t i = 1; i < t->n_dim; i++)
        overflow = overflow || __builtin_mul_overflow(bytes, t->ne[i], &bytes);
    if (overflow || bytes > c->part->bytes)
        return refuse(c, SAC_ERR_FORMAT, "its data (%s) exceeds the %zu bytes of the file", name,
                      c->part->bytes);
    t->bytes = (size_t)bytes;
    return SAC_OK;
}

static sac_status take_tensor(struct cursor *c, struct gguf_tensor *t, struct extent *out,
                              size_t tensor_i)
{
    enter(c, "tensor %zu", tensor_i);
    TRY(take_name(c, GGUF_TENSOR_NAME_MAX, &t->name));
    enter(c, "tensor '%.64s'", t->name);
    TRY(take_shape(c, t));
    TRY(take_type(c, t));
    *out = (struct extent){.bytes = t->bytes, .tensor_i = tensor_i};
    TRY(take_u64(c, "its offset", &out->start));
    if (out->start % c->part->alignment != 0)
        return refuse(c, SAC_ERR_FORMAT, "offset %" PRIu64 " is not a multiple of %u", out->start,
                      c->part->alignment);
    return SAC_OK;
}

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->tensor_i < y->tensor_i ? -1 : x->tensor_i > y->tensor_i;
}

/* Turns offsets into pointers; the cursor is after the last description. */
static sac_status place_tensors(struct cursor *c, struct gguf_part *p, struct extent *extents)
{
    if (p->n_tensor == 0) return SAC_OK; /* a file with keys only may end here */
    const size_t padding = (p->alignment - c->at % p->alignment) % p->alignment;
    const uint8_t *data = NULL;
    enter(c, "tensor data");
    TRY(take(c, padding, "the padding before it", &data));
    data += padding;
    const size_t room = bytes_left(c);
    for (size_t i = 0; i < p->n_tensor; i++) {
        struct gguf_tensor *t = &p->tensors[i];
        const struct extent *e = &extents[i];
        enter(c, "tensor '%.64s'", t->name);
        if (e->start > room || e->bytes > room - e->start)
            return refuse(c, SAC_ERR_FORMAT,
                          "%zu bytes at offset %" PRIu64 " pass the end of the data (%zu bytes)",
                          e->bytes, e->start, room);
        t->data = data + e->start;
    }
    qsort(extents, p->n_tensor, sizeof *extents, compare_extents);
    for (size_t i = 1; i < p->n_tensor; i++) {
        const struct extent *low = &extents[i - 1], *high = &extents[i];
        enter(c, "tensor '%.64s'", p->tensors[high->tensor_i].name);
        if (high->start - low->start < low->bytes)
            return refuse(c, SAC_ERR_FORMAT,
                          "its data at offset %" PRIu64 " overlaps that of '%.64s'", high->start,
                          p->tensors[low->tensor_i].name);
    }
    return SAC_OK;
}

static sac_status take_tensors(struct cursor *c, struct gguf_part *p, uint64_t n)
{
    enter(c, "header");
    if (n > GGUF_TENSORS_MAX || n > bytes_left(c) / TENSOR_BYTES_MIN)
        return refuse(c, SAC_ERR_FORMAT,
                      "%" PRIu64 " tensors are claimed in %zu bytes (limit %" PRIu64 ")", n,
                      bytes_left(c), GGUF_TENSORS_MAX);
    p->tensors = mem_calloc((size_t)n, sizeof *p->tensors);
    struct extent *extents = mem_calloc((size_t)n, sizeof *extents);
    sac_status status = SAC_OK;
    if (!p->tensors || !extents)
        status = refuse(c, SAC_ERR_MEMORY, "no memory for %" PRIu64 " tensors", n);
    while (status == SAC_OK && p->n_tensor < n) {
        /* Counted first: deinit frees the name even if the rest of the description is wrong. */
        const size_t i = p->n_tensor++;
        status = take_tensor(c, &p->tensors[i], &extents[i], i);
    }
    if (status == SAC_OK) status = place_tensors(c, p, extents);
    mem_free(extents);
    return status;
}

/* ---- The whole file ---- */

static sac_status take_header(struct cursor *c, struct gguf_part *p, uint64_t *out_n_tensor,
                              uint64_t *out_n_key)
{
    const uint8_t *magic = NULL;
    TRY(take(c, 4, "the magic", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return refuse(c, SAC_ERR_FORMAT, "not a GGUF file (first bytes %02x %02x %02x %02x)",
                      magic[0], magic[1], magic[2], magic[3]);
    TRY(take_u32(c, "the version", &p->version));
    if (p->version != 2 && p->version != 3) {
        const bool swapped = p->version != 0 && (p->version & 0xffffu) == 0;
        return refuse(c, SAC_ERR_UNSUPPORTED, "version %u is not supported%s, only 2 and 3 are",
                      swapped ? __builtin_bswap32(p->version) : p->version,
                      swapped ? " in big-endian form" : "");
    }
    TRY(take_u64(c, "the number of tensors", out_n_tensor));
    TRY(take_u64(c, "the number of keys", out_n_key));
    assert(c->at == HEADER_BYTES);
    return SAC_OK;
}

sac_status gguf_parse(struct gguf_part *p, sac_error *err)
{
    struct cursor c = {.part = p, .string_left = GGUF_STRINGS_MAX, .err = err};
    uint64_t n_tensor = 0, n_key = 0;
    assert(p->path && !p->keys && !p->tensors);
    enter(&c, "header");
    TRY(take_header(&c, p, &n_tensor, &n_key));
    TRY(take_keys(&c, p, n_key));
    TRY(read_alignment(&c, p));
    return take_tensors(&c, p, n_tensor);
}

void gguf_parse_deinit(struct gguf_part *p)
{
    for (size_t i = 0; i < p->n_key; i++) mem_free((char *)(uintptr_t)p->keys[i].name);
    for (size_t i = 0; i < p->n_tensor; i++) mem_free((char *)(uintptr_t)p->tensors[i].name);
    mem_free(p->keys);
    mem_free(p->tensors);
    gguf_names_deinit(&p->key_names);
    p->keys = NULL;
    p->tensors = NULL;
    p->n_key = p->n_tensor = 0;
}
