/* decode.h: decode methods at work: what they read is made of their marks. */
#ifndef SAC_ENGINE_DECODE_H
#define SAC_ENGINE_DECODE_H

#include "engine/attend.h"
#include "methods/method.h"
#include "methods/spec.h"

/* What the host knows of a lane's choice on a device. */
struct decode_known {
    bool asked; /* a method has chosen */
    bool dense, not_finite;
};

/* Of one step, by layer, until it is counted. */
struct decode_choices {
    struct decode_known *known; /* [n_layer][n_seq_max * n_kv_head] */
    bool *chosen;               /* [n_layer][n_seq_max] by lists, not dense as a whole */
    bool *listed;               /* [n_layer] some lane is not known to be dense: made tells */
    bool pending;               /* some of it is not counted yet */
};

/* Where a device chooses: what came of it, by layer, for the counters (decode_device.c). */
struct decode_away {
    struct attn_count *count;  /* [n_layer][n_seq_max * n_kv_head] of struct decode's `made` */
    struct decode_choices now; /* the host's part */
    struct reading_rest rest;  /* in the device's memory; NULLs: no method there has any */
    /* Lists of the host's, of sequences that lack pages: [n_seq_max][n_kv_head * max_page] and
     * [n_seq_max][n_kv_head + 1] */
    uint32_t *left, *left_ptr;
};

/* Of methods that drop tokens by what a device has looked at (decode_votes.c). */
struct decode_votes {
    size_t stride, scratch_bytes;
    float *looked;    /* [n_kv_head][stride] sums of the run at hand */
    uint8_t *scratch; /* [workers][scratch_bytes] of the methods' code, in the host's memory */
    bool *changed;    /* [n_kv_head] has chosen anew */
};

struct decode {
    bool has_see, evicts, has_rest; /* some method wants to see rows, gives pages back, guesses */
    bool token_grain, weighs;       /* reads single tokens, by weights */
    uint32_t n_joined;              /* lanes that are asked together: a row's, or one */
    uint32_t group_pages;           /* of lanes that are asked one after the other, for a disk */
    /* Masks and lists are memory of the backend, rooms of a place. */
    uint32_t *mask;          /* [n_seq_max][n_kv_head][max_page] */
    uint32_t *page;          /* [n_seq_max][n_kv_head * max_page] lists for the attention op */
    uint32_t *page_ptr;      /* [n_seq_max][n_kv_head + 1] */
    uint32_t *tok, *tok_ptr; /* the same for single tokens, [n_seq_max][n_kv_head * n_ctx] */
    float *logw;             /* of single tokens, as tok; NULL: none has any */
    struct attn_count *made; /* of a device: [n_layer][n_seq_max * n_kv_head], its own layers' */
    bool *attended; /* [n_seq_max][n_kv_head], or NULL: attention reads all that is listed */
    struct decode_away away;
    struct decode_votes votes;
    /* [chooser_rooms] of lanes that are asked: struct method_batch, and their numbers in the batch
     */
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
/* Lanes that are asked together. */
uint32_t decode_joined(const sac_engine *e);

/* Shows the layer's rows to the methods and says what decode rows read; between seal and attention.
 */
void decode_choose(sac_engine *e, struct reading *r);

/* The same on a device, which is not waited for. */
void decode_device_plan(sac_engine *e, struct arena *a);
void decode_device_plan_rooms(sac_engine *e, struct arena *a);
void decode_device_choose(sac_engine *e, struct reading *r);
/* Behind the layer's attention: what stands for tokens that are not read joins its output. */
void decode_device_correct(sac_engine *e, const struct reading *r);
/* Behind all layers: brings what was chosen. Behind the wait: adds it to the counters. */
void decode_device_fetch(sac_engine *e);
void decode_device_count(sac_engine *e);

/* What a worker of the host needs for it; 0: it has no votes, or the host chooses. */
size_t decode_votes_bytes(const sac_engine *e, const struct spec *spec);
void decode_votes_plan(sac_engine *e, struct arena *a);
/* Shows a decode row to a method that drops tokens by votes, lets it choose where that is due, and
 * gives pages back. False: the row's method is another. */
bool decode_votes_learn(sac_engine *e, const struct reading *r, uint32_t run_i);
/* A sequence has been loaded: the device learns what lives. */
void decode_votes_show(const sac_engine *e, uint32_t seq_i);

#endif
