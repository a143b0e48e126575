/* math_constants.h: CUDA's, as far as src/ops/cuda uses it. */
#ifndef SAC_TESTS_MATH_CONSTANTS_H
#define SAC_TESTS_MATH_CONSTANTS_H

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")

#endif
