/* setup_sampling.h: the options of sampling that commands share, and a sampler's parameters made of
 * them. Texts in the struct are borrowed from argv or the environment. */
#ifndef SAC_APP_SETUP_SAMPLING_H
#define SAC_APP_SETUP_SAMPLING_H

#include "app/options.h"

#include "base/status.h"
#include "saccade.h"

struct setup_sampling {
    float temp, top_p, min_p, typical_p;
    float repeat_penalty, frequency_penalty, presence_penalty;
    float dry_multiplier, dry_base, xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta;
    int32_t top_k, repeat_last_n, dry_allowed_length, dry_last_n, mirostat;
    int64_t seed;                               /* negative: random */
    struct option_list logit_bias, dry_breaker; /* no breakers: the library's */
};

/* Option table for struct setup_sampling. */
extern const struct option_spec setup_sampling_specs[];

struct setup_sampling setup_sampling_default(void);

/* `bias` [OPTION_LIST_MAX] receives the parsed biases and must outlive `out`, whose seed is the one
 * in force. */
sac_status setup_sampling_params(const struct setup_sampling *s, sac_sampling *out,
                                 sac_logit_bias *bias, sac_error *err);

#endif
