/* ops.c: fills the op table once, from the lowest instruction set to the highest allowed.
 *
 * Invariants:
 *  1. `ref` comes first and fills every slot, so a higher set may leave out what it does not
 *     improve.
 *  2. A set is filled only if the CPU has all features of its row, and only after the sets below
 *     it: the rows form a chain, so a name means "this set and all below".
 *  3. No state: two tables of different sets can exist side by side (tests do that).
 *
 * It does not know what a kernel does; ops/cpu/fill.h lists the files that fill slots. */
#include "ops/ops.h"

#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ISA_NAMES "ref, avx2, avx512, amx or neon"

struct isa {
    const char *name;
    uint32_t features; /* all of them are required */
    void (*fill)(struct ops *o);
};

static void fill_ref(struct ops *o)
{
    ops_fill_ref_small(o);
    ops_fill_ref_linear(o);
    ops_fill_ref_attn(o);
    ops_fill_ref_score(o);
    ops_fill_ref_best(o);
    ops_fill_ref_draw(o);
    ops_fill_ref_dots(o);
    ops_fill_ref_blend(o);
    ops_fill_ref_weigh(o);
    ops_fill_ref_survey(o);
    ops_fill_lanes(o);
}

#if defined(__x86_64__)
static void fill_avx2(struct ops *o)
{
    ops_fill_avx2_small(o);
    ops_fill_avx2_linear(o);
    ops_fill_avx2_attn(o);
    ops_fill_avx2_score(o);
    ops_fill_avx2_share(o);
    ops_fill_avx2_best(o);
    ops_fill_avx2_draw(o);
    ops_fill_avx2_dots(o);
    ops_fill_avx2_blend(o);
    ops_fill_avx2_weigh(o);
    ops_fill_avx2_survey(o);
}

static void fill_avx512(struct ops *o)
{
    ops_fill_avx512_small(o);
    ops_fill_avx512_linear(o);
    ops_fill_avx512_attn(o);
    ops_fill_avx512_score(o);
    ops_fill_avx512_share(o);
    ops_fill_avx512_best(o);
    ops_fill_avx512_draw(o);
    ops_fill_avx512_dots(o);
    ops_fill_avx512_blend(o);
    ops_fill_avx512_weigh(o);
    ops_fill_avx512_survey(o);
}

static void fill_amx(struct ops *o)
{
    ops_fill_amx_attn(o);
    ops_fill_amx_linear(o);
    ops_fill_amx_dots(o);
    ops_fill_amx_share(o);
    ops_fill_amx_survey(o);
}
#elif defined(__aarch64__)
static void fill_neon(struct ops *o)
{
    ops_fill_neon_small(o);
    ops_fill_neon_linear(o);
}
#endif

/* In ascending order. Sets of other architectures come last, with features that no CPU of this one
 * has, so that asking for one says "the CPU lacks it" and not "unknown name". */
static const struct isa isa_table[] = {
    {"ref", 0, fill_ref},
#if defined(__x86_64__)
    {"avx2", DETECT_AVX2, fill_avx2},
    {"avx512", DETECT_AVX2 | DETECT_AVX512, fill_avx512},
    {"amx", DETECT_AVX2 | DETECT_AVX512 | DETECT_AMX, fill_amx},
    {"neon", DETECT_NEON, NULL},
#else
#if defined(__aarch64__)
    {"neon", DETECT_NEON, fill_neon},
#endif
    {"avx2", DETECT_AVX2, NULL},
    {"avx512", DETECT_AVX512, NULL},
    {"amx", DETECT_AMX, NULL},
#endif
};

#define N_ISA (sizeof isa_table / sizeof isa_table[0])

static bool cpu_has(uint32_t features, const struct isa *isa)
{
    return (features & isa->features) == isa->features;
}

static const struct isa *isa_find(const char *name)
{
    for (size_t i = 0; i < N_ISA; i++)
        if (strcmp(isa_table[i].name, name) == 0) return &isa_table[i];
    return NULL;
}

sac_status ops_init_isa(struct ops *out, const char *isa, sac_error *err)
{
    const uint32_t features = detect_features();
    const struct isa *last = &isa_table[N_ISA - 1];
    if (isa && *isa) {
        last = isa_find(isa);
        if (!last)
            return error_set(err, SAC_ERR_ARG,
                             "unknown instruction set '%s' (SAC_CPU): use " ISA_NAMES, isa);
        if (!cpu_has(features, last))
            return error_set(err, SAC_ERR_UNSUPPORTED,
                             "this CPU or its system lacks the instruction set '%s' (SAC_CPU)",
                             isa);
    }
    *out = (struct ops){0};
    for (const struct isa *i = isa_table; i <= last; i++) {
        if (!cpu_has(features, i)) continue;
        i->fill(out);
        out->isa = i->name;
    }
    return SAC_OK;
}

sac_status ops_init(struct ops *out, sac_error *err)
{
    return ops_init_isa(out, getenv("SAC_CPU"), err);
}
