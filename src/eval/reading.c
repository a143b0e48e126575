/* reading.c: see the header; docs/reading_format.md describes the layout.
 *
 * Invariants:
 *  1. The ring holds whole records in file form, the oldest at `first`; the length in front of each
 *     says where the next begins. Dropping, flushing and reading therefore need no index.
 *  2. A reading is `data` with `at` on the boundary of a record; nothing after `n` is read.
 *  3. Numbers are assembled from bytes by shifts, so files are the same on every machine.
 *
 * Nothing here knows methods or engines. */
#include "eval/reading.h"

#include "base/half.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAGIC        "SACREAD\n"
#define VERSION      2u
#define ORDER        0x01020304u /* reads as another number when the bytes were swapped */
#define HEADER_BYTES 40u         /* without the names */
#define RECORD_BYTES 80u         /* without the pages */
#define SHAPE_MAX    65536u      /* layers, heads, channels */
#define PAGE_MAX     (1u << 24)  /* keeps sizes of records far from 32 bits */

/* ---- Bytes ---- */

static void put_u(uint8_t *to, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) to[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_u(const uint8_t *from, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++) v |= (uint64_t)from[i] << 8 * i;
    return v;
}

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)get_u(from, 4);
}

static size_t bitmap_bytes(uint32_t n_page)
{
    return ((size_t)n_page + 7) / 8;
}

static size_t record_bytes(uint32_t n_page)
{
    return RECORD_BYTES + bitmap_bytes(n_page) + 2 * (size_t)n_page;
}

/* ---- The ring ---- */

static void ring_write(struct reading_ring *r, const uint8_t *from, size_t n)
{
    assert(n <= r->capacity - r->used);
    const size_t to = (r->first + r->used) % r->capacity;
    const size_t n_first = n < r->capacity - to ? n : r->capacity - to;
    memcpy(r->data + to, from, n_first);
    memcpy(r->data, from + n_first, n - n_first);
    r->used += n;
}

static void ring_drop_oldest(struct reading_ring *r)
{
    uint8_t length[4];
    for (size_t i = 0; i < 4; i++) length[i] = r->data[(r->first + i) % r->capacity];
    const size_t n = get_u32(length);
    assert(n <= r->used);
    r->first = (r->first + n) % r->capacity;
    r->used -= n;
    r->n_dropped++;
}

/* ---- Writing ---- */

static sac_status io_error(const struct reading_writer *w, sac_error *err)
{
    return error_set(err, SAC_ERR_IO, "%s: %s", w->path, strerror(errno));
}

static sac_status write_name(struct reading_writer *w, const char *name, sac_error *err)
{
    uint8_t length[4];
    const size_t n = strlen(name);
    if (n > READING_NAME_MAX)
        return error_set(err, SAC_ERR_ARG, "%s: a name of %zu bytes, at most %u are possible",
                         w->path, n, READING_NAME_MAX);
    put_u(length, n, 4);
    if (fwrite(length, 1, 4, w->file) != 4 || fwrite(name, 1, n, w->file) != n)
        return io_error(w, err);
    return SAC_OK;
}

static sac_status write_header(struct reading_writer *w, const struct reading_shape *s,
                               const struct reading_names *names, sac_error *err)
{
    uint8_t h[HEADER_BYTES] = MAGIC;
    const uint32_t field[] = {VERSION,      ORDER,       s->n_layer,  s->n_head,
                              s->n_kv_head, s->head_dim, s->page_tok, names->n_method};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) put_u(h + 8 + 4 * i, field[i], 4);
    if (names->n_method > READING_METHODS_MAX)
        return error_set(err, SAC_ERR_ARG, "%s: %u methods, at most %u are possible", w->path,
                         names->n_method, READING_METHODS_MAX);
    if (fwrite(h, 1, sizeof h, w->file) != sizeof h) return io_error(w, err);
    TRY(write_name(w, names->model, err));
    for (uint32_t i = 0; i < names->n_method; i++) TRY(write_name(w, names->method[i], err));
    return SAC_OK;
}

sac_status reading_open(struct reading_writer *w, const char *path,
                        const struct reading_shape *shape, const struct reading_names *names,
                        size_t ring_bytes, sac_error *err)
{
    sac_status status;
    *w = (struct reading_writer){.path = mem_strdup(path), .ring.capacity = ring_bytes};
    w->ring.data = mem_alloc(ring_bytes);
    if (!w->path || !w->ring.data)
        TRY_FAIL(error_set(err, SAC_ERR_MEMORY, "%s: no memory for a ring of %zu bytes", path,
                           ring_bytes));
    w->file = fopen(path, "wb");
    if (!w->file) TRY_FAIL(io_error(w, err));
    TRY_FAIL(write_header(w, shape, names, err));
    return SAC_OK;
fail:
    if (w->file) (void)fclose(w->file);
    w->file = NULL;
    (void)reading_close(w, NULL);
    return status;
}

static void encode_head(uint8_t h[RECORD_BYTES], const struct reading_writer *w,
                        const sac_read_record *r)
{
    assert(r->n_row < 256 && r->layer < SHAPE_MAX && r->kv_head < SHAPE_MAX);
    put_u(h, record_bytes(r->n_page), 4);
    put_u(h + 4, w->method_i, 2);
    put_u(h + 6, r->kind == SAC_ROW_DECODE, 1);
    put_u(h + 7, r->n_row, 1);
    put_u(h + 8, w->sample_i, 4);
    put_u(h + 12, r->seq, 4);
    put_u(h + 16, r->pos, 4);
    put_u(h + 20, r->layer, 2);
    put_u(h + 22, r->kv_head, 2);
    put_u(h + 24, r->n_page, 4);
    put_u(h + 28, r->n_page_read, 4);
    put_u(h + 32, float_bits(r->mass), 4);
    put_u(h + 36, float_bits(r->out_err), 4);
    put_u(h + 40, r->k_bytes, 8);
    put_u(h + 48, r->v_bytes, 8);
    put_u(h + 56, r->side_bytes, 8);
    put_u(h + 64, float_bits(r->select_us), 4);
    put_u(h + 68, float_bits(r->attend_us), 4);
    put_u(h + 72, r->n_tok_seen, 4);
    put_u(h + 76, r->n_tok_read, 4);
}

void reading_put(void *writer, const sac_read_record *r)
{
    struct reading_writer *w = writer;
    struct reading_ring *ring = &w->ring;
    uint8_t head[RECORD_BYTES];
    if (record_bytes(r->n_page) > ring->capacity) {
        ring->n_dropped++;
        return;
    }
    while (ring->capacity - ring->used < record_bytes(r->n_page)) ring_drop_oldest(ring);
    encode_head(head, w, r);
    ring_write(ring, head, sizeof head);
    uint32_t next = 0; /* in r->page, which is ascending */
    for (uint32_t p = 0; p < r->n_page; p += 8) {
        uint8_t bits = 0;
        for (; next < r->n_page_read && r->page[next] < p + 8; next++)
            bits |= (uint8_t)(1u << (r->page[next] - p));
        ring_write(ring, &bits, 1);
    }
    for (uint32_t p = 0; p < r->n_page; p++) {
        uint8_t half[2];
        put_u(half, f32_to_f16(r->page_mass[p]), 2);
        ring_write(ring, half, 2);
    }
}

sac_status reading_flush(struct reading_writer *w, sac_error *err)
{
    struct reading_ring *r = &w->ring;
    const size_t n_first = r->used < r->capacity - r->first ? r->used : r->capacity - r->first;
    if (fwrite(r->data + r->first, 1, n_first, w->file) != n_first ||
        fwrite(r->data, 1, r->used - n_first, w->file) != r->used - n_first)
        return io_error(w, err);
    r->first = r->used = 0;
    return SAC_OK;
}

sac_status reading_close(struct reading_writer *w, sac_error *err)
{
    sac_status status = w->file ? reading_flush(w, err) : SAC_OK;
    if (w->file && fclose(w->file) != 0 && status == SAC_OK) status = io_error(w, err);
    mem_free(w->path);
    mem_free(w->ring.data);
    *w = (struct reading_writer){0};
    return status;
}

/* ---- Reading ---- */

static sac_status bad(const struct reading *r, sac_error *err, const char *field, uint64_t value)
{
    return error_set(err, SAC_ERR_FORMAT, "%s: byte %zu: %s is %" PRIu64, r->path, r->at, field,
                     value);
}

static sac_status read_name(struct reading *r, char **out, sac_error *err)
{
    if (r->n - r->at < 4)
        return error_set(err, SAC_ERR_FORMAT, "%s: ends inside the header", r->path);
    const uint32_t n = get_u32(r->data + r->at);
    if (n > READING_NAME_MAX) return bad(r, err, "the length of a name", n);
    if (r->n - r->at - 4 < n)
        return error_set(err, SAC_ERR_FORMAT, "%s: ends inside the header", r->path);
    *out = mem_strndup((const char *)r->data + r->at + 4, n);
    if (!*out) return error_set(err, SAC_ERR_MEMORY, "%s: no memory for a name", r->path);
    r->at += 4 + (size_t)n;
    return SAC_OK;
}

static sac_status read_header(struct reading *r, sac_error *err)
{
    struct reading_shape *s = &r->shape;
    uint32_t version, order;
    const struct {
        const char *name;
        uint32_t *out, min, max;
    } field[] = {{"version", &version, VERSION, VERSION},
                 {"the mark of the byte order", &order, ORDER, ORDER},
                 {"n_layer", &s->n_layer, 1, SHAPE_MAX},
                 {"n_head", &s->n_head, 1, SHAPE_MAX},
                 {"n_kv_head", &s->n_kv_head, 1, SHAPE_MAX},
                 {"head_dim", &s->head_dim, 1, SHAPE_MAX},
                 {"page_tok", &s->page_tok, 1, 255},
                 {"n_method", &r->n_method, 0, READING_METHODS_MAX}};
    if (r->n < 8 || memcmp(r->data, MAGIC, 8) != 0)
        return error_set(err, SAC_ERR_FORMAT, "%s: no recording: it does not begin with SACREAD",
                         r->path);
    if (r->n < HEADER_BYTES)
        return error_set(err, SAC_ERR_FORMAT, "%s: ends inside the header", r->path);
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) {
        r->at = 8 + 4 * i;
        *field[i].out = get_u32(r->data + r->at);
        if (*field[i].out < field[i].min || *field[i].out > field[i].max)
            return bad(r, err, field[i].name, *field[i].out);
    }
    r->at = HEADER_BYTES;
    TRY(read_name(r, &r->model, err));
    for (uint32_t i = 0; i < r->n_method; i++) TRY(read_name(r, &r->method[i], err));
    return SAC_OK;
}

sac_status reading_parse(struct reading *r, const uint8_t *data, size_t n, const char *path,
                         sac_error *err)
{
    *r = (struct reading){.path = path, .data = data, .n = n};
    const sac_status status = read_header(r, err);
    if (status != SAC_OK) reading_deinit(r);
    r->start = r->at;
    return status;
}

/* Pipes have no size to ask for, so the file is read in pieces. On an error the caller frees what
 * was read. */
static sac_status read_all(struct strbuf *out, const char *path, sac_error *err)
{
    char piece[1 << 16];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f)
        return error_set(err, errno == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO, "%s: %s", path,
                         strerror(errno));
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) strbuf_add(out, piece, n);
    const int problem = ferror(f) ? errno : 0;
    (void)fclose(f);
    if (problem) return error_set(err, SAC_ERR_IO, "%s: %s", path, strerror(problem));
    if (out->failed) return error_set(err, SAC_ERR_MEMORY, "%s: no memory to read it", path);
    return SAC_OK;
}

sac_status reading_load(struct reading *r, const char *path, sac_error *err)
{
    struct strbuf all = {0};
    *r = (struct reading){0};
    sac_status status = read_all(&all, path, err);
    if (status == SAC_OK) status = reading_parse(r, (const uint8_t *)all.data, all.n, path, err);
    if (status != SAC_OK) {
        strbuf_deinit(&all);
        return status;
    }
    r->owned = all.data;
    return SAC_OK;
}

void reading_deinit(struct reading *r)
{
    mem_free(r->model);
    for (size_t i = 0; i < READING_METHODS_MAX; i++) mem_free(r->method[i]);
    mem_free(r->owned);
    *r = (struct reading){0};
}

void reading_rewind(struct reading *r)
{
    r->at = r->start;
}

static void decode_head(struct reading_record *out, const uint8_t *h)
{
    *out = (struct reading_record){
        .method_i = (uint32_t)get_u(h + 4, 2),
        .kind = h[6] ? SAC_ROW_DECODE : SAC_ROW_PROMPT,
        .n_row = h[7],
        .sample_i = get_u32(h + 8),
        .seq = get_u32(h + 12),
        .pos = get_u32(h + 16),
        .layer = (uint32_t)get_u(h + 20, 2),
        .kv_head = (uint32_t)get_u(h + 22, 2),
        .n_page = get_u32(h + 24),
        .n_page_read = get_u32(h + 28),
        .mass = bits_float(get_u32(h + 32)),
        .out_err = bits_float(get_u32(h + 36)),
        .k_bytes = get_u(h + 40, 8),
        .v_bytes = get_u(h + 48, 8),
        .side_bytes = get_u(h + 56, 8),
        .select_us = bits_float(get_u32(h + 64)),
        .attend_us = bits_float(get_u32(h + 68)),
        .n_tok_seen = get_u32(h + 72),
        .n_tok_read = get_u32(h + 76),
        .read = h + RECORD_BYTES,
        .page_mass = h + RECORD_BYTES + bitmap_bytes(get_u32(h + 24)),
    };
}

/* Whether the number of set bits is n_page_read; bits after the last page must be 0. */
static bool bitmap_agrees(const struct reading_record *r)
{
    const size_t n = bitmap_bytes(r->n_page);
    uint32_t n_read = 0;
    for (size_t i = 0; i < n; i++) n_read += (uint32_t)__builtin_popcount(r->read[i]);
    const bool clean = r->n_page % 8 == 0 || r->read[n - 1] >> r->n_page % 8 == 0;
    return clean && n_read == r->n_page_read;
}

static sac_status check_record(const struct reading *r, const struct reading_record *rec,
                               sac_error *err)
{
    const uint8_t *h = r->data + r->at;
    const uint64_t last = (uint64_t)rec->pos + rec->n_row - 1;
    if (h[6] > 1) return bad(r, err, "kind", h[6]);
    if (rec->method_i >= r->n_method) return bad(r, err, "method", rec->method_i);
    if (rec->layer >= r->shape.n_layer) return bad(r, err, "layer", rec->layer);
    if (rec->kv_head >= r->shape.n_kv_head) return bad(r, err, "kv_head", rec->kv_head);
    if (rec->n_row == 0 || rec->pos % r->shape.page_tok + rec->n_row > r->shape.page_tok)
        return bad(r, err, "n_row", rec->n_row);
    if (rec->n_page != last / r->shape.page_tok + 1) return bad(r, err, "n_page", rec->n_page);
    if (!bitmap_agrees(rec)) return bad(r, err, "n_page_read", rec->n_page_read);
    const uint32_t n_before = (rec->n_page - 1) * r->shape.page_tok;
    if (rec->n_tok_seen > n_before) return bad(r, err, "n_tok_seen", rec->n_tok_seen);
    if (rec->n_tok_read > n_before) return bad(r, err, "n_tok_read", rec->n_tok_read);
    return SAC_OK;
}

sac_status reading_next(struct reading *r, struct reading_record *out, bool *out_more,
                        sac_error *err)
{
    const size_t left = r->n - r->at;
    *out_more = left > 0;
    if (left == 0) return SAC_OK;
    if (left < RECORD_BYTES)
        return error_set(err, SAC_ERR_FORMAT, "%s: byte %zu: ends inside a record", r->path, r->at);
    const uint32_t bytes = get_u32(r->data + r->at), n_page = get_u32(r->data + r->at + 24);
    if (n_page > PAGE_MAX) return bad(r, err, "n_page", n_page);
    if (bytes != record_bytes(n_page)) return bad(r, err, "the length of a record", bytes);
    if (bytes > left)
        return error_set(err, SAC_ERR_FORMAT, "%s: byte %zu: ends inside a record", r->path, r->at);
    decode_head(out, r->data + r->at);
    TRY(check_record(r, out, err));
    r->at += bytes;
    return SAC_OK;
}

bool reading_page_read(const struct reading_record *r, uint32_t page_i)
{
    assert(page_i < r->n_page);
    return r->read[page_i / 8] >> page_i % 8 & 1;
}

float reading_page_mass(const struct reading_record *r, uint32_t page_i)
{
    assert(page_i < r->n_page);
    return f16_to_f32((uint16_t)get_u(r->page_mass + 2 * (size_t)page_i, 2));
}
