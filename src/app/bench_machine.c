/* bench_machine.c: the machine's limits as a line of text, and whether they held during a run. A
 * share of a limit is meaningful only if nothing else used the machine. */
#include "app/bench.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#define CHANGE_MAX 0.1

void bench_describe_machine(char *out, size_t bytes, const sac_machine *m)
{
    const struct {
        const char *name;
        double value;
        const char *unit;
    } peaks[] = {
        {"avx2 f32", m->avx2_f32_gflop_s, "GFLOP/s"},
        {"avx2 int8", m->avx2_int8_gop_s, "GOP/s"},
        {"avx512 f32", m->avx512_f32_gflop_s, "GFLOP/s"},
        {"avx512 int8", m->avx512_int8_gop_s, "GOP/s"},
        {"avx512 bf16", m->avx512_bf16_gflop_s, "GFLOP/s"},
        {"amx bf16", m->amx_bf16_gflop_s, "GFLOP/s"},
        {"amx int8", m->amx_int8_gop_s, "GOP/s"},
        {"neon f32", m->neon_f32_gflop_s, "GFLOP/s"},
        {"neon int8", m->neon_int8_gop_s, "GOP/s"},
    };
    int at = snprintf(out, bytes, "read %.1f GB/s", m->read_gb_s);
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++)
        if (peaks[i].value > 0)
            at += snprintf(out + at, bytes - (size_t)at, ", %s %.0f %s", peaks[i].name,
                           peaks[i].value, peaks[i].unit);
    assert((size_t)at < bytes);
}

static bool has_changed(double before, double after)
{
    return fabs(before - after) > CHANGE_MAX * fmax(before, after);
}

void bench_check_idle(const char *command, const sac_machine *before)
{
    sac_machine after;
    if (sac_measure_machine(&after, before->n_threads, NULL) != SAC_OK) return;
    if (!has_changed(before->read_gb_s, after.read_gb_s) &&
        !has_changed(before->avx2_f32_gflop_s, after.avx2_f32_gflop_s) &&
        !has_changed(before->neon_f32_gflop_s, after.neon_f32_gflop_s))
        return;
    char was[256], is[256];
    bench_describe_machine(was, sizeof was, before);
    bench_describe_machine(is, sizeof is, &after);
    fprintf(stderr,
            "saccade %s: the machine was not idle, do not trust the shares; its limits were first\n"
            "  %s,\nat the end\n  %s\n",
            command, was, is);
}
