/* gguf_key.h: value types of keys: their names and sizes. The typed reads are in gguf.h. */
#ifndef SAC_MODEL_GGUF_KEY_H
#define SAC_MODEL_GGUF_KEY_H

#include "model/gguf.h"

/* "u32", "str" and so on; "unknown" for ids that the format does not have. */
const char *gguf_key_type_name(uint32_t type);
/* Bytes of one value; 0 for strings, arrays and unknown ids. */
size_t gguf_key_type_bytes(uint32_t type);

/* Number or bool `i` as text: the shortest form that is read back the same, "nan", "inf",
 * "true". */
#define GGUF_KEY_TEXT 40u
void gguf_key_format(const struct gguf_key *k, uint64_t i, char out[GGUF_KEY_TEXT]);

/* Little-endian, any address. */
uint32_t gguf_key_load_u32(const uint8_t *p);
uint64_t gguf_key_load_u64(const uint8_t *p);

#endif
