/* mass.h: what some rows of a sequence read of the pages before them, token by token. */
#ifndef SAC_ENGINE_MASS_H
#define SAC_ENGINE_MASS_H

#include "engine/notes.h"

struct mass_job {
    const struct notes_watch *watch; /* whose kept queries read */
    uint32_t n_page;                 /* the first pages of their sequence, all of which are there */
    uint32_t first, end;             /* layers */
};

/* How much of each token is read: the root of its softmax share, summed over rows and query heads:
 * mass [n_layer, n_page * PAGE_TOK]. Roots, so that what many read a little counts beside what one
 * reads for itself. 0 in layers that see a window only, and in those that the job does not name.
 * Takes memory of its own. */
sac_status mass_read(sac_engine *e, const struct mass_job *job, float *mass, sac_error *err);

#endif
