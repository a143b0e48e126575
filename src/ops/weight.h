/* weight.h: a weight matrix as the kernels read it, repacked at load from the file's rows.
 *
 * One layout serves every SIMD ISA and the scalar reference, so a file is packed once and any
 * SAC_CPU mask runs on it. It must be lossless: `weight_unpack_row` gives bit for bit what
 * quant_dequant_row gives for the file's row. Groups of 16 output rows are interleaved; inside a
 * group, a block of 32 inputs is stored as k-quads: 4 consecutive inputs of row 0, of row 1, ...
 * row 15 fill one 64-byte line at 8 bits (the shape of VPDPBUSD, and one shuffle from an AMX tile
 * of 16-bit pairs). weight_layout.h describes planes and scales per type. Rows are padded to 16
 * with zeros. */
#ifndef SAC_OPS_WEIGHT_H
#define SAC_OPS_WEIGHT_H

#include "base/workers.h"
#include "ops/quant.h"

#define WEIGHT_GROUP 16u /* output rows interleaved */

struct weight {
    enum quant_type type; /* of the file */
    uint32_t n_out, n_in; /* y [n_out] = W [n_out, n_in] x [n_in] */
    uint32_t n_group;     /* ceil(n_out / 16) */
    size_t group_bytes;   /* of one packed group, a multiple of 64 */
    uint8_t *data;        /* [n_group][group_bytes], 64-byte aligned; owned by the weight store */
    /* On a GPU with enough memory: the matrix in f16, each output times its shrink, [n_group * 16,
     * n_in rounded up to blocks of 32]; owned by the place. NULL: none. */
    void *plain;
};

/* Sets every field but `data`; `plain` is NULL. n_in must be a multiple of the type's block
 * (checked by the caller with a message; asserted here). */
void weight_init(struct weight *w, enum quant_type type, uint32_t n_out, uint32_t n_in);
static inline size_t weight_bytes(const struct weight *w)
{
    return (size_t)w->n_group * w->group_bytes;
}
/* Bytes of `plain`. */
size_t weight_plain_bytes(const struct weight *w);
/* Groups first .. first + n - 1, or as many as exist, as a separate matrix that shares the data. */
struct weight weight_piece(const struct weight *w, uint32_t first, uint32_t n);
/* Granularity of cuts along the inputs: a block with a scale of its own, at least 32. */
uint32_t weight_cut_unit(enum quant_type type);
/* Copies inputs [first, first + to->n_in) of all rows of `from` to to->data. Both ends are
 * multiples of weight_cut_unit, or the end of the row. The bits of the values are unchanged. */
void weight_cut(const struct weight *to, const struct weight *from, uint32_t first);
/* Packs rows `src` [n_out, n_in] (file order) into w->data, in parallel over groups. */
void weight_pack(struct workers *pool, const struct weight *w, const void *src);
/* dst [n_in] = row `out_i` in f32. */
void weight_unpack_row(float *dst, const struct weight *w, uint32_t out_i);

#endif
