/* must.h: a call that has to succeed, in tests of something else. */
#ifndef SAC_TESTS_MUST_H
#define SAC_TESTS_MUST_H

#include "saccade.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Fails the test with the call's own words. */
static inline void must(sac_status status, const sac_error *err)
{
    if (status != SAC_OK) fail_msg("%s", err->msg);
}

#endif
