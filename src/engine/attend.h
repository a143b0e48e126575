/* attend.h: the attention stage of a layer: from queries, keys and values to the output of
 * attention. attend.c runs its steps in a fixed order; each is in its own file.
 *
 * What a layer's rows read is stated once, in a `struct reading` that is created anew for each
 * layer. Attention, counters, proofs and the recorder take it from there, so none of them can see
 * what another layer has read. Its arrays are e->attend's memory and are valid until the next
 * layer. */
#ifndef SAC_ENGINE_ATTEND_H
#define SAC_ENGINE_ATTEND_H

#include "base/mem.h"
#include "methods/method.h"
#include "ops/page_lines.h"

#include "saccade.h"

/* What one decode row reads of one KV head, and what is known about it. */
struct reading_lane {
    bool asked;      /* a method has selected */
    bool dense;      /* dense attention */
    bool not_finite; /* dense because of a NaN or infinity */
    bool attended;   /* the method has attended to its lists itself, and attention skips them */
    uint32_t n_page, n_tok; /* entries of its lists */
    uint32_t n_bypass;      /* this and the following: as in struct method_pick */
    uint32_t n_chosen;
    float mass_proved, rest_norm;
    uint64_t kv_bytes;  /* bytes of the cache lines that attention reads for its lists */
    struct meter meter; /* bytes that its selection has read */
};

/* One more softmax entry for each decode row and query head, which stands for unread tokens. */
struct reading_rest {
    float *log;   /* [n_decode, n_kv_head, group] its log softmax weight; -INFINITY: none */
    float *value; /* [n_decode, n_kv_head, group, head_dim] */
    float *lse;   /* [n_row, n_head] logs of attention's softmax denominators */
};

struct reading {
    uint32_t layer, window; /* window > 0: keys at distance >= window are not seen */
    uint32_t n_run, n_decode;
    /* [n_run] the batch's runs: their pages in this layer, and what their rows read of them */
    struct attn_run *run;
    /* [n_decode, n_kv_head], or NULL: every decode row is dense */
    struct reading_lane *lane;
    struct page_frames frames; /* where the named pages are */
    /* The current run reads more pages than memory holds; attention fetches them part by part */
    bool streams;
    struct reading_rest rest; /* NULLs: no method estimates unread tokens */
    uint64_t choose_us;       /* time of the decode rows' selections */
    bool on_device; /* the lists of decode rows are in a device's memory, and counted after the step
                     */
};

/* Memory of the stage, from which readings are made. */
struct attend {
    struct page_lines lines;   /* of the pool's pages */
    struct attn_run *run;      /* [n_row_max] */
    struct reading_lane *lane; /* [n_seq_max, n_kv_head], or NULL: all decode methods are dense */
    struct reading_rest rest;  /* NULLs: no method estimates unread tokens */
    uint32_t n_new_page_max;   /* maximum pages of a KV head that a batch fills or begins */
    const uint8_t **seal_from; /* [n_new_page_max * n_kv_head] */
    uint8_t **seal_to;
    page_id *seal_id;     /* of the same pages */
    uint32_t *seal_place; /* with offloading: their places in host memory */
    /* With a tier below the pool: */
    page_id *held; /* [pool.n_frame] pages of the runs that attention is reading, and their
                      number */
    uint32_t n_held;
    uint32_t *mark; /* [n_kv_head, max_page / 32 rounded up] bits of the pages that a plan names */
    /* [n_row_max] status of each run: not SAC_OK if one of its pages could not be read */
    uint8_t *lost;
    uint8_t missed; /* the same for the run that streams */
};

/* Maximum pages of a KV head that a batch fills or begins in a layer. */
uint32_t attend_new_pages(const sac_engine *e);
/* Part of the engine's plan_memory, after the pool and the methods. */
void attend_plan(sac_engine *e, struct arena *a);

/* Computes e->scratch.attn from e->scratch.qkv and the pages of all rows' sequences. */
void attend_layer(sac_engine *e, uint32_t layer);

/* Stores the keys and values of a layer and computes nothing (noise.c). */
void attend_store(sac_engine *e, uint32_t layer);

/* ---- The steps, in their order ---- */

/* Writes the keys and values of the batch, in 16 bits, into tails and into pages that a chunk
 * begins. */
void attend_write(sac_engine *e, struct reading *r);
/* Seals full pages into the pool. */
void attend_seal(sac_engine *e, const struct reading *r);
/* Ends the sequences of runs for which a method could not read a page. */
void attend_lose(sac_engine *e, const struct reading *r);
/* With offloading: copies what prompt rows see of the layer, which methods may read, to frames of
 * the device for transient pages, as far as it fits. */
void attend_bring(const sac_engine *e, const struct reading *r);
/* Has the methods select. Rows without a selection are dense. */
void attend_choose(sac_engine *e, struct reading *r);
/* Determines where the pages read by runs from `first` on are, loads them into memory and keeps
 * them there, for as many runs as fit. A run that does not fit alone streams: attention fetches its
 * pages part by part. Returns the first run not included. A run whose pages cannot be loaded loses
 * its sequence. */
uint32_t attend_resolve(sac_engine *e, struct reading *r, uint32_t first);
/* The same for runs before `*end`, which is lowered to what fits, for callers with runs of their
 * own; the status is that of the first. */
sac_status attend_hold(sac_engine *e, struct reading *r, uint32_t first, uint32_t *end);
/* Releases the held pages; returns whether attention could read all pages that it fetched
 * itself. */
sac_status attend_let(sac_engine *e);
/* Attention of runs first .. end - 1 over what the reading names; zeros for runs whose pages were
 * lost. */
void attend_read(sac_engine *e, const struct reading *r, uint32_t first, uint32_t end);
/* Adds the entries for unread tokens to the output. */
void attend_correct(sac_engine *e, const struct reading *r);
/* Keeps what later steps need: unfilled pages as tails, queries of the last rows. */
void attend_keep(sac_engine *e, const struct reading *r);

/* Adds to the counters of each run what a layer has read. */
void attend_count(sac_engine *e, const struct reading *r);

/* Adds one entry to a softmax: out [d], the mean of values whose weights sum to exp(lse), becomes
 * the mean that includes `value` with the weight exp(value_log). */
void attend_merge(float *out, float lse, const float *value, float value_log, uint32_t d);

#endif
