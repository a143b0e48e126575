/* place.h: which device computes which layers, with what memory. An engine has one place, the CPU
 * or a GPU, or more: several GPUs (params.device), preceded by the CPU if it computes the first
 * layers (params.n_device_layer). A step goes through the places in order, and passes the hidden
 * states of its rows from each to the next. If GPUs have only the last layers, the CPU computes the
 * output; otherwise the last GPU does.
 *
 * Keys and values are where their layer is computed, and so is its attention. With
 * params.kv_on_host all of them are the program's: then the first place is the CPU, whatever layers
 * it has, it computes attention of every layer, and the other places only have the linear part of
 * their layers. In each of these, queries, keys and values of the rows are copied to the CPU, and
 * the results of attention back.
 *
 * What a layer works with are fields of the engine, whatever computes it: the backend and its
 * operations, weights, scratch, scratch of the methods. place_enter sets them to those of a place.
 * Between steps an engine is in its first one. */
#ifndef SAC_ENGINE_PLACE_H
#define SAC_ENGINE_PLACE_H

#include "engine/method_set.h"
#include "engine/moe.h"
#include "engine/prefill.h"
#include "kv/pool.h"
#include "model/weights.h"
#include "ops/backend.h"

#define DEVICES_MAX (POOL_PARTS_MAX - 1)
#define PLACES_MAX  POOL_PARTS_MAX

/* Activations of one step, f32, in the backend's memory. */
struct scratch {
    float *x; /* [n_row_max, n_embd] residual stream */
    /* [n_all, n_row_max, n_embd] results of the shares of a layer's branch (tensor_parallel.h); for
     * a layer computed alone, if a norm follows */
    float *tmp;
    uint64_t
        *inbox;  /* [2, n_all, tensor_parallel_inbox_words] where other shares write their sums */
    float *qkv;  /* [n_row_max, (n_head + 2 n_kv_head) * head_dim] */
    float *attn; /* [n_row_max, n_head * head_dim] */
    float *ffn;  /* [n_row_max, n_ff] */
    struct moe moe;         /* of layers with experts */
    float *cos[2], *sin[2]; /* [n_row_max, n_rot/2] of global and of local layers */
    /* The same arrays in host memory, to be filled before an upload; x, cos and sin themselves
     * unless a device computes. */
    float *x_in, *cos_in[2], *sin_in[2];
    float *qkv_seen; /* qkv in host memory (layer_look), likewise */
    uint8_t *own; /* 16-bit pages that a chunk begins: [attend_new_pages][n_kv_head][tail_bytes] */
    void *linear, *attn_ops; /* scratch of the ops */
    size_t linear_bytes, attn_bytes;
};

/* Scratch of methods, in the backend's memory. */
struct place_rooms {
    uint8_t *worker[METHOD_SET_KINDS]; /* as in struct method_set */
    uint32_t *mask, *page, *tok;       /* as in struct decode, like the next ones */
    float *logw;
    struct op_lane_result *result;
    struct attn_count *made;
    struct prefill_rooms prefill; /* as in struct prefill_device */
    uint8_t *side;                /* as in struct side, of the pages of the place's layers */
    uint32_t n_side_page;
};

struct place {
    uint32_t layer0, end;   /* its layers; with kv_on_host those whose linear part it computes */
    struct backend backend; /* owned */
    const struct weights *weights; /* the model's, or `copy` */
    struct scratch scratch;
    struct place_rooms rooms;
    sac_status status; /* a failure that has not been reported yet */
    sac_error why;     /* its message */
    /* Only of a device: */
    struct weights copy; /* owned: weights of its layers, and the output's if it computes that */
    void *plain;         /* owned: its first layers' matrices in f16; NULL: none */
    size_t plain_bytes;
    uint8_t *block; /* owned: memory of all arrays on which it computes */
    size_t block_bytes;
    struct arena arena; /* of that block, while it is planned */
};

/* Part of the engine's plan_memory, after the methods: each place's own memory; that of devices is
 * in their arenas. */
void place_plan(sac_engine *e, struct arena *a);

/* Called when the places are open: the engine is in the first one. */
void place_begin(sac_engine *e);
/* From here on, the fields with which layers work are those of place i. */
void place_enter(sac_engine *e, uint32_t i);
/* The number of the place that has a layer's pages and attends to them; of the one that computes
 * its linear part; and of the one that computes the output. */
uint32_t place_of(const sac_engine *e, uint32_t layer);
uint32_t place_linear(const sac_engine *e, uint32_t layer);
uint32_t place_of_output(const sac_engine *e);
/* The last place: a device's, if there is one. */
struct place *place_last(sac_engine *e);
/* The number of the first device's place, and the number of devices; n_place and 0 if there is
 * none. */
uint32_t place_first_device(const sac_engine *e);
uint32_t place_n_device(const sac_engine *e);
/* Whether the CPU, or a device, has the pages of some or all layers, and so attends and selects. */
bool place_has_host(const sac_engine *e);
bool place_has_device(const sac_engine *e);

/* In a step: moves hidden states to place i, with what it needs to compute. On the CPU they are
 * available after place_wait. */
void place_cross(sac_engine *e, uint32_t i);
/* Around the attention of a layer: moves the rows' queries, keys and values to the place that has
 * its pages, waiting for them, and the results back. Neither does anything if one place computes
 * the whole layer. */
void place_to_pages(sac_engine *e, uint32_t layer);
void place_from_pages(sac_engine *e, uint32_t layer);
/* Waits until all places have finished; or returns the first failure since the last call. */
sac_status place_wait(sac_engine *e, sac_error *err);

#endif
