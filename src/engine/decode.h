/* decode.h: running decode methods: turns their marks into what is read. */
#ifndef SAC_ENGINE_DECODE_H
#define SAC_ENGINE_DECODE_H

#include "engine/attend.h"
#include "methods/method.h"
#include "methods/spec.h"

/* What the host knows about a lane's selection on a device. */
struct decode_known {
    bool asked; /* a method has chosen */
    bool dense, not_finite;
};

/* Of one step, by layer, until it is counted. */
struct decode_choices {
    struct decode_known *known; /* [n_layer][n_seq_max * n_kv_head] */
    bool *chosen;               /* [n_layer][n_seq_max] by lists, not entirely dense */
    bool *listed;               /* [n_layer] some lane is not known to be dense: see made */
    bool pending;               /* some of it is not counted yet */
};

/* If a device selects: the results, by layer, for the counters (decode_device.c). */
struct decode_away {
    struct attn_count *count;  /* [n_layer][n_seq_max * n_kv_head] of struct decode's `made` */
    struct decode_choices now; /* the host's part */
    struct reading_rest rest;  /* in the device's memory; NULLs: no method there has any */
    /* Lists of the host, for sequences that lack pages: [n_seq_max][n_kv_head * max_page] and
     * [n_seq_max][n_kv_head + 1] */
    uint32_t *left, *left_ptr;
};

/* For methods that evict tokens by attention measured on a device (decode_votes.c). */
struct decode_votes {
    size_t stride, scratch_bytes;
    float *looked;    /* [n_kv_head][stride] sums of the current run */
    uint8_t *scratch; /* [workers][scratch_bytes] of the methods' code, in the host's memory */
    bool *changed;    /* [n_kv_head] has chosen anew */
};

struct decode {
    bool has_see, evicts, has_rest; /* some method sees rows, frees pages, estimates */
    bool token_grain, weighs;       /* reads single tokens, with weights */
    uint32_t n_joined;              /* lanes called together: those of a row, or one */
    uint32_t group_pages;           /* of lanes called one after the other, for a disk */
    /* Masks and lists are memory of the backend, scratch of a place. */
    uint32_t *mask;          /* [n_seq_max][n_kv_head][max_page] */
    uint32_t *page;          /* [n_seq_max][n_kv_head * max_page] lists for the attention op */
    uint32_t *page_ptr;      /* [n_seq_max][n_kv_head + 1] */
    uint32_t *tok, *tok_ptr; /* the same for single tokens, [n_seq_max][n_kv_head * n_ctx] */
    float *logw;             /* of single tokens, as tok; NULL: none has any */
    struct attn_count *made; /* of a device: [n_layer][n_seq_max * n_kv_head], its own layers' */
    bool *attended; /* [n_seq_max][n_kv_head], or NULL: attention reads everything that is listed */
    struct decode_away away;
    struct decode_votes votes;
    /* [chooser_rooms] of lanes in use: struct method_batch, and their numbers in the batch */
    struct method_lane *lane;
    struct method_pick *pick;
    struct op_lane_result *result;
    uint32_t *target;
    union op_lane *list;
    uint32_t *item;
};

/* Part of chooser_plan, if some method is not dense: lanes, and the rows of the past. */
void decode_plan(sac_engine *e, struct arena *a);
/* Part of chooser_plan_rooms: masks and lists. */
void decode_plan_rooms(sac_engine *e, struct arena *a);

/* The method of a run's sequence. */
const struct method *decode_method(const sac_engine *e, uint32_t run_i);
/* Lanes that are called together. */
uint32_t decode_joined(const sac_engine *e);

/* Shows the layer's rows to the methods and determines what decode rows read; between seal and
 * attention. */
void decode_choose(sac_engine *e, struct reading *r);

/* The same on a device, which is not waited for. */
void decode_device_plan(sac_engine *e, struct arena *a);
void decode_device_plan_rooms(sac_engine *e, struct arena *a);
void decode_device_choose(sac_engine *e, struct reading *r);
/* After the layer's attention: entries that stand for unread tokens join its output. */
void decode_device_correct(sac_engine *e, const struct reading *r);
/* After all layers: fetches the selections. After the wait: adds them to the counters. */
void decode_device_fetch(sac_engine *e);
void decode_device_count(sac_engine *e);

/* Memory that a worker of the host needs for it; 0: it has no votes, or the host selects. */
size_t decode_votes_bytes(const sac_engine *e, const struct spec *spec);
void decode_votes_plan(sac_engine *e, struct arena *a);
/* Shows a decode row to a method that evicts tokens by votes, lets it select if that is due, and
 * frees pages. False: the row's method is another. */
bool decode_votes_learn(sac_engine *e, const struct reading *r, uint32_t run_i);
/* A sequence has been loaded: the device learns which tokens are still kept. */
void decode_votes_show(const sac_engine *e, uint32_t seq_i);

#endif
