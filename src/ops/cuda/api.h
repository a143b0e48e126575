/* api.h: the interface between the program and libsaccade_cuda.so.
 *
 * The library is loaded at run time, so that one program serves machines with and without a GPU. It
 * exports `cuda_api_get` alone, which returns a table of functions. Program and library must come
 * from one build, which `abi` verifies.
 *
 * Contract of every launcher (a function that takes a struct cuda_device and an op):
 *  - The op structs are those of ops.h and its siblings. Activations, weights, frames, tails and
 *    scratch are device memory. The struct itself and what describes the work (parts, runs, tables,
 *    lists, segment views and their angles, geometry) are host memory, which may change as soon as
 *    the launcher has returned. docs/walk_gpu.md lists them field by field.
 *  - Work is queued on the device's one stream. A launcher does not wait and allocates nothing.
 *  - It returns SAC_OK, or the device remembers the first failure with its message, which `wait`
 *    reports.
 *  - Results depend on the row alone (design D7), as in ops.h.
 *
 * A device is used by one thread at a time, and all devices of a process by the same thread. */
#ifndef SAC_OPS_CUDA_API_H
#define SAC_OPS_CUDA_API_H

#include "ops/lanes.h"
#include "ops/mass.h"
#include "ops/offload.h"
#include "ops/plans.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with the size of any struct that crosses the interface. */
#define CUDA_ABI                                                                                   \
    (1000000u +                                                                                    \
     (uint32_t)(sizeof(struct op_linear) + sizeof(struct op_attn) + 3 * sizeof(struct attn_run) +  \
                5 * sizeof(struct attn_plan) + 7 * sizeof(struct page_geom) +                      \
                11 * sizeof(struct weight) + 17 * sizeof(union op_lane) +                          \
                19 * sizeof(struct offload_map) + 23 * sizeof(struct op_sample) +                  \
                29 * sizeof(struct op_blocks) + 31 * sizeof(struct op_mass) +                      \
                37 * sizeof(struct op_lane_observe) + 41 * sizeof(struct op_lane_keep) +           \
                43 * sizeof(struct op_past) + 47 * sizeof(struct op_lane_lines) +                  \
                53 * sizeof(struct op_trace) + 59 * sizeof(struct op_antidiag) +                   \
                61 * sizeof(struct op_lane_recall) + 67 * sizeof(struct op_lane_settle) +          \
                71 * sizeof(struct attn_count) + 13 * sizeof(struct cuda_api)))

struct cuda_device; /* defined in device.cuh */

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

    /* The number of GPUs. Fails without a driver, or with one that is too old. */
    sac_status (*count)(uint32_t *out, sac_error *err);
    sac_status (*info)(struct cuda_info *out, uint32_t index, sac_error *err);
    /* Whether there are kernels for pages of this geometry and so many query heads. */
    sac_status (*check)(const struct page_geom *geom, uint32_t n_head, sac_error *err);
    /* Opens GPU `index`: a stream, the rings and cuBLASLt. */
    sac_status (*open)(struct cuda_device **out, uint32_t index, sac_error *err);
    void (*close)(struct cuda_device *d); /* NULL is allowed */

    /* ---- Memory, aligned to 256 ---- */

    void *(*take)(struct cuda_device *d, size_t bytes); /* zeroed; NULL: out of memory */
    void (*give)(struct cuda_device *d, void *p);       /* NULL is allowed */
    /* Pinned host memory, at the same address for program and device. NULL: out of memory. */
    void *(*take_shared)(struct cuda_device *d, size_t bytes);
    void (*give_shared)(struct cuda_device *d, void *p); /* NULL is allowed */
    /* Pins memory of the program, so that copies from the device need no staging, until `unpin`.
     * One block at a time. Does nothing where the system refuses; copies then take longer. */
    void (*pin)(struct cuda_device *d, void *p, size_t bytes);
    void (*unpin)(struct cuda_device *d); /* may be called with nothing pinned */

    /* ---- The queue. Copies are in order with the ops. ---- */

    /* Copies from host to device. `src` may change as soon as the call has returned. */
    void (*up)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* Copies rows of `width` bytes: contiguous on the host, `pitch` bytes apart on the device. */
    void (*up_rows)(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                    size_t n_row);
    /* Copies from device to host. `dst` is valid after the next `wait`. */
    void (*down)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* Copies within the device; the ranges do not overlap. */
    void (*copy)(struct cuda_device *d, void *dst, const void *src, size_t bytes);
    /* Copies from one device to another, after everything queued on both so far and before
     * everything queued on either later. The host does not wait. Without peer access the driver
     * goes through host memory. */
    void (*send)(struct cuda_device *from, struct cuda_device *to, void *dst, const void *src,
                 size_t bytes);
    /* Makes these n devices a team, for `sum`: their launches are issued together, so that no GPU
     * waits for a launch that the host has yet to issue. `inbox[i]` is memory of d[i], [2, n,
     * n_word]. A team ends when one of its devices is closed. Returns false, and changes nothing,
     * if one of them cannot write to another's memory. */
    bool (*join)(struct cuda_device *const *d, uint64_t *const *inbox, uint32_t n, size_t n_word);
    /* Waits until everything queued is done, but for a step that is kept back. Reports the first
     * failure since the last call. */
    sac_status (*wait)(struct cuda_device *d, sac_error *err);

    /* ---- A step ahead: described while the device computes the one before ---- */

    /* Issues what is queued, then records: what is queued until `ahead_end` is kept back until
     * `ahead_go`, and dropped as soon as anything else is queued. Returns false, and changes
     * nothing, if nothing can be kept back now. For a team any one of its devices is asked, and the
     * step is that of all. */
    bool (*ahead_begin)(struct cuda_device *d);
    /* As `up`, but the caller writes the bytes into the returned buffer later, before `ahead_go`.
     * NULL: there is no room, and `ahead_end` will return false. */
    void *(*up_later)(struct cuda_device *d, void *dst, size_t bytes);
    /* Ends the recording. false: the step was too large to be kept, and is dropped. */
    bool (*ahead_end)(struct cuda_device *d);
    /* Starts the step; what is queued from here on follows it. false: it had been dropped. */
    bool (*ahead_go)(struct cuda_device *d);

    /* ---- Operations, as in struct ops ---- */

    sac_status (*linear)(struct cuda_device *d, const struct op_linear *op);
    sac_status (*unpack)(struct cuda_device *d,
                         const struct weight *w); /* unpacks to f16, into w->plain */
    sac_status (*attn)(struct cuda_device *d, const struct op_attn *op);
    sac_status (*kv_write)(struct cuda_device *d, const struct op_kv_write *op);
    sac_status (*seal)(struct cuda_device *d, const struct op_seal *op);
    sac_status (*unseal)(struct cuda_device *d, const struct op_unseal *op);
    sac_status (*mass)(struct cuda_device *d, const struct op_mass *op);
    sac_status (*rmsnorm)(struct cuda_device *d, const struct op_rmsnorm *op);
    sac_status (*rope)(struct cuda_device *d, const struct op_rope *op);
    sac_status (*add)(struct cuda_device *d, const struct op_add *op);
    sac_status (*top)(struct cuda_device *d, const struct op_top *op);
    /* On all devices of d's team: `op` is an array with one entry for each, in the order in which
     * they joined. */
    sac_status (*sum)(struct cuda_device *d, const struct op_sum *op);
    /* Selection: arrays of n lanes, as in struct ops_lanes. */
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
    sac_status (*offload_store)(struct cuda_device *d, const struct op_offload_store *op);
    sac_status (*offload_renew)(struct cuda_device *d, const struct op_offload_renew *op);
    sac_status (*offload_fetch)(struct cuda_device *d, const struct op_offload_fetch *op);
    sac_status (*sample)(struct cuda_device *d, const struct op_sample *op);
    sac_status (*blocks)(struct cuda_device *d, const struct op_blocks *op);
    sac_status (*trace)(struct cuda_device *d, const struct op_trace *op);
    sac_status (*antidiag)(struct cuda_device *d, const struct op_antidiag *op);
    size_t (*linear_scratch)(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum);
    size_t (*attn_scratch)(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max);
};

/* The one symbol that the program looks up. */
#define CUDA_API_SYMBOL "cuda_api_get"
typedef const struct cuda_api *(*cuda_api_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
