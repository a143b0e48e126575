/* mass.h: how much attention some rows of a sequence give to the pages before them, token by
 * token. */
#ifndef SAC_ENGINE_MASS_H
#define SAC_ENGINE_MASS_H

#include "engine/notes.h"

struct mass_job {
    const struct notes_watch *watch; /* whose kept queries read */
    uint32_t n_page;                 /* the first pages of their sequence, all of which are there */
    uint32_t first, end;             /* layers */
};

/* How much of each token is read: mass [n_layer, n_page * PAGE_TOK], its softmax shares summed over
 * query heads and rows. The last row counts whole, the one before it half, the third from the end a
 * third: it is the end of a question that looks for its answer, and no single row knows it all. 0
 * in layers that see a window only, and in those that the job does not name. Takes memory of its
 * own. */
sac_status mass_read(sac_engine *e, const struct mass_job *job, float *mass, sac_error *err);

/* The largest of n scores, whole pages of them. */
float mass_largest(const float *score, size_t n);
/* They become exp((score - most) * scale); returns the sum of those. */
double mass_raise(float *score, size_t n, float most, float scale);

#endif
