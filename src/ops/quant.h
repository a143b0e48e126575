/* quant.h: the tensor types of a GGUF file and their exact meaning in f32.
 *
 * A row of `n` elements is n / quant_block_elems blocks of quant_block_bytes each, in file order.
 * The scalar functions here are the definition of correct: every packed layout and kernel is tested
 * against `quant_dequant_row`, which is tested bit for bit against the `gguf` Python package. */
#ifndef SAC_OPS_QUANT_H
#define SAC_OPS_QUANT_H

#include "base/status.h"

#include <stdint.h>

/* Ids as GGUF stores them. */
enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_IQ4_NL = 20,
    QUANT_IQ4_XS = 23,
    QUANT_BF16 = 30,
};

/* Names of GGUF type ids, for example "Q4_K", also for unsupported types; NULL for unknown ids. */
const char *quant_name(uint32_t type);
/* True for the types of the enum above. */
bool quant_supported(uint32_t type);
/* Elements and bytes of one block; both 0 for a type that is not supported. */
uint32_t quant_block_elems(uint32_t type);
uint32_t quant_block_bytes(uint32_t type);
/* Bytes of a row of `n` elements; n must be a multiple of quant_block_elems. */
size_t quant_row_bytes(uint32_t type, size_t n);

/* dst [n] = the row's values in f32; the type must be supported, n a multiple of its block. */
void quant_dequant_row(float *dst, uint32_t type, const void *src, size_t n);

#endif
