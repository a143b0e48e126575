/* traffic.c: see the header. */
#include "eval/traffic.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>

const char *const traffic_name[TRAFFIC_FIELDS] = {"bytes_share", "bytes_per_token",
                                                  "choose_bytes_per_token", "build_bytes_per_token",
                                                  "bytes_rows"};

double *traffic_field(struct traffic *t, unsigned i)
{
    double *const field[TRAFFIC_FIELDS] = {&t->share, &t->per_token, &t->choose, &t->build,
                                           &t->rows};
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
    if (rows <= 0 || dense <= 0) return (struct traffic){none, none, none, none, none};
    return (struct traffic){.share = (attend + choose + build) / dense,
                            .per_token = (attend + choose + build) / rows,
                            .choose = choose / rows,
                            .build = build / rows,
                            .rows = rows};
}

void traffic_json(cJSON *o, const struct traffic *t)
{
    struct traffic copy = *t;
    for (unsigned i = 0; i < TRAFFIC_FIELDS; i++)
        cJSON_AddNumberToObject(o, traffic_name[i], *traffic_field(&copy, i));
}
