/* reuse_watch.c: see the header. */
#include "engine/reuse_watch.h"

#include "engine/engine.h"

static void tell(const sac_engine *e, uint32_t i, bool is_there, void *owner)
{
    const struct prefix *x = &e->reuse.index;
    const struct prefix_node *n = &x->node[i];
    e->reuse.on_page(
        e->reuse.user,
        &(sac_cache_page){.is_there = is_there,
                          .key = n->key,
                          .before = n->parent == PREFIX_NONE ? NULL : x->node[n->parent].key,
                          .tok = x->tok + (size_t)i * PAGE_TOK,
                          .request_user = owner});
}

void reuse_watch_added(const sac_engine *e, uint32_t node, void *owner)
{
    if (e->reuse.on_page && e->reuse.index.node[node].reachable) tell(e, node, true, owner);
}

static void on_gone(void *user, uint32_t node)
{
    tell(user, node, false, NULL);
}

sac_status sac_cache_watch(sac_engine *e, sac_cache_page_fn fn, void *user, sac_error *err)
{
    if (!e->reuse.on)
        return error_set(err, SAC_ERR_ARG, "watching the cache needs an engine with prefix_cache");
    e->reuse.on_page = fn;
    e->reuse.user = user;
    e->reuse.index.gone = fn ? on_gone : NULL;
    e->reuse.index.user = e;
    return SAC_OK;
}
