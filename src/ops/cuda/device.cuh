/* device.cuh: one GPU as the launchers see it. Included by the .cu files of this folder alone.
 *
 * Descriptors go up through a ring: stage_put copies a piece into pinned memory and says where on
 * the device it will lie. Launches are noted (queue.cuh) and go to the stream behind one copy of
 * all pieces. So a launcher is: reserve, put what the kernel needs, `return queue_launch(...)`. The
 * ring begins anew when the device has been waited for; when it is full, it waits itself. */
#ifndef SAC_OPS_CUDA_DEVICE_CUH
#define SAC_OPS_CUDA_DEVICE_CUH

#include "ops/cuda/api.h"

#include <cuda_runtime.h>

#define STAGE_ALIGN 64u
#define TEAM_MAX    16u
#define TALLY       8192u
#define DRAW_LANES  256u  /* that one launch draws for */
#define DRAW_CUTS   1024u /* that a draw can have */

struct cuda_blas;
struct cuda_queue;

/* The step ahead (api.h): there is none; it is being noted, and can be kept or not; it is kept. */
enum device_ahead { AHEAD_NONE, AHEAD_RECORDING, AHEAD_OVERFLOW, AHEAD_READY };

/* Pinned memory that copies to the GPU go through in turns. */
#define STAGING_BUFFERS 8u
struct staging_buffer {
    uint8_t *host, *mirror; /* [PIECE_BYTES] and its mirror on the GPU; NULL until there is one */
    cudaEvent_t sent;      /* what it held is in the mirror, */
    cudaEvent_t read;      /* and no longer */
};

struct cuda_device {
    uint32_t index, major, minor, n_sm;
    size_t smem_max; /* of a block, after cudaFuncSetAttribute */
    cudaStream_t stream;
    cudaEvent_t reached;       /* in this stream, for those of other devices to wait for */
    uint64_t asked, reaches;   /* a bit for each device: whether it has been asked; the answer */
    struct cuda_device *team[TEAM_MAX]; /* [n_team] whose rows go to their streams together */
    uint32_t n_team;                    /* 1: its own alone */
    uint64_t *inbox;                    /* [2, n_team, n_word] of the team's sums (team.cu) */
    size_t n_word;
    uint32_t tag, tag_before; /* of the team's last sum; of its last one before the step ahead */
    uint32_t *lost; /* pinned: 1 + the index of a device that has not come to a sum; 0: none */
    uint8_t *ring_host, *ring; /* [ring_bytes] pinned, and its mirror on the device */
    size_t ring_bytes, ring_used, ring_sent;
    size_t ring_first, ring_end; /* pieces are taken from here: all of it, or one of its halves, */
    bool ring_is_full;           /* where the other half is in use, too */
    cudaEvent_t before; /* the step before the one ahead is done */
    enum device_ahead ahead;
    uint8_t *pinned; /* [n_pinned] of the program's memory; NULL: none */
    size_t n_pinned;
    bool owns_pinned;   /* others of the process may have pinned it before */
    bool writes_pinned; /* its kernels do, at the same address */
    uint32_t *tally; /* [TALLY] zeros between launches: blocks that have done their part of a sum */
    unsigned long long *draw_sums; /* [DRAW_LANES][DRAW_CUTS] zeros between draws, of draw.cu */
    struct cuda_blas *blas;        /* blas.cu's */
    struct cuda_queue *queue;      /* queue.cu's: what is noted and not yet on the stream */
    sac_status status;             /* of the first failure since the last wait, */
    char message[256];             /* and what it was */
    struct staging_buffer piece[STAGING_BUFFERS];
    uint32_t next_staging;
    cudaStream_t sender; /* of copies to the GPU that need not wait for what comes before them */
    cudaEvent_t staged;  /* in it: those of descriptors are there */
};

/* CUDA's calls are this device's from here on: what takes memory, and what launches. */
void device_use(const struct cuda_device *d);
/* Remembers a failure; SAC_OK for cudaSuccess. */
sac_status device_check(struct cuda_device *d, cudaError_t code, const char *what);
/* The same for a failure that is not CUDA's. */
sac_status device_fail(struct cuda_device *d, sac_status code, const char *what);

/* Whether a block has so many bytes of shared memory, its own among them; if not, that `what` needs more
 * is remembered as a failure. */
sac_status device_fits(struct cuda_device *d, size_t bytes, const char *what);

/* Whether kernels and copies of one GPU reach another's memory; makes it so, if it can be. */
bool device_reach(struct cuda_device *from, const struct cuda_device *to);

/* Leaves the function with the status of `expr` unless it is SAC_OK, as in base/status.h. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const sac_status try_status_ = (expr);                                                     \
        if (try_status_ != SAC_OK) return try_status_;                                             \
    } while (0)

/* Room for `bytes` in the ring: the host fills *out_host before the launch is noted. NULL: they are
 * more than the ring has, which is remembered as a failure. All pieces that one launch reads are at
 * most a quarter of the ring together. */
void *stage_alloc(struct cuda_device *d, size_t bytes, void **out_host);
/* The same with the content at hand. */
void *stage_put(struct cuda_device *d, const void *src, size_t bytes);
/* One copy of the pieces since the last on the stream; for queue.cu and device.cu. */
sac_status stage_send(struct cuda_device *d);
/* The same beside the stream, while it still has work to do: only what follows waits for the copy.
 */
sac_status stage_send_early(struct cuda_device *d);
/* A step that is kept back is no more. */
void device_forget_ahead(struct cuda_device *d);
/* The same, where something is to go to the stream. true: it does not, as it is of a step that is
 * being noted and can no longer be kept. */
bool device_is_ahead(struct cuda_device *d);
/* Before the pieces of one launch: makes sure that `bytes` of them lie in the ring together. */
sac_status stage_reserve(struct cuda_device *d, size_t bytes);

/* ---- cuBLASLt (blas.cu) ---- */

sac_status blas_open(struct cuda_blas **out, sac_error *err);
void blas_close(struct cuda_blas *b); /* NULL is nothing */

/* ---- Sums of several GPUs (team.cu) ---- */

/* Alone, as a device begins. */
void team_leave(struct cuda_device *d);
/* What is on the streams of its team is done; among this may be words to its memory. */
sac_status team_settle(struct cuda_device *d);
/* After a wait: whether all have come to the sums that it has waited for. */
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
/* Rows of `width` bytes within the device, apart from each other. */
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
sac_status cuda_depot_store(struct cuda_device *d, const struct op_depot_store *op);
sac_status cuda_depot_renew(struct cuda_device *d, const struct op_depot_renew *op);
sac_status cuda_depot_fetch(struct cuda_device *d, const struct op_depot_fetch *op);
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
