/* setup_sampling.c: see the header. The names of options are those of llama.cpp, with vLLM's as
 * second spellings. */
#include "app/setup_sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct setup_sampling, field), arg, help, __VA_ARGS__                \
    }

const struct option_spec setup_sampling_specs[] = {
    OPT("--temp --temperature", OPTION_F32, temp, "F",
        "sampling temperature; 0: always the most likely token", .env = "TEMP", .max = 100),
    OPT("--top-k", OPTION_I32, top_k, "N", "sample from the N most likely tokens; 0: all",
        .env = "TOP_K"),
    OPT("--top-p", OPTION_F32, top_p, "F",
        "sample from the most likely tokens with this total probability; 1: all", .env = "TOP_P",
        .max = 1),
    OPT("--min-p", OPTION_F32, min_p, "F",
        "drop tokens less likely than this share of the most likely one; 0: none", .env = "MIN_P",
        .max = 1),
    OPT("--typical --typical-p", OPTION_F32, typical_p, "F", "locally typical sampling; 1: off",
        .env = "TYPICAL", .max = 1),
    OPT("--repeat-penalty", OPTION_F32, repeat_penalty, "F",
        "divides the logits of previous tokens; 1: off", .env = "REPEAT_PENALTY", .min = 0.01,
        .max = 100),
    OPT("--presence-penalty", OPTION_F32, presence_penalty, "F",
        "subtracted once from the logits of previous tokens; 0: off", .env = "PRESENCE_PENALTY",
        .min = -100, .max = 100),
    OPT("--frequency-penalty", OPTION_F32, frequency_penalty, "F",
        "subtracted for each previous occurrence of a token; 0: off", .env = "FREQUENCY_PENALTY",
        .min = -100, .max = 100),
    OPT("--repeat-last-n", OPTION_I32, repeat_last_n, "N",
        "tokens that the penalties look back at; 0: none, -1: all", .env = "REPEAT_LAST_N",
        .min = -1, .max = 4194304),
    OPT("--dry-multiplier", OPTION_F32, dry_multiplier, "F",
        "DRY: penalty for a token that continues a repetition; 0: off, 0.8 is common",
        .env = "DRY_MULTIPLIER", .max = 100),
    OPT("--dry-base", OPTION_F32, dry_base, "F",
        "DRY: factor by which the penalty grows per repeated token", .env = "DRY_BASE", .min = 1,
        .max = 100),
    OPT("--dry-allowed-length", OPTION_I32, dry_allowed_length, "N",
        "DRY: repeated tokens before any penalty applies", .env = "DRY_ALLOWED_LENGTH", .min = 1,
        .max = INT32_MAX),
    OPT("--dry-penalty-last-n", OPTION_I32, dry_last_n, "N", "DRY: tokens to look back at",
        .env = "DRY_PENALTY_LAST_N", .min = 1, .max = 4194304),
    OPT("--dry-sequence-breaker", OPTION_LIST, dry_breaker, "TEXT",
        "DRY: text at which a repetition ends; repeatable; none: no such text (default: newline, "
        "colon, quote, star)",
        .env = NULL),
    OPT("--xtc-probability", OPTION_F32, xtc_probability, "F",
        "XTC: probability of removing the most likely tokens; 0: never", .env = "XTC_PROBABILITY",
        .max = 1),
    OPT("--xtc-threshold", OPTION_F32, xtc_threshold, "F",
        "XTC: remove tokens at least this likely, except the least likely of them; above 0.5: none",
        .env = "XTC_THRESHOLD", .max = 1),
    OPT("--mirostat", OPTION_I32, mirostat, "N",
        "Mirostat version 1 or 2, instead of top-k to XTC; 0: off", .env = "MIROSTAT", .max = 2),
    OPT("--mirostat-ent --mirostat-tau", OPTION_F32, mirostat_tau, "F",
        "Mirostat: target surprise in bits", .env = "MIROSTAT_ENT", .max = 100),
    OPT("--mirostat-lr --mirostat-eta", OPTION_F32, mirostat_eta, "F", "Mirostat: learning rate",
        .env = "MIROSTAT_LR", .max = 100),
    OPT("--logit-bias", OPTION_LIST, logit_bias, "ID+X",
        "add X to the logit of token ID, or subtract it (ID-X); ID-inf bans the token; repeatable",
        .env = NULL),
    OPT("-s --seed", OPTION_I64, seed, "N", "random seed; -1: a random one", .env = "SEED",
        .min = -1, .max = 0x1p62),
    {0},
};

struct setup_sampling setup_sampling_default(void)
{
    const sac_sampling d = sac_sampling_default();
    return (struct setup_sampling){
        .temp = d.temp,
        .top_p = d.top_p,
        .min_p = d.min_p,
        .typical_p = d.typical_p,
        .repeat_penalty = d.repeat_penalty,
        .frequency_penalty = d.frequency_penalty,
        .presence_penalty = d.presence_penalty,
        .top_k = d.top_k,
        .repeat_last_n = d.repeat_last_n,
        .dry_multiplier = d.dry_multiplier,
        .dry_base = d.dry_base,
        .dry_allowed_length = d.dry_allowed_length,
        .dry_last_n = d.dry_last_n,
        .xtc_probability = d.xtc_probability,
        .xtc_threshold = d.xtc_threshold,
        .mirostat = d.mirostat,
        .mirostat_tau = d.mirostat_tau,
        .mirostat_eta = d.mirostat_eta,
        .seed = -1,
    };
}

/* Parses "15043+1.5", "15043-inf". */
static bool parse_bias(const char *text, sac_logit_bias *out)
{
    char *sign, *end;
    errno = 0;
    const long tok = strtol(text, &sign, 10);
    if (sign == text || errno || tok < 0 || tok > INT32_MAX || (*sign != '+' && *sign != '-'))
        return false;
    out->tok = (int32_t)tok;
    out->bias = strtof(sign, &end);
    return end != sign + 1 && *end == 0 && !isnan(out->bias);
}

sac_status setup_sampling_params(const struct setup_sampling *s, sac_sampling *out,
                                 sac_logit_bias *bias, sac_error *err)
{
    const sac_sampling defaults = sac_sampling_default();
    uint64_t seed = (uint64_t)s->seed;
    if (s->seed < 0 && getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return error_set(err, SAC_ERR_IO, "the system gives no random seed: %s", strerror(errno));
    /* JSON parsers store numbers as doubles, so random seeds are limited to 52 bits to print
     * exactly. */
    if (s->seed < 0) seed >>= 12;
    for (size_t i = 0; i < s->logit_bias.n; i++)
        if (!parse_bias(s->logit_bias.item[i], &bias[i]))
            return error_set(err, SAC_ERR_ARG,
                             "option '--logit-bias': '%.60s' is not of the form ID+X or ID-X",
                             s->logit_bias.item[i]);
    const bool no_breaker = s->dry_breaker.n == 1 && strcmp(s->dry_breaker.item[0], "none") == 0;
    *out = (sac_sampling){
        .temp = s->temp,
        .top_k = s->top_k,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .typical_p = s->typical_p,
        .repeat_penalty = s->repeat_penalty,
        .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty,
        .repeat_last_n = s->repeat_last_n,
        .dry_multiplier = s->dry_multiplier,
        .dry_base = s->dry_base,
        .dry_allowed_length = s->dry_allowed_length,
        .dry_last_n = s->dry_last_n,
        .dry_breaker = s->dry_breaker.n ? s->dry_breaker.item : defaults.dry_breaker,
        .n_dry_breaker = no_breaker         ? 0
                         : s->dry_breaker.n ? s->dry_breaker.n
                                            : defaults.n_dry_breaker,
        .xtc_probability = s->xtc_probability,
        .xtc_threshold = s->xtc_threshold,
        .mirostat = s->mirostat,
        .mirostat_tau = s->mirostat_tau,
        .mirostat_eta = s->mirostat_eta,
        .seed = seed,
        .logit_bias = bias,
        .n_logit_bias = s->logit_bias.n,
    };
    return SAC_OK;
}
