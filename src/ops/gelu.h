/* gelu.h: the constants of GELU in its tanh form, 0.5 x (1 + tanh u) with
 * u = GELU_SQRT_2_OVER_PI (x + GELU_CUBIC x^3) (Hendrycks and Gimpel, 2016). For kernels of every
 * backend. */
#ifndef SAC_OPS_GELU_H
#define SAC_OPS_GELU_H

#define GELU_SQRT_2_OVER_PI 0.79788456080286536f
#define GELU_CUBIC          0.044715f

#endif
