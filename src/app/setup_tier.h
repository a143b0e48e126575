/* setup_tier.h: where the pages of the KV cache lie, from the options --kv-*. */
#ifndef SAC_APP_SETUP_TIER_H
#define SAC_APP_SETUP_TIER_H

#include "app/setup.h"

/* Parses kv_fast, kv_disk and their options into s->tier. Returns OPTIONS_GO_ON, or an exit code
 * after reporting a contradiction. */
int setup_tier(struct setup *s);

#endif
