/* check_copies.c: what goes up to a GPU in pieces comes whole, and waits for no kernel. */
#include "cuda_lib.h"

enum { N_COPY = 11 }; /* more than the library has pieces */

/* Of one of these: those of the library that runs on a CPU are small. */
static size_t piece_bytes(void)
{
    return getenv("SAC_CHECK_CUDA") ? (size_t)16 << 20 : (size_t)96 << 10;
}

static uint8_t byte_of(uint32_t copy, size_t i)
{
    return (uint8_t)(copy * 37 + i / 4096 + 1);
}

static void fill(uint8_t *to, uint32_t copy, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[i] = byte_of(copy, i);
}

/* The program's memory changes as soon as the call is over, and the library's own is filled again.
 */
static void copies_come_whole(void **state)
{
    (void)state;
    const size_t bytes = piece_bytes() / 2 + 4096;
    uint8_t *host = mem_alloc(bytes), *there = put_any((size_t)N_COPY * bytes);
    for (uint32_t c = 0; c < N_COPY; c++) {
        fill(host, c, bytes);
        api->up(device, there + (size_t)c * bytes, host, bytes);
    }
    for (uint32_t c = 0; c < N_COPY; c++) {
        get(host, there + (size_t)c * bytes, bytes);
        for (size_t i = 0; i < bytes; i += 1021) assert_int_equal(host[i], byte_of(c, i));
        assert_int_equal(host[bytes - 1], byte_of(c, bytes - 1));
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
    const size_t piece = piece_bytes(), bytes = 7 * piece;
    if (getenv("SAC_CHECK_CUDA")) skip();
    uint8_t *host = mem_calloc(bytes, 1), *there = put_any(bytes), last = 1;
    get(&last, there, 1);
    const uint32_t before = kernels_run();
    api->copy(device, there, there + piece, 4096);
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
