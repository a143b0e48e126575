/* mass.h: what some rows of a sequence read of the pages before them, token by token. */
#ifndef SAC_ENGINE_MASS_H
#define SAC_ENGINE_MASS_H

#include "engine/notes.h"

/* Softmax masses of the watched rows' kept queries over the first n_page pages of their sequence,
 * all of which are there, summed over rows, query heads and layers: mass [n_page * PAGE_TOK].
 * Layers that see a window only do not count. Takes memory of its own. */
sac_status mass_read(sac_engine *e, const struct notes_watch *w, uint32_t n_page, float *mass,
                     sac_error *err);

#endif
