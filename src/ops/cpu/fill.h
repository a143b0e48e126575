/* fill.h: the functions that put kernels into the op table, one per file of kernels.
 *
 * Contract: ops_init_isa calls them from the lowest set to the highest, only for sets that this CPU
 * has (ops/cpu/detect.h). Each overwrites the slots for which its file has something better and
 * leaves the rest. Those of `ref` together fill every slot; they are declared in ops.h because
 * tests compare against them. */
#ifndef SAC_OPS_CPU_FILL_H
#define SAC_OPS_CPU_FILL_H

#include "ops/ops.h"

void ops_fill_avx2_linear(struct ops *o);
void ops_fill_avx2_attn(struct ops *o);
void ops_fill_avx2_small(struct ops *o);
void ops_fill_avx2_score(struct ops *o);
void ops_fill_avx2_share(struct ops *o);
void ops_fill_avx2_best(struct ops *o);
void ops_fill_avx2_draw(struct ops *o);
void ops_fill_avx2_dots(struct ops *o);
void ops_fill_avx2_blend(struct ops *o);
void ops_fill_avx2_weigh(struct ops *o);
void ops_fill_avx2_survey(struct ops *o);

void ops_fill_avx512_linear(struct ops *o);
void ops_fill_avx512_attn(struct ops *o);
void ops_fill_avx512_small(struct ops *o);
void ops_fill_avx512_score(struct ops *o);
void ops_fill_avx512_share(struct ops *o);
void ops_fill_avx512_best(struct ops *o);
void ops_fill_avx512_draw(struct ops *o);
void ops_fill_avx512_dots(struct ops *o);
void ops_fill_avx512_blend(struct ops *o);
void ops_fill_avx512_weigh(struct ops *o);
void ops_fill_avx512_survey(struct ops *o);

void ops_fill_amx_linear(struct ops *o);
void ops_fill_amx_dots(struct ops *o);
void ops_fill_amx_attn(struct ops *o);
void ops_fill_amx_share(struct ops *o);
void ops_fill_amx_survey(struct ops *o);

void ops_fill_neon_linear(struct ops *o);
void ops_fill_neon_small(struct ops *o);

/* The dots slot of AVX-512, for rows that are too wide for tiles. */
void dots_avx512_run(const struct op_dots *op);

#endif
