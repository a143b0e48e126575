/* device.cuh: one GPU as the launchers of this folder see it.
 *
 * Descriptors (structs and arrays that describe the work) go to the GPU through a ring: stage_put
 * copies a piece into pinned memory and returns the address that it will have on the device.
 * Launches are recorded (queue.cuh) and issued after one copy of all pieces. So a launcher is:
 * stage_reserve for everything, stage_put for each piece, `return queue_launch(...)`. The ring
 * starts over when the host has waited for the device; when it is full, the launcher waits. */
#ifndef SAC_OPS_CUDA_DEVICE_CUH
#define SAC_OPS_CUDA_DEVICE_CUH

#include "ops/cuda/api.h"

#include <cuda_runtime.h>

#define STAGE_ALIGN 64u
#define TEAM_MAX    16u
#define TALLY       8192u
#define DRAW_LANES  256u  /* lanes of one launch of a draw, at most */
#define DRAW_CUTS   1024u /* candidate cuts of a draw */

struct cuda_blas;
struct cuda_queue;

/* The step that is kept back (api.h): none; it is being recorded; it is being recorded but can no
 * longer be kept; it is ready to start. */
enum device_ahead { AHEAD_NONE, AHEAD_RECORDING, AHEAD_OVERFLOW, AHEAD_READY };

/* Pinned buffers that large copies to the GPU use in turn. */
#define STAGING_BUFFERS 8u
struct staging_buffer {
    uint8_t *host, *mirror; /* [PIECE_BYTES] and its mirror on the GPU; NULL until first used */
    cudaEvent_t sent;       /* recorded when the content is in the mirror */
    cudaEvent_t read;       /* recorded when the mirror has been read */
};

struct cuda_device {
    uint32_t index, major, minor, n_sm;
    size_t smem_max; /* dynamic shared memory of a block, at most */
    cudaStream_t stream;
    cudaEvent_t reached;                /* recorded in this stream for other devices to wait on */
    uint64_t asked, reaches;            /* bit i: access to device i was asked for; was granted */
    struct cuda_device *team[TEAM_MAX]; /* [n_team] devices whose launches are issued together */
    uint32_t n_team;                    /* 1: a device by itself */
    uint64_t *inbox;                    /* [2, n_team, n_word] for the team's sums (team.cu) */
    size_t n_word;
    uint32_t tag, tag_before; /* of the team's last sum; the same before the step kept back */
    uint32_t *lost; /* pinned: 1 + the index of a device that did not come to a sum; 0: none */
    uint8_t *ring_host, *ring; /* [ring_bytes] pinned, and its mirror on the device */
    size_t ring_bytes, ring_used, ring_sent;
    size_t ring_first, ring_end; /* the part in use: all of the ring, or one half of it */
    bool ring_is_full;           /* the other half is in use as well */
    cudaEvent_t before;          /* recorded after the step before the one kept back */
    enum device_ahead ahead;
    uint8_t *pinned; /* [n_pinned] memory of the program; NULL: none */
    size_t n_pinned;
    bool owns_pinned;              /* false if something else in the process had pinned it */
    bool writes_pinned;            /* kernels can write to it at the same address */
    uint32_t *tally;               /* [TALLY] counters for block_is_last, zero between launches */
    unsigned long long *draw_sums; /* [DRAW_LANES][DRAW_CUTS] zeros between draws (draw_cut.cu) */
    struct cuda_blas *blas;        /* of blas.cu */
    struct cuda_queue *queue;      /* of queue.cu: launches that are recorded but not issued */
    sac_status status;             /* of the first failure since the last wait */
    char message[256];             /* and its message */
    struct staging_buffer piece[STAGING_BUFFERS];
    uint32_t next_staging;
    cudaStream_t sender; /* for copies to the GPU that overlap with the stream */
    cudaEvent_t staged;  /* recorded in `sender` after a copy of descriptors */
};

/* Makes this the current device of CUDA calls that allocate or launch. */
void device_use(const struct cuda_device *d);
/* Remembers a failure of CUDA; returns SAC_OK for cudaSuccess. */
sac_status device_check(struct cuda_device *d, cudaError_t code, const char *what);
/* Remembers any other failure. */
sac_status device_fail(struct cuda_device *d, sac_status code, const char *what);

/* Whether a block can have so many bytes of shared memory, static ones included; if not, remembers
 * the failure, naming `what` needs them. */
sac_status device_fits(struct cuda_device *d, size_t bytes, const char *what);

/* Whether one GPU can access another's memory; enables the access if it is possible. */
bool device_reach(struct cuda_device *from, const struct cuda_device *to);

/* Returns from the function with the status of `expr` unless it is SAC_OK, as in base/status.h. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const sac_status try_status_ = (expr);                                                     \
        if (try_status_ != SAC_OK) return try_status_;                                             \
    } while (0)

/* Room for `bytes` in the ring; the caller fills *out_host before it records the launch. NULL: more
 * than the ring holds, and the failure is remembered. The pieces of one launch are at most a
 * quarter of the ring together. */
void *stage_alloc(struct cuda_device *d, size_t bytes, void **out_host);
/* stage_alloc, filled with a copy of `src`. */
void *stage_put(struct cuda_device *d, const void *src, size_t bytes);
/* Queues one copy of all pieces since the last one on the stream. For queue.cu and device.cu. */
sac_status stage_send(struct cuda_device *d);
/* The same on the second stream, while the first still has work; only what follows waits for it. */
sac_status stage_send_early(struct cuda_device *d);
/* Drops the step that is kept back, if there is one. */
void device_forget_ahead(struct cuda_device *d);
/* Called before anything is issued: drops a step that is kept back. true: nothing is issued,
 * because the device is recording a step, which can no longer be kept. */
bool device_is_ahead(struct cuda_device *d);
/* Called before the first piece of a launch: makes sure that `bytes` more fit without a flush. */
sac_status stage_reserve(struct cuda_device *d, size_t bytes);

/* Issues and waits for everything; the ring starts over. */
sac_status stage_drain(struct cuda_device *d);
/* Whether the step before leaves half of the ring free, and the switch to that half. */
bool stage_has_half(const struct cuda_device *d);
void stage_use_other_half(struct cuda_device *d);
/* The copies of struct cuda_api. */
void stage_up(struct cuda_device *d, void *dst, const void *src, size_t bytes);
void stage_up_rows(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                   size_t n_row);
void stage_down(struct cuda_device *d, void *dst, const void *src, size_t bytes);

/* ---- cuBLASLt (blas.cu) ---- */

sac_status blas_open(struct cuda_blas **out, sac_error *err);
void blas_close(struct cuda_blas *b); /* NULL is allowed */

/* ---- Sums of several GPUs (team.cu) ---- */

/* Makes the devices of d's team single devices again. */
void team_leave(struct cuda_device *d);
/* Waits for the streams of the whole team, which may still write to each other's memory. */
sac_status team_settle(struct cuda_device *d);
/* After a wait: fails if a device did not come to a sum in time. */
sac_status team_check(struct cuda_device *d);

/* ---- Launchers, one file each ---- */

extern "C" {
sac_status cuda_linear(struct cuda_device *d, const struct op_linear *op);
size_t cuda_linear_scratch(uint32_t n_row, uint32_t n_in, uint32_t n_out_sum);
sac_status cuda_unpack(struct cuda_device *d, const struct weight *w);
sac_status cuda_rmsnorm(struct cuda_device *d, const struct op_rmsnorm *op);
sac_status cuda_rope(struct cuda_device *d, const struct op_rope *op);
sac_status cuda_add(struct cuda_device *d, const struct op_add *op);
bool cuda_join(struct cuda_device *const *d, uint64_t *const *inbox, uint32_t n, size_t n_word);
sac_status cuda_sum(struct cuda_device *d, const struct op_sum *op);
sac_status cuda_top(struct cuda_device *d, const struct op_top *op);
/* Copies rows of `width` bytes within the device; source and destination do not overlap. */
sac_status cuda_copy_rows(struct cuda_device *d, void *dst, size_t dst_pitch, const void *src,
                          size_t width, size_t n_row);
sac_status cuda_lane_boxes(struct cuda_device *d, const struct op_lane_boxes *op, uint32_t n);
sac_status cuda_lane_logits(struct cuda_device *d, const struct op_lane_logits *op, uint32_t n);
sac_status cuda_lane_shares(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n);
sac_status cuda_lane_vote(struct cuda_device *d, const struct op_lane_vote *op, uint32_t n);
sac_status cuda_lane_fold(struct cuda_device *d, const struct op_lane_fold *op, uint32_t n);
sac_status cuda_lane_ends(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n);
sac_status cuda_lane_take(struct cuda_device *d, const struct op_lane_take *op, uint32_t n);
sac_status cuda_lane_draw(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n);
sac_status cuda_lane_visit(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n);
sac_status cuda_lane_begin(struct cuda_device *d, const struct op_lane_begin *op, uint32_t n);
sac_status cuda_lane_list(struct cuda_device *d, const struct op_lane_list *op, uint32_t n);
sac_status cuda_lane_observe(struct cuda_device *d, const struct op_lane_observe *op, uint32_t n);
sac_status cuda_lane_keep(struct cuda_device *d, const struct op_lane_keep *op, uint32_t n);
sac_status cuda_lane_lines(struct cuda_device *d, const struct op_lane_lines *op, uint32_t n);
sac_status cuda_past(struct cuda_device *d, const struct op_past *op, uint32_t n);
sac_status cuda_lane_recall(struct cuda_device *d, const struct op_lane_recall *op, uint32_t n);
sac_status cuda_lane_settle(struct cuda_device *d, const struct op_lane_settle *op, uint32_t n);
sac_status cuda_lane_rest(struct cuda_device *d, const struct op_lane_rest *op, uint32_t n);
sac_status cuda_note(struct cuda_device *d, const struct op_note *op);
sac_status cuda_offload_store(struct cuda_device *d, const struct op_offload_store *op);
sac_status cuda_offload_renew(struct cuda_device *d, const struct op_offload_renew *op);
sac_status cuda_offload_fetch(struct cuda_device *d, const struct op_offload_fetch *op);
sac_status cuda_sample(struct cuda_device *d, const struct op_sample *op);
sac_status cuda_blocks(struct cuda_device *d, const struct op_blocks *op);
sac_status cuda_trace(struct cuda_device *d, const struct op_trace *op);
sac_status cuda_antidiag(struct cuda_device *d, const struct op_antidiag *op);
sac_status cuda_attn(struct cuda_device *d, const struct op_attn *op);
size_t cuda_attn_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                         uint32_t n_tok_max);
sac_status cuda_kv_write(struct cuda_device *d, const struct op_kv_write *op);
sac_status cuda_seal(struct cuda_device *d, const struct op_seal *op);
sac_status cuda_unseal(struct cuda_device *d, const struct op_unseal *op);
sac_status cuda_mass(struct cuda_device *d, const struct op_mass *op);
}

#endif
