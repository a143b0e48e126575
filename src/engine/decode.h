/* decode.h: running decode methods: turns their marks into what is read. */
#ifndef SAC_ENGINE_DECODE_H
#define SAC_ENGINE_DECODE_H

#include "engine/attend.h"
#include "methods/method.h"
#include "methods/method_spec.h"

/* What the host knows about a lane's selection on a device. */
struct decode_known {
    bool asked; /* a method has selected */
    bool dense, not_finite;
};

/* The host's knowledge of one step, by layer, until it is counted. */
struct decode_choices {
    struct decode_known *known; /* [n_layer][n_seq_max * n_kv_head] */
    bool *chosen; /* [n_layer, n_seq_max] the run reads by lists: it is not entirely dense */
    bool *listed; /* [n_layer] a lane may not be dense: `made` counts it */
    bool pending; /* some of it is not counted yet */
};

/* If a device selects: the results by layer, for the counters (decode_device.c). */
struct decode_device {
    /* [n_layer, n_seq_max * n_kv_head] a copy of struct decode's `made` */
    struct attn_count *count;
    struct decode_choices now; /* the host's part */
    /* In the device's memory; NULLs: no method there estimates unread tokens */
    struct reading_rest rest;
    /* The host's lists for sequences that lack pages: [n_seq_max, n_kv_head * max_page] and
     * [n_seq_max, n_kv_head + 1] */
    uint32_t *left, *left_ptr;
};

/* For methods that evict tokens by attention measured on a device (decode_votes.c). */
struct decode_votes {
    size_t stride, scratch_bytes;
    float *looked; /* [n_kv_head, stride] sums of attention of the current run */
    /* [workers, scratch_bytes] scratch of the methods' code, in the host's memory */
    uint8_t *scratch;
    bool *changed; /* [n_kv_head] whether the head has selected again */
};

struct decode {
    /* Some method observes rows, frees pages, estimates unread tokens */
    bool has_see, evicts, has_rest;
    bool token_grain, weighs; /* some method reads single tokens, weights them */
    uint32_t n_joined;        /* lanes that are called together: those of a row, or one */
    uint32_t group_pages;     /* pages whose lanes are selected at a time, for a disk */
    /* Masks and lists are in the backend's memory, scratch of a place. */
    uint32_t *mask;          /* [n_seq_max][n_kv_head][max_page] */
    uint32_t *page;          /* [n_seq_max][n_kv_head * max_page] lists for the attention op */
    uint32_t *page_ptr;      /* [n_seq_max][n_kv_head + 1] */
    uint32_t *tok, *tok_ptr; /* the same for single tokens, [n_seq_max][n_kv_head * n_ctx] */
    float *logw;             /* of single tokens, as tok; NULL: none has any */
    struct attn_count *made; /* of a device: [n_layer, n_seq_max * n_kv_head] for its own layers */
    bool *attended; /* [n_seq_max, n_kv_head], or NULL: attention reads everything that is listed */
    struct decode_device device;
    struct decode_votes votes;
    /* [method_set_rooms] lanes in use: struct method_batch, and their numbers in the batch */
    struct method_lane *lane;
    struct method_pick *pick;
    struct op_lane_result *result;
    uint32_t *target;
    union op_lane *list;
    uint32_t *item;
};

/* Part of method_set_plan, if some method is not dense: lanes, and the rows of the past. */
void decode_plan(sac_engine *e, struct arena *a);
/* Part of method_set_plan_rooms: masks and lists. */
void decode_plan_rooms(sac_engine *e, struct arena *a);

/* The method of a run's sequence. */
const struct method *decode_method(const sac_engine *e, uint32_t run_i);
/* The number of lanes that are called together. */
uint32_t decode_joined(const sac_engine *e);

/* Shows the layer's rows to the methods and determines what decode rows read; after sealing and
 * before attention. */
void decode_choose(sac_engine *e, struct reading *r);

/* The same on a device, for which the host does not wait. */
void decode_device_plan(sac_engine *e, struct arena *a);
void decode_device_plan_rooms(sac_engine *e, struct arena *a);
void decode_device_choose(sac_engine *e, struct reading *r);
/* After the layer's attention: adds the entries for unread tokens to its output. */
void decode_device_correct(sac_engine *e, const struct reading *r);
/* After all layers: fetches the selections. After the wait: adds them to the counters. */
void decode_device_fetch(sac_engine *e);
void decode_device_count(sac_engine *e);

/* Host memory that a worker needs for it; 0: the method has no votes, or the host selects. */
size_t decode_votes_bytes(const sac_engine *e, const struct method_spec *spec);
void decode_votes_plan(sac_engine *e, struct arena *a);
/* Shows a decode row to a method that evicts tokens by votes, has it select if that is due, and
 * frees pages. False: the row's method has no votes. */
bool decode_votes_learn(sac_engine *e, const struct reading *r, uint32_t run_i);
/* After a sequence was loaded: copies the mask of the tokens that are still kept to the device. */
void decode_votes_show(const sac_engine *e, uint32_t seq_i);

#endif
