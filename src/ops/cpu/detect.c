/* detect.c: CPU features by CPUID and XGETBV on x86, by the kernel's HWCAP words on aarch64.
 *
 * Rules:
 *  1. Never by CPU family or model: virtual machines lie about those and not about feature bits.
 *  2. A feature counts only if the system saves its registers (XCR0), and AMX only after the kernel
 *     has granted this process the tile data, which is off by default.
 *  3. No compiler built-in: those of clang 14 do not know AVX512-FP16, AMX or AVX-VNNI.
 * It does not choose kernels; ops.c does. */
#include "ops/cpu/detect.h"

#include <stdbool.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* from newer kernels' <asm/prctl.h> */
#define XFEATURE_XTILEDATA  18

#define XCR0_AVX    0x6ull     /* SSE and AVX state */
#define XCR0_AVX512 0xe0ull    /* opmask, upper halves, upper sixteen */
#define XCR0_AMX    0x60000ull /* tile configuration and data */

struct cpuid {
    uint32_t eax, ebx, ecx, edx;
};

/* Zeros for a leaf or subleaf that the CPU does not have. */
static struct cpuid ask(uint32_t leaf, uint32_t subleaf)
{
    struct cpuid r = {0};
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return (struct cpuid){0};
    return r;
}

static bool has(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Requests permission for tile data; a kernel before 5.16 or a seccomp filter denies it. */
static bool amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

uint32_t detect_features(void)
{
    const struct cpuid one = ask(1, 0);
    if (!has(one.ecx, 1u << 27)) return 0; /* OSXSAVE: without it XGETBV does not exist */
    const uint64_t xcr0 = read_xcr0();
    const struct cpuid seven = ask(7, 0);
    const struct cpuid seven1 = seven.eax >= 1 ? ask(7, 1) : (struct cpuid){0};
    uint32_t f = 0;

    const bool avx2 = has(one.ecx, 1u << 12 /* FMA */ | 1u << 28 /* AVX */ | 1u << 29 /* F16C */) &&
                      has(seven.ebx, 1u << 5 /* AVX2 */ | 1u << 8 /* BMI2 */);
    if (!avx2 || (xcr0 & XCR0_AVX) != XCR0_AVX) return f;
    f |= DETECT_AVX2;
    if (has(seven1.eax, 1u << 4)) f |= DETECT_AVX_VNNI;

    const bool avx512 = has(seven.ebx, 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ |
                                           1u << 31 /* VL */) &&
                        has(seven.ecx, 1u << 1 /* VBMI */ | 1u << 11 /* VNNI */) &&
                        has(seven1.eax, 1u << 5 /* BF16 */);
    if (!avx512 || (xcr0 & XCR0_AVX512) != XCR0_AVX512) return f;
    f |= DETECT_AVX512;
    if (!has(seven.edx, 1u << 23)) return f;
    f |= DETECT_AVX512_FP16;

    const bool amx =
        has(seven.edx, 1u << 22 /* BF16 */ | 1u << 24 /* TILE */ | 1u << 25 /* INT8 */);
    if (!amx || (xcr0 & XCR0_AMX) != XCR0_AMX || !amx_permitted()) return f;
    f |= DETECT_AMX;
    if (has(seven1.eax, 1u << 21)) f |= DETECT_AMX_FP16;
    return f;
}

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

uint32_t detect_features(void)
{
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    uint32_t f = 0;
    if (cap & HWCAP_ASIMD) f |= DETECT_NEON;
    if (cap & HWCAP_ASIMDDP) f |= DETECT_NEON_DOTPROD;
    if (cap & HWCAP_ASIMDHP) f |= DETECT_NEON_FP16;
    if (cap2 & HWCAP2_I8MM) f |= DETECT_NEON_I8MM;
    return f;
}

#else

uint32_t detect_features(void)
{
    return 0;
}

#endif
