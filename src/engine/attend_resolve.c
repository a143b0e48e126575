/* attend_resolve.c: a reading names pages by id; here is said in which frames their bytes lie. All
 * of them are in memory, so nothing is fetched: a kernel looks a page's frame up in the pool's
 * table, and nobody computes a place from an id. */
#include "engine/attend.h"

#include "engine/engine.h"

void attend_resolve(sac_engine *e, struct reading *r)
{
    r->frames = pool_frames(&e->pool);
}
