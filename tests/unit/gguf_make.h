/* gguf_make.h: builds GGUF bytes from a description in which every field may be wrong. Tests say
 * what differs from a good file and nothing else. */
#ifndef SAC_TESTS_GGUF_MAKE_H
#define SAC_TESTS_GGUF_MAKE_H

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAKE_ITEMS_MAX 16

/* The bytes of a value from a string literal, which may hold NULs. */
#define VALUE(literal) .value = (literal), .n_value = sizeof(literal) - 1

struct make_key {
    const char *name;
    uint64_t n_name; /* 0: strlen; what the file claims, beyond `name` the file just goes on */
    uint32_t type;
    const char *value; /* [n_value] as it stands in the file */
    size_t n_value;
};

struct make_tensor {
    const char *name;
    uint64_t n_name;
    uint32_t n_dim;
    uint64_t ne[5];
    uint32_t type;
    uint64_t offset;
};

struct make_file {
    const char *magic;                    /* NULL: GGUF */
    uint32_t version;                     /* 0: 3 */
    uint64_t n_key_claim, n_tensor_claim; /* 0: as many as there are */
    struct make_key key[MAKE_ITEMS_MAX];  /* up to the first without a name */
    struct make_tensor tensor[MAKE_ITEMS_MAX];
    uint32_t alignment; /* of the data section; 0: 32 */
    size_t n_data;      /* bytes of it, a running pattern */
    size_t n_cut;       /* bytes missing at the end */
};

struct make_out {
    uint8_t *bytes; /* owned; exactly n, so that AddressSanitizer sees a step beyond */
    size_t n, capacity;
};

static inline void make_put(struct make_out *o, const void *p, size_t n)
{
    if (o->n + n > o->capacity) {
        o->capacity = 2 * (o->n + n) + 64;
        o->bytes = realloc(o->bytes, o->capacity);
        assert(o->bytes);
    }
    if (n) memcpy(o->bytes + o->n, p, n);
    o->n += n;
}

/* The machine is little-endian, as the format is. */
static inline void make_put_u32(struct make_out *o, uint32_t v)
{
    make_put(o, &v, sizeof v);
}

static inline void make_put_u64(struct make_out *o, uint64_t v)
{
    make_put(o, &v, sizeof v);
}

static inline void make_put_name(struct make_out *o, const char *name, uint64_t claim)
{
    const size_t n = claim && claim < 1u << 20 ? (size_t)claim : strlen(name);
    make_put_u64(o, claim ? claim : n);
    make_put(o, name, n);
}

static inline struct make_out make_bytes(const struct make_file *f)
{
    struct make_out o = {0};
    uint64_t n_key = 0, n_tensor = 0;
    while (n_key < MAKE_ITEMS_MAX && f->key[n_key].name) n_key++;
    while (n_tensor < MAKE_ITEMS_MAX && f->tensor[n_tensor].name) n_tensor++;
    make_put(&o, f->magic ? f->magic : "GGUF", 4);
    make_put_u32(&o, f->version ? f->version : 3);
    make_put_u64(&o, f->n_tensor_claim ? f->n_tensor_claim : n_tensor);
    make_put_u64(&o, f->n_key_claim ? f->n_key_claim : n_key);
    for (uint64_t i = 0; i < n_key; i++) {
        const struct make_key *k = &f->key[i];
        make_put_name(&o, k->name, k->n_name);
        make_put_u32(&o, k->type);
        make_put(&o, k->value, k->n_value);
    }
    for (uint64_t i = 0; i < n_tensor; i++) {
        const struct make_tensor *t = &f->tensor[i];
        make_put_name(&o, t->name, t->n_name);
        make_put_u32(&o, t->n_dim);
        for (uint32_t d = 0; d < t->n_dim && d < 5; d++) make_put_u64(&o, t->ne[d]);
        make_put_u32(&o, t->type);
        make_put_u64(&o, t->offset);
    }
    if (f->n_data) {
        while (o.n % (f->alignment ? f->alignment : 32)) make_put(&o, "", 1);
        for (size_t i = 0; i < f->n_data; i++) make_put(&o, &(uint8_t){(uint8_t)(i * 7 % 60)}, 1);
    }
    assert(f->n_cut <= o.n);
    o.n -= f->n_cut;
    uint8_t *exact = malloc(o.n ? o.n : 1);
    assert(exact);
    memcpy(exact, o.bytes, o.n);
    free(o.bytes);
    o.bytes = exact;
    return o;
}

/* A good file with every value type, an array of each kind, and tensors of several types. */
static const struct make_file make_good = {
    .key = {{"general.architecture", .type = 8, VALUE("\5\0\0\0\0\0\0\0llama")},
            {"t.u8", .type = 0, VALUE("\xff")},
            {"t.i8", .type = 1, VALUE("\xff")},
            {"t.u16", .type = 2, VALUE("\xff\xff")},
            {"t.i16", .type = 3, VALUE("\xfe\xff")},
            {"t.u32", .type = 4, VALUE("\xff\xff\xff\xff")},
            {"t.i32", .type = 5, VALUE("\xfd\xff\xff\xff")},
            {"t.f32", .type = 6, VALUE("\0\0\x20\xc1")}, /* -10 */
            {"t.bool", .type = 7, VALUE("\1")},
            {"t.u64", .type = 10, VALUE("\xff\xff\xff\xff\xff\xff\xff\xff")},
            {"t.i64", .type = 11, VALUE("\xfc\xff\xff\xff\xff\xff\xff\xff")},
            {"t.f64", .type = 12, VALUE("\0\0\0\0\0\0\xf8\x3f")}, /* 1.5 */
            {"t.strs", .type = 9,
             VALUE("\x08\0\0\0\3\0\0\0\0\0\0\0"
                   "\1\0\0\0\0\0\0\0a\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\xc3\xa4")},
            {"t.i32s", .type = 9, VALUE("\x05\0\0\0\2\0\0\0\0\0\0\0\xff\xff\xff\xff\x07\0\0\0")},
            {"t.none", .type = 9, VALUE("\x08\0\0\0\0\0\0\0\0\0\0\0")},
            {"t.bools", .type = 9, VALUE("\x07\0\0\0\2\0\0\0\0\0\0\0\1\0")}},
    .tensor = {{"a.f32", .n_dim = 2, .ne = {4, 3}, .type = 0, .offset = 0},
               {"b.q4_0", .n_dim = 2, .ne = {64, 2}, .type = 2, .offset = 64},
               {"c.q6_k", .n_dim = 1, .ne = {256}, .type = 14, .offset = 160},
               {"d.f16", .n_dim = 4, .ne = {2, 3, 1, 2}, .type = 1, .offset = 384},
               {"e.iq4_xs", .n_dim = 3, .ne = {256, 1, 1}, .type = 23, .offset = 416}},
    .n_data = 416 + 136,
};

#endif
