/* bench.h: what `saccade bench` and `saccade bench ops` share. */
#ifndef SAC_APP_BENCH_H
#define SAC_APP_BENCH_H

#include "saccade.h"

/* `saccade bench ops`; argv[0] is its name. Returns the exit code. */
int bench_ops(int argc, char **argv);

/* Measures the limits again and tells on stderr if they are no longer what they were: something
 * else ran meanwhile, and the shares of the limits mean little. */
void bench_check_idle(const char *command, const sac_machine *before);

/* "read 31.0 GB/s, avx512 f32 470 GFLOP/s, ...": what the machine has. */
void bench_describe_machine(char *out, size_t bytes, const sac_machine *m);

#endif
