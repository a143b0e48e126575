/* gguf_key.c: typed reads of key values.
 *
 * A value is first widened without loss to one of three kinds (signed 64, unsigned 64, double),
 * then narrowed to what the caller wants if it fits. So a file may store a count as u8 or i64, and
 * -1 or 2^40 where a u32 belongs is an error that shows the value. Relies on gguf_parse.c: `data`
 * holds `bytes` valid bytes of `n` values. */
#include "model/gguf_key.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *gguf_key_type_name(uint32_t type)
{
    static const char *const names[] = {"u8",   "i8",  "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "str", "array", "u64", "i64", "f64"};
    return type < sizeof names / sizeof *names ? names[type] : "unknown";
}

size_t gguf_key_type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

uint32_t gguf_key_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t gguf_key_load_u64(const uint8_t *p)
{
    return gguf_key_load_u32(p) | (uint64_t)gguf_key_load_u32(p + 4) << 32;
}

struct number {
    enum { NUMBER_NONE, NUMBER_SIGNED, NUMBER_UNSIGNED, NUMBER_REAL } kind;
    int64_t i;
    uint64_t u;
    double d;
};

static struct number as_signed(int64_t i)
{
    return (struct number){.kind = NUMBER_SIGNED, .i = i};
}

static struct number as_unsigned(uint64_t u)
{
    return (struct number){.kind = NUMBER_UNSIGNED, .u = u};
}

static struct number as_real(double d)
{
    return (struct number){.kind = NUMBER_REAL, .d = d};
}

static struct number load(const struct gguf_key *k, uint64_t i)
{
    const size_t bytes = gguf_key_type_bytes(k->type);
    const uint8_t *p = k->data + (size_t)i * bytes;
    float f;
    double d;
    switch (k->type) {
    case GGUF_U8: return as_unsigned(p[0]);
    case GGUF_I8: return as_signed((int8_t)p[0]);
    case GGUF_U16: return as_unsigned((uint16_t)(p[0] | p[1] << 8));
    case GGUF_I16: return as_signed((int16_t)(p[0] | p[1] << 8));
    case GGUF_U32: return as_unsigned(gguf_key_load_u32(p));
    case GGUF_I32: return as_signed((int32_t)gguf_key_load_u32(p));
    case GGUF_U64: return as_unsigned(gguf_key_load_u64(p));
    case GGUF_I64: return as_signed((int64_t)gguf_key_load_u64(p));
    case GGUF_F32: memcpy(&f, p, sizeof f); return as_real((double)f);
    case GGUF_F64: memcpy(&d, p, sizeof d); return as_real(d);
    case GGUF_BOOL:
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
    return (struct number){.kind = NUMBER_NONE};
}

/* The shortest decimal that is read back as the same number; `single` for an f32. */
static void format_real(double d, bool single, char out[GGUF_KEY_TEXT])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, GGUF_KEY_TEXT, "%.*g", digits, d);
        const double back = strtod(out, NULL);
        if (back == d || (single && (float)back == (float)d)) return;
    }
}

void gguf_key_format(const struct gguf_key *k, uint64_t i, char out[GGUF_KEY_TEXT])
{
    assert(out && i < k->n);
    const struct number v = load(k, i);
    switch (v.kind) {
    case NUMBER_NONE:
        assert(k->type == GGUF_BOOL);
        snprintf(out, GGUF_KEY_TEXT, "%s", k->data[i] ? "true" : "false");
        break;
    case NUMBER_SIGNED: snprintf(out, GGUF_KEY_TEXT, "%" PRId64, v.i); break;
    case NUMBER_UNSIGNED: snprintf(out, GGUF_KEY_TEXT, "%" PRIu64, v.u); break;
    case NUMBER_REAL: format_real(v.d, k->type == GGUF_F32, out); break;
    }
}

/* An error that names the value of element `i` and the type that was wanted. */
static sac_status mismatch(const struct gguf_key *k, uint64_t i, const char *want, sac_error *err)
{
    char text[GGUF_KEY_TEXT] = "";
    const char *type = gguf_key_type_name(k->type), *of_type = "";
    if (k->type != GGUF_STRING && i < k->n) {
        gguf_key_format(k, i, text);
        of_type = " of type ";
    }
    if (k->is_array)
        return error_set(err, SAC_ERR_FORMAT, "key '%.128s': element %" PRIu64 " is %s%s%s, not %s",
                         k->name, i, text, of_type, type, want);
    return error_set(err, SAC_ERR_FORMAT, "key '%.128s': the value is %s%s%s, not %s", k->name,
                     text, of_type, type, want);
}

static sac_status check_index(const struct gguf_key *k, uint64_t i, sac_error *err)
{
    if (i < k->n) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT,
                     "key '%.128s': element %" PRIu64 " is needed, there are only %" PRIu64,
                     k->name, i, k->n);
}

/* An integer within lo..hi (lo <= 0 <= hi), as two's complement. */
static sac_status read_integer(const struct gguf_key *k, uint64_t i, int64_t lo, uint64_t hi,
                               int64_t *out, sac_error *err)
{
    assert(lo <= 0 && hi <= INT64_MAX);
    TRY(check_index(k, i, err));
    const struct number v = load(k, i);
    const bool fits = (v.kind == NUMBER_UNSIGNED && v.u <= hi) ||
                      (v.kind == NUMBER_SIGNED && v.i >= lo && v.i <= (int64_t)hi);
    if (!fits) {
        char want[80];
        snprintf(want, sizeof want, "an integer in %" PRId64 "..%" PRIu64, lo, hi);
        return mismatch(k, i, want, err);
    }
    *out = v.kind == NUMBER_UNSIGNED ? (int64_t)v.u : v.i;
    return SAC_OK;
}

sac_status gguf_key_u32(const struct gguf_key *k, uint64_t i, uint32_t *out, sac_error *err)
{
    int64_t v = 0;
    TRY(read_integer(k, i, 0, UINT32_MAX, &v, err));
    *out = (uint32_t)v;
    return SAC_OK;
}

sac_status gguf_key_i32(const struct gguf_key *k, uint64_t i, int32_t *out, sac_error *err)
{
    int64_t v = 0;
    TRY(read_integer(k, i, INT32_MIN, INT32_MAX, &v, err));
    *out = (int32_t)v;
    return SAC_OK;
}

sac_status gguf_key_f32(const struct gguf_key *k, uint64_t i, float *out, sac_error *err)
{
    TRY(check_index(k, i, err));
    const struct number v = load(k, i);
    double d = 0;
    switch (v.kind) {
    case NUMBER_NONE: return mismatch(k, i, "a number", err);
    case NUMBER_SIGNED: d = (double)v.i; break;
    case NUMBER_UNSIGNED: d = (double)v.u; break;
    case NUMBER_REAL: d = v.d; break;
    }
    /* NaN and infinities are returned; checking ranges is the caller's task. */
    if (isfinite(d) && fabs(d) > (double)FLT_MAX)
        return mismatch(k, i, "a number within the range of f32", err);
    *out = (float)d;
    return SAC_OK;
}

sac_status gguf_key_next_str(const struct gguf_key *k, size_t *at, struct gguf_str *out,
                             sac_error *err)
{
    if (k->type != GGUF_STRING) return mismatch(k, 0, "a string", err);
    if (*at >= k->bytes)
        return error_set(err, SAC_ERR_FORMAT,
                         "key '%.128s': a string more is needed than the %" PRIu64 " there are",
                         k->name, k->n);
    assert(k->bytes - *at >= 8);
    const uint64_t n = gguf_key_load_u64(k->data + *at);
    assert(n <= k->bytes - *at - 8);
    out->s = (const char *)k->data + *at + 8;
    out->n = (size_t)n;
    *at += 8 + (size_t)n;
    return SAC_OK;
}
