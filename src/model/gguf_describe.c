/* gguf_describe.c: a GGUF file as text for people or as JSON for scripts, and the check of all of
 * its bytes. Implements sac_file_describe and sac_file_check.
 *
 * Strings of the file are hostile: they are always quoted, control characters (C0, DEL and C1,
 * which move a terminal's cursor) become \u escapes, and bytes that are not UTF-8 become U+FFFD.
 * One function thus writes strings for both forms, and the JSON is valid whatever the file holds.
 * 64-bit integers are written in full; JSON has no NaN, so such numbers are null there. */
#include "base/half.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "model/gguf.h"
#include "model/gguf_key.h"
#include "model/utf8.h"
#include "ops/quant.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_ELEMS  6u    /* of a long array */
#define SHOWN_BYTES  72u   /* of a long string, in text */
#define NAME_COLUMNS 44    /* of key names, in text; a longer one shifts the rest of its line */
#define CHUNK_ELEMS  4096u /* dequantised at a time by the check; a multiple of every block size */

/* ---- Strings and values ---- */

/* Appends one character of `n` bytes, escaped if necessary. */
static void put_char(struct strbuf *b, const char *s, size_t n)
{
    const unsigned char c = (unsigned char)s[0], next = n == 2 ? (unsigned char)s[1] : 0;
    if (c == '"' || c == '\\')
        strbuf_addf(b, "\\%c", c);
    else if (c == '\n')
        strbuf_adds(b, "\\n");
    else if (c == '\t')
        strbuf_adds(b, "\\t");
    else if (c < 0x20 || c == 0x7f)
        strbuf_addf(b, "\\u%04x", c);
    else if (c == 0xc2 && next < 0xa0)
        strbuf_addf(b, "\\u%04x", next);
    else
        strbuf_add(b, s, n);
}

/* Appends a quoted string, cut at a character's end after at most n_max bytes. */
static void put_string(struct strbuf *b, const char *s, size_t n, size_t n_max)
{
    size_t at = 0;
    strbuf_adds(b, "\"");
    while (at < n && at < n_max) {
        const size_t valid_end = at + utf8_valid_prefix(s + at, n - at);
        while (at < valid_end && at < n_max) {
            const size_t n_char = utf8_lead_bytes(s[at]);
            put_char(b, s + at, n_char);
            at += n_char;
        }
        if (at == valid_end && at < n && at < n_max) {
            strbuf_adds(b, "\\ufffd");
            at++;
        }
    }
    strbuf_adds(b, at < n ? "\"..." : "\"");
}

static void put_value(struct strbuf *b, const struct gguf_key *k, uint64_t i, size_t *string_at,
                      unsigned flags)
{
    const bool json = flags & SAC_FILE_JSON;
    if (k->type == GGUF_STRING) {
        struct gguf_str s = {0};
        /* Read in order and no further than n, so it cannot fail. */
        if (gguf_key_next_str(k, string_at, &s, NULL) == SAC_OK)
            put_string(b, s.s, s.n, json || flags & SAC_FILE_FULL ? SIZE_MAX : SHOWN_BYTES);
        return;
    }
    char text[GGUF_KEY_TEXT];
    gguf_key_format(k, i, text);
    const bool real = k->type == GGUF_F32 || k->type == GGUF_F64;
    strbuf_adds(b, json && real && strpbrk(text, "nN") ? "null" : text);
}

/* All values of a key, "[a, b, ...]" for an array. In JSON a shortened array just ends; its length
 * is given beside it. */
static void put_values(struct strbuf *b, const struct gguf_key *k, unsigned flags)
{
    size_t string_at = 0;
    const bool cut = !(flags & SAC_FILE_FULL) && k->n > SHOWN_ELEMS;
    const uint64_t n = cut ? SHOWN_ELEMS : k->n;
    if (k->is_array) strbuf_adds(b, "[");
    for (uint64_t i = 0; i < n; i++) {
        if (i > 0) strbuf_adds(b, ", ");
        put_value(b, k, i, &string_at, flags);
    }
    if (cut && !(flags & SAC_FILE_JSON)) strbuf_adds(b, ", ...");
    if (k->is_array) strbuf_adds(b, "]");
}

/* ---- Sums ---- */

static uint64_t n_elem_of(const struct gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* no overflow: checked at open */
}

static uint64_t n_elem_all(const struct gguf *g)
{
    uint64_t n = 0;
    for (size_t i = 0; i < gguf_n_tensor(g); i++) n += n_elem_of(gguf_tensor_at(g, i));
    return n;
}

/* ---- Text ---- */

static void text_summary(struct strbuf *b, const struct gguf *g)
{
    strbuf_addf(b,
                "version %u, alignment %u, %zu keys, %zu tensors, %" PRIu64 " elements, %" PRIu64
                " bytes in %u %s\n",
                gguf_version(g), gguf_alignment(g), gguf_n_key(g), gguf_n_tensor(g), n_elem_all(g),
                gguf_file_bytes(g), gguf_n_part(g), gguf_n_part(g) == 1 ? "file" : "files");
}

static void text_keys(struct strbuf *b, const struct gguf *g, unsigned flags)
{
    strbuf_adds(b, "\nKeys\n");
    for (size_t i = 0; i < gguf_n_key(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        char type[48];
        snprintf(type, sizeof type, k->is_array ? "%s[%" PRIu64 "]" : "%s",
                 gguf_key_type_name(k->type), k->n);
        strbuf_addf(b, "  %-*s %-12s ", NAME_COLUMNS, k->name, type);
        put_values(b, k, flags);
        strbuf_adds(b, "\n");
    }
}

static void text_tensors(struct strbuf *b, const struct gguf *g)
{
    strbuf_adds(b, "\nTensors: type, shape (fastest first), bytes, offset in the file\n");
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char shape[96];
        size_t n = 0;
        for (uint32_t d = 0; d < t->n_dim; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, d ? " x %" PRIu64 : "%" PRIu64,
                                  t->ne[d]);
        strbuf_addf(b, "  %-*s %-6s %-18s %11zu %12" PRIu64, NAME_COLUMNS - 8, t->name,
                    quant_name(t->type), shape, t->bytes, gguf_tensor_offset(g, t));
        if (gguf_n_part(g) > 1) strbuf_addf(b, " of part %u", t->part_i + 1);
        strbuf_adds(b, "\n");
    }
}

static void text_types(struct strbuf *b, const struct gguf *g)
{
    strbuf_adds(b, "\nTypes: tensors, elements, bytes\n");
    for (uint32_t type = 0; type <= QUANT_BF16; type++) {
        uint64_t n_tensor = 0, n_elem = 0, bytes = 0;
        for (size_t i = 0; i < gguf_n_tensor(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            if (t->type != type) continue;
            n_tensor++;
            n_elem += n_elem_of(t);
            bytes += t->bytes;
        }
        if (n_tensor)
            strbuf_addf(b, "  %-6s %6" PRIu64 " %14" PRIu64 " %14" PRIu64 "\n", quant_name(type),
                        n_tensor, n_elem, bytes);
    }
}

/* ---- JSON ---- */

static void json_string(struct strbuf *b, const char *s)
{
    put_string(b, s, strlen(s), SIZE_MAX);
}

/* The members that description and check have in common, without braces. */
static void json_summary(struct strbuf *b, const struct gguf *g)
{
    strbuf_adds(b, "\"path\": ");
    json_string(b, gguf_path(g));
    strbuf_addf(b,
                ", \"version\": %u, \"alignment\": %u, \"n_part\": %u, \"file_bytes\": %" PRIu64
                ", \"n_key\": %zu, \"n_tensor\": %zu, \"n_elem\": %" PRIu64,
                gguf_version(g), gguf_alignment(g), gguf_n_part(g), gguf_file_bytes(g),
                gguf_n_key(g), gguf_n_tensor(g), n_elem_all(g));
}

static void json_keys(struct strbuf *b, const struct gguf *g, unsigned flags)
{
    strbuf_adds(b, ",\n \"keys\": [");
    for (size_t i = 0; i < gguf_n_key(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        strbuf_adds(b, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
        json_string(b, k->name);
        strbuf_addf(b, ", \"type\": \"%s\", \"array\": %s, \"n\": %" PRIu64 ", \"value\": ",
                    gguf_key_type_name(k->type), k->is_array ? "true" : "false", k->n);
        put_values(b, k, flags);
        strbuf_adds(b, "}");
    }
    strbuf_adds(b, "]");
}

static void json_tensors(struct strbuf *b, const struct gguf *g)
{
    strbuf_adds(b, ",\n \"tensors\": [");
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        strbuf_adds(b, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
        json_string(b, t->name);
        strbuf_addf(b, ", \"type\": \"%s\", \"shape\": [", quant_name(t->type));
        for (uint32_t d = 0; d < t->n_dim; d++)
            strbuf_addf(b, d ? ", %" PRIu64 : "%" PRIu64, t->ne[d]);
        strbuf_addf(b, "], \"bytes\": %zu, \"part\": %u, \"offset\": %" PRIu64 "}", t->bytes,
                    t->part_i, gguf_tensor_offset(g, t));
    }
    strbuf_adds(b, "]");
}

/* ---- The check ---- */

static bool is_finite(float f)
{
    return (float_bits(f) & 0x7f800000u) != 0x7f800000u;
}

/* A tensor's rows are whole blocks one after another, so it is read as one long row. */
static sac_status check_tensor(const struct gguf *g, const struct gguf_tensor *t, float *buf,
                               sac_error *err)
{
    const uint64_t n_elem = n_elem_of(t);
    uint64_t n_bad = 0, first_bad = 0;
    const uint8_t *src = t->data;
    for (uint64_t at = 0; at < n_elem; at += CHUNK_ELEMS) {
        const size_t n = n_elem - at < CHUNK_ELEMS ? (size_t)(n_elem - at) : CHUNK_ELEMS;
        quant_dequant_row(buf, t->type, src, n);
        src += quant_row_bytes(t->type, n);
        for (size_t i = 0; i < n; i++)
            if (!is_finite(buf[i]) && n_bad++ == 0) first_bad = at + i;
    }
    gguf_tensor_release(g, t);
    if (n_bad == 0) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT,
                     "%s: tensor '%s' (%s): %" PRIu64 " of %" PRIu64
                     " values are not finite, the first in row %" PRIu64 ", column %" PRIu64,
                     gguf_part_path(g, t->part_i), t->name, quant_name(t->type), n_bad, n_elem,
                     first_bad / t->ne[0], first_bad % t->ne[0]);
}

static sac_status check_model(const struct gguf *g, sac_error *err)
{
    struct gguf_str arch;
    sac_status status = gguf_get_str(g, "general.architecture", &arch, err);
    if (status != SAC_OK) return status;
    float *buf = mem_calloc(CHUNK_ELEMS, sizeof *buf);
    if (!buf) return error_set(err, SAC_ERR_MEMORY, "%s: no memory to check it", gguf_path(g));
    for (size_t i = 0; status == SAC_OK && i < gguf_n_tensor(g); i++)
        status = check_tensor(g, gguf_tensor_at(g, i), buf, err);
    mem_free(buf);
    return status;
}

/* ---- Public ---- */

/* Returns the text, or an error if there was no memory for it. */
static sac_status finish(struct strbuf *b, const char *path, char **out_text, sac_error *err)
{
    char *text = strbuf_detach(b, NULL);
    if (!text) return error_set(err, SAC_ERR_MEMORY, "%s: no memory to describe it", path);
    *out_text = text;
    return SAC_OK;
}

sac_status sac_file_describe(const char *path, unsigned flags, char **out_text, sac_error *err)
{
    struct gguf *g = NULL;
    struct strbuf b = {0};
    TRY(gguf_open(&g, path, err));
    if (flags & SAC_FILE_JSON) {
        strbuf_adds(&b, "{");
        json_summary(&b, g);
        json_keys(&b, g, flags);
        json_tensors(&b, g);
        strbuf_adds(&b, "}\n");
    } else {
        strbuf_addf(&b, "%s\n", gguf_path(g));
        text_summary(&b, g);
        text_keys(&b, g, flags);
        text_tensors(&b, g);
        text_types(&b, g);
    }
    gguf_close(g);
    return finish(&b, path, out_text, err);
}

sac_status sac_file_check(const char *path, unsigned flags, char **out_text, sac_error *err)
{
    struct gguf *g = NULL;
    struct strbuf b = {0};
    TRY(gguf_open(&g, path, err));
    const sac_status status = check_model(g, err);
    if (flags & SAC_FILE_JSON) {
        strbuf_adds(&b, "{\"ok\": true, ");
        json_summary(&b, g);
        strbuf_adds(&b, "}\n");
    } else {
        strbuf_addf(&b, "%s: ok: ", gguf_path(g));
        text_summary(&b, g);
    }
    gguf_close(g);
    if (status == SAC_OK) return finish(&b, path, out_text, err);
    strbuf_deinit(&b);
    return status;
}
