/* machine_api.c: the public calls of ops/machine.c and the names of devices, for programs that
 * print them. They start threads of their own, so they need no engine. */
#include "base/workers.h"
#include "ops/backend.h"
#include "ops/machine.h"

#include "saccade_machine.h"

#include <stdio.h>

sac_status sac_device_name(char out[160], uint32_t i, sac_error *err)
{
    struct ops ops;
    if (i > 0) return backend_name_cuda(out, i - 1, err);
    TRY(ops_init(&ops, err));
    snprintf(out, 160, "cpu %s", ops.isa);
    return SAC_OK;
}

sac_status sac_measure_machine(sac_machine *out, uint32_t n_threads, sac_error *err)
{
    struct workers *pool = NULL;
    TRY(workers_create(&pool, n_threads, err));
    struct machine_limits limits;
    const sac_status status = machine_measure(&limits, pool, err);
    if (status == SAC_OK)
        *out = (sac_machine){
            .n_threads = workers_count(pool),
            .read_gb_s = limits.read_gb,
            .avx2_f32_gflop_s = limits.avx2_f32,
            .avx2_int8_gop_s = limits.avx2_int8,
            .avx512_f32_gflop_s = limits.avx512_f32,
            .avx512_int8_gop_s = limits.avx512_int8,
            .avx512_bf16_gflop_s = limits.avx512_bf16,
            .amx_bf16_gflop_s = limits.amx_bf16,
            .amx_int8_gop_s = limits.amx_int8,
            .neon_f32_gflop_s = limits.neon_f32,
            .neon_int8_gop_s = limits.neon_int8,
        };
    workers_destroy(pool);
    return status;
}
