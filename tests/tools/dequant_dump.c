/* dequant_dump.c: reads blocks of one tensor type from standard input and writes their values as
 * f32 to standard output. "dequant_dump TYPE_ID N_ELEM"; "dequant_dump" alone lists the types as
 * lines of id, name, elements and bytes of a block. tests/truth/test_dequant.py drives it. */
#include "ops/quant.h"

#include <stdio.h>
#include <stdlib.h>

static int list_types(void)
{
    for (uint32_t type = 0; type < 256; type++)
        if (quant_name(type))
            printf("%u %s %u %u\n", type, quant_name(type), quant_block_elems(type),
                   quant_block_bytes(type));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1) return list_types();
    if (argc != 3) {
        fprintf(stderr, "usage: dequant_dump [TYPE_ID N_ELEM]\n");
        return 2;
    }
    const uint32_t type = (uint32_t)strtoul(argv[1], NULL, 10);
    const size_t n = strtoull(argv[2], NULL, 10), block = quant_block_elems(type);
    if (block == 0 || n % block != 0) {
        fprintf(stderr, "dequant_dump: type %u and %zu elements do not fit\n", type, n);
        return 2;
    }
    const size_t bytes = quant_row_bytes(type, n);
    uint8_t *src = malloc(bytes);
    float *dst = malloc(n * sizeof *dst);
    if (!src || !dst || fread(src, 1, bytes, stdin) != bytes) {
        fprintf(stderr, "dequant_dump: cannot read %zu bytes\n", bytes);
        return 1;
    }
    quant_dequant_row(dst, type, src, n);
    const int failed = fwrite(dst, sizeof *dst, n, stdout) != n || fflush(stdout) != 0;
    free(src);
    free(dst);
    return failed;
}
