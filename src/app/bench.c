/* bench.c: `saccade bench ops`. */
#include "app/bench.h"

#include "app/app.h"
#include "app/options.h"

#include <string.h>

int app_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "ops") == 0) return bench_ops(argc - 1, argv + 1);
    const char *operand[1];
    struct options o = {
        .command = "bench",
        .usage = "ops [options]",
        .summary = "Measures speed against the limits of this machine.",
        .commands = "  ops         single operations in the shapes of a few models\n",
        .operand = operand,
        .operand_max = 1,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    return options_usage_error(o.command, "a command is missing");
}
