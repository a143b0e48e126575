/* fuzz_gguf.c: any bytes as a GGUF file. Opening gives a status, with a message unless it is
 * SAC_OK; what opens is walked to the last byte. */
#include "gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf *g = NULL;
    sac_error err = {0};
    if (gguf_open_memory(&g, data, n, &err) != SAC_OK) {
        if (g || err.msg[0] == '\0') abort();
        return 0;
    }
    walk_gguf(g);
    gguf_close(g);
    return 0;
}
