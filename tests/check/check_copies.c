/* check_copies.c: what goes up to a GPU in pieces comes whole, and waits for no kernel. */
#include "cuda_lib.h"

/* Of a piece as the library has it, and copies that are more than it has pieces. */
enum { PIECE = 16 << 20, N_COPY = 11, BYTES = PIECE / 2 + 4096 };

static uint8_t byte_of(uint32_t copy, size_t i)
{
    return (uint8_t)(copy * 37 + i / 4096 + 1);
}

static void fill(uint8_t *to, uint32_t copy)
{
    for (size_t i = 0; i < BYTES; i++) to[i] = byte_of(copy, i);
}

/* The program's memory changes as soon as the call is over, and the library's own is filled again.
 */
static void copies_come_whole(void **state)
{
    (void)state;
    uint8_t *host = mem_alloc(BYTES), *there = put_any((size_t)N_COPY * BYTES);
    for (uint32_t c = 0; c < N_COPY; c++) {
        fill(host, c);
        api->up(device, there + (size_t)c * BYTES, host, BYTES);
    }
    for (uint32_t c = 0; c < N_COPY; c++) {
        get(host, there + (size_t)c * BYTES, BYTES);
        for (size_t i = 0; i < BYTES; i += 1021) assert_int_equal(host[i], byte_of(c, i));
        assert_int_equal(host[BYTES - 1], byte_of(c, BYTES - 1));
    }
    mem_free(host);
    give_all();
}

/* Kernels that the library which runs on a CPU has run: those that somebody has waited for. */
static uint32_t kernels_run(void)
{
    void *library = dlopen(CUDA_HOST, RTLD_NOW | RTLD_NOLOAD);
    const uint32_t *n = dlsym(library, "n_kernel_run");
    assert_non_null(n);
    dlclose(library);
    return *n;
}

/* As many bytes as a chunk of a prompt has, behind one that is being computed. */
static void copies_wait_for_no_kernel(void **state)
{
    (void)state;
    const size_t bytes = 7 * (size_t)PIECE;
    if (getenv("SAC_CHECK_CUDA")) skip();
    uint8_t *host = mem_calloc(bytes, 1), *there = put_any(bytes), last = 1;
    get(&last, there, 1);
    const uint32_t before = kernels_run();
    api->copy(device, there, there + PIECE, 4096);
    api->up(device, there, host, bytes);
    assert_int_equal(kernels_run(), before);
    get(&last, there + bytes - 1, 1);
    assert_int_equal(last, 0);
    assert_true(kernels_run() > before);
    mem_free(host);
    give_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_come_whole),
        cmocka_unit_test(copies_wait_for_no_kernel),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
