/* mass.h: how much attention some rows of a sequence give to each token of the pages before
 * them. */
#ifndef SAC_ENGINE_MASS_H
#define SAC_ENGINE_MASS_H

#include "engine/doc_stats.h"

struct mass_job {
    const struct doc_stats_watch *watch; /* its kept queries are the rows */
    uint32_t n_page;     /* the first pages of their sequence, none of which is missing */
    uint32_t first, end; /* layers */
};

/* Puts the attention to each token into mass [n_layer, n_page * PAGE_TOK]: its softmax shares,
 * summed over query heads and rows. The last row counts fully, the one before it half, the third
 * from the end a third: this is the end of a question that looks for its answer, and no single row
 * knows it all. 0 in layers with a sliding window, and in layers that the job does not name.
 * Allocates memory. */
sac_status mass_read(sac_engine *e, const struct mass_job *job, float *mass, sac_error *err);

/* The largest of n scores; n is a multiple of a page. */
float mass_largest(const float *score, size_t n);
/* Replaces n scores by exp((score - most) * scale); returns their sum. */
double mass_raise(float *score, size_t n, float most, float scale);

#endif
