/* one_function.c: linked to every test program. With SAC_TEST_FUNCTION=NAME it runs this function
 * of its tests alone; tools/mutate.py asks for the one that must notice a fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("SAC_TEST_FUNCTION");
    if (name) cmocka_set_test_filter(name);
}
