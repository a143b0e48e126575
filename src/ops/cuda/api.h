/* api.h: what the program and libsaccade_cuda.so say to each other. The library is loaded at run
 * time, so that one program serves machines with and without a GPU. It exports `cuda_api_get`
 * alone, which returns a table; program and library must be of one build, and `abi` says whether
 * they are.
 *
 * Contract of every launcher (the functions on struct cuda_device and an op):
 *  - The op struct is ops.h's. Activations, weights, frames, tails and scratch are memory of the
 *    device; the struct itself and whatever describes the work (parts, runs, tables, lists, segment
 *    views and their angles, geometry) are memory of the host, which may change as soon as the
 *    launcher has returned. README.md has the list, field by field.
 *  - Work is put on the device's one stream and not waited for. A launcher allocates nothing.
 *  - SAC_OK, or the device remembers the first failure with its message, and `wait` tells it.
 *  - Results depend on the row alone (design D7), as in ops.h.
 * One thread at a time uses a device, and those of a process are used by one thread. */
#ifndef SAC_OPS_CUDA_API_H
#define SAC_OPS_CUDA_API_H

#include "ops/depot.h"
#include "ops/lanes.h"
#include "ops/mass.h"
#include "ops/plans.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with the shape of any struct that crosses the border. */
#define CUDA_ABI                                                                                   \
    (1000000u +                                                                                    \
     (uint32_t)(sizeof(struct op_linear) + sizeof(struct op_attn) + 3 * sizeof(struct attn_run) +  \
                5 * sizeof(struct attn_plan) + 7 * sizeof(struct page_geom) +                      \
                11 * sizeof(struct weight) + 17 * sizeof(union op_lane) +                          \
                19 * sizeof(struct depot_map) + 23 * sizeof(struct op_sample) +                    \
                29 * sizeof(struct op_blocks) + 31 * sizeof(struct op_mass) +                      \
                37 * sizeof(struct op_lane_observe) + 41 * sizeof(struct op_lane_keep) +           \
                43 * sizeof(struct op_past) + 47 * sizeof(struct op_lane_lines) +                  \
                53 * sizeof(struct op_trace) + 59 * sizeof(struct op_antidiag) +                   \
                61 * sizeof(struct op_lane_recall) + 67 * sizeof(struct op_lane_settle) +          \
                71 * sizeof(struct attn_count) + 13 * sizeof(struct cuda_api)))

struct cuda_device; /* of the library; device.cuh */

struct cuda_info {
    char name[128];
    uint32_t index, major, minor; /* compute capability */
    uint32_t n_sm;
    size_t bytes, bytes_free; /* of memory */
    uint32_t driver, runtime; /* CUDA versions, 1000 * major + 10 * minor */
};

struct cuda_api {
    uint32_t abi;

    /* ---- Devices. `err` gets the message; the library fills it itself. ---- */

    /* Number of GPUs; fails without a driver, or with one that is too old. */
    sac_status (*count)(uint32_t *out, sac_error *err);
    sac_status (*info)(struct cuda_info *out, uint32_t index, sac_error *err);
    /* Whether there are kernels for such pages and so many query heads. */
    sac_status (*check)(const struct page_geom *geom, uint32_t n_head, sac_error *err);
    /* A stream and its rings on GPU `index`. */
    sac_status (*open)(struct cuda_device **out, uint32_t index, sac_error *err);
    void (*close)(struct cuda_device *d); /* NULL is nothing */

    /* ---- Memory, aligned to 256 ---- */

    void *(*take)(struct cuda_device *d, size_t bytes); /* zeroed; NULL: there is not as much */
    void (*give)(struct cuda_device *d, void *p);       /* NULL is nothing */
    /* Memory of the machine that program and device both reach at the same address; NULL: there is
     * not as much. */
    void *(*take_shared)(struct cuda_device *d, size_t bytes);
    void (*give_shared)(struct cuda_device *d, void *p); /* NULL is nothing */
    /* Memory of the program's that copies from the device go to without a detour, until it is let
     * go; of one block at a time. Where the system does not allow that, nothing happens. */
    void (*pin)(struct cuda_device *d, void *p, size_t bytes);
    void (*unpin)(struct cuda_device *d); /* nothing is pinned: nothing */

    /* ---- The queue. Copies are in order with the ops. ---- */

    /* Host to device: `src` may change once the call has returned. */
    void (*up)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* Rows of `width` bytes: of the host, behind each other, to the device, `pitch` bytes apart. */
    void (*up_rows)(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                    size_t n_row);
    /* Device to host: `dst` is written by the next `wait`, at the latest. */
    void (*down)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* Within the device; apart from each other. */
    void (*copy)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* From one device to another, behind what is queued on both, and before what is queued on
     * either from here on; nobody waits here. Where one cannot reach the other, the driver takes
     * the way through the machine's memory. */
    void (*send)(struct cuda_device *from, struct cuda_device *to, void *dst, const void *src,
                 size_t bytes);
    /* From here on these n devices are a team, for `sum`: launches of one go to its stream when
     * those of all do, so that no GPU waits for one that has yet to be told. `inbox[i]` is memory
     * of d[i], [2, n, n_word]. A team ends when one of them is closed. false, and nothing has
     * changed: one of them cannot write to another's memory. */
    bool (*join)(struct cuda_device *const *d, uint64_t *const *inbox, uint32_t n, size_t n_word);
    /* Everything is done, but for a step that is kept back; or the first thing that went wrong
     * since the last call. */
    sac_status (*wait)(struct cuda_device *d, sac_error *err);

    /* ---- A step ahead: described while the device computes the one before ---- */

    /* What is queued begins. What is queued from here to `ahead_end` is kept back until `ahead_go`,
     * and forgotten as soon as anything else is queued. false, and nothing has changed: it cannot
     * be kept. Of a team it is a step of all, and one of them is asked for it. */
    bool (*ahead_begin)(struct cuda_device *d);
    /* As `up`, of bytes that the caller puts into the room that it gets, before `ahead_go`. NULL:
     * there is none, and `ahead_end` will say so. */
    void *(*up_later)(struct cuda_device *d, void *dst, size_t bytes);
    /* false: it was too much to keep, and is forgotten. */
    bool (*ahead_end)(struct cuda_device *d);
    /* The step begins; what is queued from here on comes behind it. false: it has been forgotten.
     */
    bool (*ahead_go)(struct cuda_device *d);

    /* ---- Operations, as in struct ops ---- */

    sac_status (*linear)(struct cuda_device *d, const struct op_linear *op);
    sac_status (*unpack)(struct cuda_device *d, const struct weight *w); /* fills w->plain */
    sac_status (*attn)(struct cuda_device *d, const struct op_attn *op);
    sac_status (*kv_write)(struct cuda_device *d, const struct op_kv_write *op);
    sac_status (*seal)(struct cuda_device *d, const struct op_seal *op);
    sac_status (*unseal)(struct cuda_device *d, const struct op_unseal *op);
    sac_status (*mass)(struct cuda_device *d, const struct op_mass *op);
    sac_status (*rmsnorm)(struct cuda_device *d, const struct op_rmsnorm *op);
    sac_status (*rope)(struct cuda_device *d, const struct op_rope *op);
    sac_status (*add)(struct cuda_device *d, const struct op_add *op);
    sac_status (*top)(struct cuda_device *d, const struct op_top *op);
    /* On all of the team that d is in: `op` has one for each, in the order in which they joined. */
    sac_status (*sum)(struct cuda_device *d, const struct op_sum *op);
    /* Choosing: lists of n lanes, as in struct ops_lanes. */
    sac_status (*lane_boxes)(struct cuda_device *d, const struct op_lane_boxes *op, uint32_t n);
    sac_status (*lane_logits)(struct cuda_device *d, const struct op_lane_logits *op, uint32_t n);
    sac_status (*lane_shares)(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n);
    sac_status (*lane_vote)(struct cuda_device *d, const struct op_lane_vote *op, uint32_t n);
    sac_status (*lane_fold)(struct cuda_device *d, const struct op_lane_fold *op, uint32_t n);
    sac_status (*lane_ends)(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n);
    sac_status (*lane_take)(struct cuda_device *d, const struct op_lane_take *op, uint32_t n);
    sac_status (*lane_draw)(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n);
    sac_status (*lane_visit)(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n);
    sac_status (*lane_begin)(struct cuda_device *d, const struct op_lane_begin *op, uint32_t n);
    sac_status (*lane_list)(struct cuda_device *d, const struct op_lane_list *op, uint32_t n);
    sac_status (*lane_observe)(struct cuda_device *d, const struct op_lane_observe *op, uint32_t n);
    sac_status (*lane_keep)(struct cuda_device *d, const struct op_lane_keep *op, uint32_t n);
    sac_status (*lane_lines)(struct cuda_device *d, const struct op_lane_lines *op, uint32_t n);
    sac_status (*past)(struct cuda_device *d, const struct op_past *op, uint32_t n);
    sac_status (*lane_recall)(struct cuda_device *d, const struct op_lane_recall *op, uint32_t n);
    sac_status (*lane_settle)(struct cuda_device *d, const struct op_lane_settle *op, uint32_t n);
    sac_status (*lane_rest)(struct cuda_device *d, const struct op_lane_rest *op, uint32_t n);
    sac_status (*note)(struct cuda_device *d, const struct op_note *op);
    sac_status (*depot_store)(struct cuda_device *d, const struct op_depot_store *op);
    sac_status (*depot_renew)(struct cuda_device *d, const struct op_depot_renew *op);
    sac_status (*depot_fetch)(struct cuda_device *d, const struct op_depot_fetch *op);
    sac_status (*sample)(struct cuda_device *d, const struct op_sample *op);
    sac_status (*blocks)(struct cuda_device *d, const struct op_blocks *op);
    sac_status (*trace)(struct cuda_device *d, const struct op_trace *op);
    sac_status (*antidiag)(struct cuda_device *d, const struct op_antidiag *op);
    size_t (*linear_scratch)(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum);
    size_t (*attn_scratch)(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max);
};

/* The one symbol that is looked up. */
#define CUDA_API_SYMBOL "cuda_api_get"
typedef const struct cuda_api *(*cuda_api_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
