/* context.h: what the parts of the server share. Set up by server.c; all but `state` is constant
 * once `state` says ready, and the pointers lead to objects with locks of their own. */
#ifndef SAC_SERVE_CONTEXT_H
#define SAC_SERVE_CONTEXT_H

#include "grammar/trie.h"
#include "serve/api_keys.h"
#include "serve/api_request.h"
#include "serve/engine_loop.h"
#include "serve/metrics.h"
#include "serve/readings.h"
#include "serve/server.h"
#include "serve/server_log.h"
#include "serve/thread_pool.h"

#include <stdatomic.h>

enum context_state { CONTEXT_LOADING, CONTEXT_READY, CONTEXT_DRAINING };

struct context {
    const struct server_config *config; /* borrowed */
    _Atomic int state;                  /* enum context_state */
    struct api_request_rules rules;     /* set before `state` becomes ready */
    const char *model_name;             /* as `rules` */
    struct trie *trie;                  /* owned, like the members below */
    struct engine_loop *loop;
    struct thread_pool *thread_pool;
    struct metrics *metrics;
    struct api_keys *api_keys;
    struct server_log *log;
    struct readings *readings;
    int64_t start_s; /* start time in seconds since 1970 */
};

#endif
