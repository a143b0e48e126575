/* gguf.h: a GGUF file (v2, v3, little-endian, maybe split), mapped and checked. Every count,
 * length, offset and product of the file is verified before use: the file is hostile input.
 *
 * Pointers handed out are borrowed from the mapping and live until gguf_close. Strings of the file
 * are not NUL terminated; keys and tensor names are copied and are. Read-only after open, so any
 * number of threads may read. */
#ifndef SAC_MODEL_GGUF_H
#define SAC_MODEL_GGUF_H

#include "base/status.h"

#include <stdint.h>

#define GGUF_DIMS_MAX 4u

/* Value types by their id in the file. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf;

struct gguf_str {
    const char *s; /* [n] not necessarily UTF-8 */
    size_t n;
};

struct gguf_key {
    const char *name;
    enum gguf_type type; /* of the value; of the elements when is_array */
    bool is_array;
    uint64_t n;          /* elements; 1 for a scalar */
    const uint8_t *data; /* packed, unaligned; of strings, each its u64 length and its bytes */
    size_t bytes;        /* of data */
};

struct gguf_tensor {
    const char *name;
    uint32_t type;              /* GGUF id; quant_supported() was checked at open */
    uint32_t n_dim;             /* 1..4 */
    uint64_t ne[GGUF_DIMS_MAX]; /* fastest first: ne[0] inputs, ne[1] outputs; 1 beyond n_dim */
    const uint8_t *data;        /* [bytes], inside the mapping */
    size_t bytes;
    uint32_t part_i; /* which file of a split model */
};

/* Opens a file. Any part of a split model may be named, and all parts are opened. A tensor of an
 * unsupported type is refused by name. */
sac_status gguf_open(struct gguf **out, const char *path, sac_error *err);
/* The same for bytes in memory (fuzzing); `data` is borrowed. */
sac_status gguf_open_memory(struct gguf **out, const uint8_t *data, size_t n, sac_error *err);
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g);
uint32_t gguf_alignment(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g); /* all parts */
uint32_t gguf_n_part(const struct gguf *g);
const char *gguf_part_path(const struct gguf *g, uint32_t part_i);
size_t gguf_n_key(const struct gguf *g);
const struct gguf_key *gguf_key_at(const struct gguf *g, size_t i);
const struct gguf_key *gguf_key_find(const struct gguf *g, const char *name); /* NULL: absent */
size_t gguf_n_tensor(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);

/* The offset of the tensor's bytes in the file of its part. */
uint64_t gguf_tensor_offset(const struct gguf *g, const struct gguf_tensor *t);

/* Typed reads. Any integer type is accepted for an integer, any numeric type for a float, if the
 * value fits; otherwise SAC_ERR_FORMAT names key, type and value. A missing key is
 * SAC_ERR_NOT_FOUND with a message; callers with a default test gguf_key_find first. */
sac_status gguf_get_u32(const struct gguf *g, const char *name, uint32_t *out, sac_error *err);
sac_status gguf_get_f32(const struct gguf *g, const char *name, float *out, sac_error *err);
sac_status gguf_get_bool(const struct gguf *g, const char *name, bool *out, sac_error *err);
sac_status gguf_get_str(const struct gguf *g, const char *name, struct gguf_str *out,
                        sac_error *err);
/* Element i of an array (or the scalar, for i = 0), under the same rules. */
sac_status gguf_key_u32(const struct gguf_key *k, uint64_t i, uint32_t *out, sac_error *err);
sac_status gguf_key_i32(const struct gguf_key *k, uint64_t i, int32_t *out, sac_error *err);
sac_status gguf_key_f32(const struct gguf_key *k, uint64_t i, float *out, sac_error *err);
/* Walks a string array (or a scalar string): start with *at = 0, call n times. O(1) a call. */
sac_status gguf_key_next_str(const struct gguf_key *k, size_t *at, struct gguf_str *out,
                             sac_error *err);

/* Tells the system that a tensor's bytes are no longer needed. */
void gguf_tensor_release(const struct gguf *g, const struct gguf_tensor *t);

#endif
