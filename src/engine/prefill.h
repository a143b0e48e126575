/* prefill.h: running prefill methods: their tables and their plans. Masks and lists are those of
 * the current layer and batch. */
#ifndef SAC_ENGINE_PREFILL_H
#define SAC_ENGINE_PREFILL_H

#include "engine/attend.h"
#include "methods/method_spec.h"
#include "methods/plan.h"

struct prefill_method {
    uint32_t tile_tok, n_part;
    void *table; /* of struct method_table; NULL: no table */
};

#define PREFILL_STEPS 8 /* maximum steps for which the host has not waited */

/* The lists of one step, until they are counted: [n_seq_max] tiles and sequences of the runs that
 * have plans, [n_seq_max + 1] indices of their first lists, and [n_layer, list_max] the counts. */
struct prefill_step {
    uint32_t n_plan;
    struct plan *plan;
    uint32_t *seq_i, *first;
    struct attn_list *list;
};

/* The layer of a run's last call, and the number of that call; 0: there was none. */
struct prefill_before {
    uint32_t layer, call;
};

/* Scratch of a device that selects, belonging to a place. */
struct prefill_rooms {
    uint32_t *mask; /* [run_list_max, max_page] this and the following as in struct op_sample */
    uint8_t *weight;
    uint16_t *query;
    float *start;
    uint32_t *failed;
    uint8_t *fused;           /* [n_seq_max][n_kv_head][fused_bytes] */
    struct attn_range *range; /* [list_max * range_max] */
    uint32_t *tok;            /* [list_max * tok_max] */
    float *logw;
    struct attn_list *made; /* [n_layer][list_max] */
    void *room; /* [room_bytes] of struct op_trace or op_antidiag; runs use it in turn */
    void *pool; /* [pool_bytes] the same, of struct op_trace */
};

/* If a device selects (prefill_device.c). */
struct prefill_device {
    size_t list_max;     /* maximum lists of a batch's runs; 0: no device selects */
    size_t run_list_max; /* the same of one run, for methods that mark pages by lists */
    struct prefill_rooms rooms;
    uint32_t call;
    struct op_block_segment *segment; /* [run_list_max] of the current run */
    size_t fused_bytes;               /* bytes of fused scores of a KV head and run */
    struct prefill_before *before;    /* [n_seq_max] by runs of the batch, in the order of plans */
    size_t room_bytes, pool_bytes;
    uint32_t trace_rows;        /* maximum rows by which lines are selected or compared */
    uint32_t *row;              /* [2 * trace_rows] of the current run */
    struct op_trace_size *size; /* [OP_TRACE_SIZES * n_head] */
    struct prefill_step step[PREFILL_STEPS];
    uint32_t n_step; /* steps that are not counted yet; the current one follows them */
};

struct prefill {
    struct prefill_method method[SAC_METHODS_MAX]; /* as in e->method_set */
    uint32_t chunk_tok;  /* chunks end at its multiples, whatever else is in the batch */
    size_t mask_words;   /* of one lane */
    uint32_t *mask;      /* [n_kv_head][mask_words] */
    bool weighs;         /* whether some method weights tokens */
    uint8_t *weight;     /* [n_kv_head, mask_words * PAGE_TOK] if so */
    uint8_t *list_dense; /* [n_kv_head, list_max of one lane] */
    size_t lane_list_max;
    struct plan *plan;             /* [n_kv_head] of the current run */
    struct plan *part;             /* [n_kv_head * tile_max] the same, tile by tile */
    size_t lane_bytes;             /* maximum of method_prefill.lane_bytes */
    struct method_lane *lane;      /* [n_kv_head] for methods that plan all lanes at once */
    uint8_t *lane_room;            /* [n_kv_head * lane_bytes] */
    uint32_t tile_max;             /* tiles of a chunk */
    struct plan_lists *lists;      /* [n_seq_max] of the batch's runs that have a plan */
    uint32_t tok_max, range_max;   /* maximum of a list */
    struct attn_range *range;      /* [list_max * range_max] */
    uint32_t *tok;                 /* [list_max * tok_max] */
    float *tok_logw;               /* the same; NULL: no method weights tokens */
    uint32_t *range_ptr, *tok_ptr; /* [list_max + n_seq_max] */
    struct prefill_device device;
    uint64_t *n_skip; /* [n_worker] as in struct op_attn, since the engine was created */
};

/* Determines the length of chunks; returns the rows that a step may need for them, in addition to
 * one decode row of every other sequence. */
uint32_t prefill_init(sac_engine *e);
/* Part of method_set_plan, if some method is not dense: tables, masks and lists. */
void prefill_plan(sac_engine *e, struct arena *a);

/* The table of heads of a sequence's method, or NULL. */
const void *prefill_table(const sac_engine *e, uint32_t seq_i);
/* Reads the tables of heads named in specifications. */
sac_status prefill_read_tables(sac_engine *e, sac_error *err);

/* Rows of the next chunk of a sequence with n pending prompt rows: for methods that plan, chunks
 * end at fixed positions. 0: as many as fit. */
uint32_t prefill_chunk(const sac_engine *e, uint32_t seq_i, uint32_t n);

/* Determines what the layer's prompt rows read; after sealing and before attention. */
void prefill_choose(sac_engine *e, struct reading *r);

/* The tiles of a run's plan, without masks. */
struct plan prefill_shape(const sac_engine *e, uint32_t run_i);
/* Adds what the lists of a run and layer read. */
void prefill_count(const sac_engine *e, sac_reads *t, const struct plan_stats *s, uint32_t n_part);

/* The same on a device, for which the host does not wait. Whether a device may select for a method
 * in some layers, and does in the current one; sizes and memory; the start of a layer; one run's
 * plan. */
bool prefill_may_be_on_device(const sac_engine *e, const struct method_prefill *hooks);
bool prefill_is_on_device(const sac_engine *e, const struct method_prefill *hooks);
/* Provides scratch for a method's plans, with at least so many lists of a run and of a batch. */
void prefill_device_size(sac_engine *e, const struct method_spec *spec, size_t run_list,
                         size_t list);
void prefill_device_plan(sac_engine *e, struct arena *a);
void prefill_device_plan_rooms(sac_engine *e, struct arena *a);
void prefill_device_begin(sac_engine *e);
void prefill_device_choose(sac_engine *e, struct reading *r, uint32_t run_i, struct attn_plan *out);
/* After all layers: fetches the selections. After a wait: adds them to the counters. */
void prefill_device_fetch(sac_engine *e);
void prefill_device_count(sac_engine *e);
/* Whether there is room for one more step before selections are counted. */
bool prefill_device_has_room(const sac_engine *e);
/* The device has failed: its selections are unknown. */
void prefill_device_drop(sac_engine *e);

#endif
