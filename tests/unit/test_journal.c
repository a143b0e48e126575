/* test_journal.c: what is told once, whatever a stranger sends. */
#include "serve/journal.h"

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
    struct journal *j;
    sac_error err;
    char name[200], alike[200];
    uint32_t n = 0;
    (void)state;
    must(journal_create(&j, &(struct journal_options){0}, &err), &err);
    assert_true(journal_is_new(j, "colour"));
    assert_false(journal_is_new(j, "colour"));
    assert_true(journal_is_new(j, "colou"));
    /* Of a long name its begin counts. */
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    memcpy(alike, name, sizeof name);
    alike[150] = 'y';
    assert_true(journal_is_new(j, name));
    assert_false(journal_is_new(j, alike));
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "x%u", i);
        n += journal_is_new(j, name);
    }
    assert_int_equal(n, JOURNAL_NAMES_MAX - 3);
    journal_destroy(j);
    must(journal_create(&j, &(struct journal_options){.quiet = true}, &err), &err);
    assert_false(journal_is_new(j, "colour"));
    journal_destroy(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_told_once_and_only_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
