/* attend_resolve.c: a reading names pages by id; here ids become frames, the bytes of keys and
 * values. All frames lie in memory, in one array in the order of ids, so this is a look-up and
 * fetches nothing: page_frame is the one place that knows the order. */
#include "engine/attend.h"

#include "engine/engine.h"

void attend_resolve(sac_engine *e, struct reading *r)
{
    r->frames = e->pool.pages;
}
