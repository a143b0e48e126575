/* setup_tier.h: where the pages of the KV cache lie, from the options --kv-*. */
#ifndef SAC_APP_SETUP_TIER_H
#define SAC_APP_SETUP_TIER_H

#include "app/setup.h"

/* Makes s->tier of kv_fast, kv_disk and the three beside them. OPTIONS_GO_ON, or an exit code after
 * it told which of them contradict each other. */
int setup_tier(struct setup *s);

#endif
