/* traffic.c: see the header. */
#include "eval/traffic.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>

const char *const traffic_name[TRAFFIC_FIELDS] = {
    "bytes_share", "bytes_per_token", "choose_bytes_per_token", "build_bytes_per_token",
    "bytes_rows",  "tier_hit_share",  "tier_bytes_per_token",   "tier_wait_us_per_token"};
#define TIER_FIELD 5u /* index of the first field of tiers */

double *traffic_field(struct traffic *t, unsigned i)
{
    double *const field[TRAFFIC_FIELDS] = {&t->share, &t->per_token, &t->choose,  &t->build,
                                           &t->rows,  &t->hit_share, &t->fetched, &t->wait_us};
    assert(i < TRAFFIC_FIELDS);
    return field[i];
}

struct traffic traffic_between(const sac_reads *before, const sac_reads *after)
{
    const double rows = (double)(after->n_decode_tok - before->n_decode_tok);
    const double dense = (double)(after->dense_bytes - before->dense_bytes);
    const double attend = (double)(after->attend_bytes_read - before->attend_bytes_read);
    const double choose = (double)(after->choose_bytes_read - before->choose_bytes_read);
    const double build = (double)(after->build_bytes_read - before->build_bytes_read);
    const double none = (double)NAN;
    if (rows <= 0 || dense <= 0)
        return (struct traffic){none, none, none, none, none, none, none, none};
    return (struct traffic){.share = (attend + choose + build) / dense,
                            .per_token = (attend + choose + build) / rows,
                            .choose = choose / rows,
                            .build = build / rows,
                            .rows = rows,
                            .hit_share = none,
                            .fetched = none,
                            .wait_us = none};
}

void traffic_add_tier(struct traffic *t, const sac_tier_stats *before, const sac_tier_stats *after)
{
    const double n_hit = (double)(after->n_hit - before->n_hit);
    const double n = n_hit + (double)(after->n_fetch - before->n_fetch);
    if (!after->backend || !(t->rows > 0)) return;
    t->hit_share = n > 0 ? n_hit / n : (double)NAN;
    t->fetched = (double)(after->bytes_fetched - before->bytes_fetched) / t->rows;
    t->wait_us = (double)(after->wait_us - before->wait_us) / t->rows;
}

void traffic_json(cJSON *o, const struct traffic *t)
{
    struct traffic copy = *t;
    for (unsigned i = 0; i < TRAFFIC_FIELDS; i++)
        if (i < TIER_FIELD || !isnan(*traffic_field(&copy, i)))
            cJSON_AddNumberToObject(o, traffic_name[i], *traffic_field(&copy, i));
}
