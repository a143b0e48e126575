/* one_function.c: linked to every test program. With SAC_TEST_FUNCTION=NAME it runs this function
 * of its tests alone, and with SAC_TEST_SECONDS=N it is killed after this time; tools/mutate.py
 * asks for the function that must notice a fault, which may make a loop endless. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("SAC_TEST_FUNCTION"), *seconds = getenv("SAC_TEST_SECONDS");
    if (name) cmocka_set_test_filter(name);
    if (seconds) alarm((unsigned)strtoul(seconds, NULL, 10));
}
