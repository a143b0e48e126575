/* detect.h: the features that this CPU has and the operating system allows, determined at run time.
 *
 * Contract: thread safe and stateless. A call costs some microseconds (CPUID traps in a virtual
 * machine), so call it once when filling a table, not in a kernel. */
#ifndef SAC_OPS_CPU_DETECT_H
#define SAC_OPS_CPU_DETECT_H

#include <stdint.h>

/* Each x86 bit stands for a whole set: exactly what files of that ISA are compiled with. */
enum detect_feature {
    DETECT_AVX2 = 1u << 0,        /* AVX2, FMA, F16C, BMI2 */
    DETECT_AVX_VNNI = 1u << 1,    /* VPDPBUSD on 256 bits, VEX coded */
    DETECT_AVX512 = 1u << 2,      /* AVX512 F BW DQ VL VNNI VBMI BF16, and DETECT_AVX2 */
    DETECT_AVX512_FP16 = 1u << 3, /* and DETECT_AVX512 */
    DETECT_AMX = 1u << 4,         /* AMX TILE INT8 BF16, permitted, and DETECT_AVX512_FP16 */
    DETECT_AMX_FP16 = 1u << 5,    /* TDPFP16PS, and DETECT_AMX */
    DETECT_NEON = 1u << 8,
    DETECT_NEON_DOTPROD = 1u << 9,
    DETECT_NEON_FP16 = 1u << 10,
    DETECT_NEON_I8MM = 1u << 11,
};

/* The set of enum detect_feature. On x86 the first call asks the kernel to let this process use
 * AMX tiles; the permission covers all its threads. */
uint32_t detect_features(void);

#endif
