/* gguf_parse.h: the bytes of one GGUF file become checked tables of keys and tensors. Knows nothing
 * of files or of splits; gguf.c joins parts. */
#ifndef SAC_MODEL_GGUF_PARSE_H
#define SAC_MODEL_GGUF_PARSE_H

#include "model/gguf.h"
#include "model/gguf_names.h"

/* Limits on what a file may claim. Real models are far below them; a file that exceeds one is
 * refused before anything of that size is allocated or walked. */
#define GGUF_KEYS_MAX         ((uint64_t)1 << 16)
#define GGUF_TENSORS_MAX      ((uint64_t)1 << 20)
#define GGUF_STRINGS_MAX      ((size_t)64 << 20) /* bytes of all names and string values of a file */
#define GGUF_KEY_NAME_MAX     65535u             /* the format's own limit */
#define GGUF_TENSOR_NAME_MAX  64u                /* the format's own limit */
#define GGUF_ALIGNMENT_MIN    8u
#define GGUF_ALIGNMENT_MAX    (1u << 20)
#define GGUF_ALIGNMENT_UNSAID 32u /* the alignment of a file that does not state one */

struct gguf_part {
    const char *path;    /* names the file in messages; borrowed */
    const uint8_t *base; /* [bytes], the whole file; borrowed */
    size_t bytes;
    /* Filled by gguf_parse: */
    uint32_t version, alignment;
    struct gguf_key *keys; /* [n_key], owned, names owned */
    size_t n_key;
    struct gguf_names key_names;
    struct gguf_tensor *tensors; /* [n_tensor], owned, names owned; part_i is left 0 */
    size_t n_tensor;
};

/* Fills the part from path, base and bytes; the other members must be zero. Names of tensors may
 * still occur twice: gguf.c checks that over all parts. After a failure only gguf_parse_deinit may
 * be called. */
sac_status gguf_parse(struct gguf_part *p, sac_error *err);
void gguf_parse_deinit(struct gguf_part *p);

#endif
