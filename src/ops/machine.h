/* machine.h: the limits of this machine, measured now: the reference for kernels.
 *
 * Numbers from a data sheet would be wrong on a shared or throttled host; a share of the limit is
 * meaningful only if both were measured in the same run with the same threads. */
#ifndef SAC_OPS_MACHINE_H
#define SAC_OPS_MACHINE_H

#include "base/workers.h"

/* Rates of all workers together, in 1e9 per second; a multiply-add counts as two operations. 0 for
 * what the CPU or the operating system does not have. */
struct machine_limits {
    double read_gb;   /* bytes read from memory, from a buffer larger than the caches */
    double avx2_f32;  /* 256-bit FMA */
    double avx2_int8; /* 256-bit VPDPBUSD (AVX-VNNI), or VPMADDUBSW + VPMADDWD + VPADDD before it */
    double avx512_f32;  /* 512-bit FMA */
    double avx512_int8; /* VPDPBUSD */
    double avx512_bf16; /* VDPBF16PS */
    double amx_bf16;    /* TDPBF16PS */
    double amx_int8;    /* TDPBSSD */
    double neon_f32;    /* 128-bit FMLA */
    double neon_int8;   /* SDOT */
};

/* Takes about half a second and, temporarily, a buffer of up to 512 MiB. The machine must be idle
 * for the numbers to be limits. */
sac_status machine_measure(struct machine_limits *out, struct workers *pool, sac_error *err);

#endif
