/* weights_shard.h: a shard of every layer's weights, for engines that compute each layer together:
 * some KV heads with their query heads, and some channels of the feed-forward network. Queries,
 * keys, values, gate and up are cut by outputs, attention's output and down by inputs: the results
 * of the latter two are summed over all shards. */
#ifndef SAC_MODEL_WEIGHTS_SHARD_H
#define SAC_MODEL_WEIGHTS_SHARD_H

#include "model/weights.h"

struct weights_shard {
    uint32_t i, n;      /* shard i of n */
    uint32_t kv0, n_kv; /* KV heads */
    uint32_t ff0, n_ff; /* channels of the feed-forward network, in whole blocks of every layer */
};

/* Share i of n, as even as heads and blocks allow; the first ones are larger. A tensor whose blocks
 * the cut would go through is an error that names it and what would fit. */
sac_status weights_shard_of(struct weights_shard *out, const struct weights *w,
                            const struct config *c, uint32_t i, uint32_t n, sac_error *err);

/* The config of a model that consists of this shard. */
struct config weights_shard_config(const struct config *c, const struct weights_shard *s);

/* Copies the shard into a block of its own. Embedding rows and rotation factors stay the model's.
 * The first shard has attention's output bias and the output matrix; the others have neither. */
sac_status weights_shard_copy(struct weights *out, const struct weights *from,
                              const struct config *c, const struct weights_shard *s,
                              sac_error *err);

#endif
