/* test_server_log.c: what is told once, whatever a stranger sends. */
#include "serve/server_log.h"

#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void names_are_told_once_and_only_so_many(void **state)
{
    struct server_log *l;
    sac_error err;
    char name[200], alike[200];
    uint32_t n = 0;
    (void)state;
    must(server_log_create(&l, &(struct server_log_options){0}, &err), &err);
    assert_true(server_log_is_new(l, "colour"));
    assert_false(server_log_is_new(l, "colour"));
    assert_true(server_log_is_new(l, "colou"));
    /* Of a long name its begin counts. */
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    memcpy(alike, name, sizeof name);
    alike[150] = 'y';
    assert_true(server_log_is_new(l, name));
    assert_false(server_log_is_new(l, alike));
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "x%u", i);
        n += server_log_is_new(l, name);
    }
    assert_int_equal(n, SERVER_LOG_NAMES_MAX - 3);
    server_log_destroy(l);
    must(server_log_create(&l, &(struct server_log_options){.quiet = true}, &err), &err);
    assert_false(server_log_is_new(l, "colour"));
    server_log_destroy(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_told_once_and_only_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
