/* setup_tier.c: see the header. */
#include "app/setup_tier.h"

#include "app/pathsize.h"
#include "app/units.h"

#include <string.h>

static bool names_gpu(const struct setup *s)
{
    return (s->device && strcmp(s->device, "cpu") != 0) || s->n_gpu_layers > 0;
}

/* Whether pages are on a GPU, which spill to the machine's memory. */
static bool pages_are_gpus(const struct setup *s)
{
    return names_gpu(s) && !s->kv_on_host;
}

/* Refuses disk options that have no effect: without --kv-disk, or below GPU memory. */
static int check_without_disk(const struct setup *s)
{
    const char *idle = s->kv_no_ahead                      ? "--kv-no-ahead"
                       : s->kv_admit == SAC_TIER_ADMIT_ALL ? "--kv-admit all"
                       : s->kv_policy == SAC_TIER_LRU      ? "--kv-policy lru"
                                                           : NULL;
    if (idle && pages_are_gpus(s))
        return options_usage_error(
            s->command, "%s is about pages on a disk: below a GPU's memory there is none", idle);
    if (idle)
        return options_usage_error(s->command,
                                   "%s is about pages on a disk: it needs --kv-disk "
                                   "FILE:SIZE and --kv-fast SIZE",
                                   idle);
    if (s->kv_fast && !pages_are_gpus(s))
        return options_usage_error(
            s->command, "--kv-fast needs --kv-disk FILE:SIZE for the pages that do not fit%s",
            s->kv_on_host ? "" : ", or --device cuda");
    return OPTIONS_GO_ON;
}

int setup_tier(struct setup *s)
{
    if (s->kv_on_host && !names_gpu(s))
        return options_usage_error(
            s->command,
            "--kv-device host is about a GPU's keys and values: --device cuda names a GPU");
    if (s->kv_fast && !units_bytes(s->kv_fast, &s->tier.fast_bytes))
        return options_usage_error(
            s->command, "option '--kv-fast': '%s' is no size: a number, and K, M, G or T",
            s->kv_fast);
    s->tier.policy = (sac_tier_policy)s->kv_policy;
    s->tier.no_ahead = s->kv_no_ahead;
    s->tier.admit = (sac_tier_admit)s->kv_admit;
    if (!s->kv_disk) return check_without_disk(s);
    const int code =
        pathsize_parse(&(struct pathsize){.command = s->command,
                                          .option = "--kv-disk",
                                          .form = "FILE:SIZE, such as /var/tmp/pages:20G",
                                          .value = s->kv_disk,
                                          .out_path = s->kv_file,
                                          .out_bytes = &s->tier.file_bytes});
    if (code != OPTIONS_GO_ON) return code;
    if (!s->kv_fast)
        return options_usage_error(s->command,
                                   "--kv-disk needs --kv-fast SIZE, the memory above it");
    s->tier.file = s->kv_file;
    return OPTIONS_GO_ON;
}
