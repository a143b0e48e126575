/* narrow.cu: packed weights times a few rows, bound by the bytes of the weights; and the unpacking
 * of a matrix for many rows.
 *
 * A block of 16 warps has a multiprocessor to itself, but for the block of the launch behind it, and
 * computes its share of the groups of 16 outputs, one behind the other, for up to 16 rows; or a piece of
 * the inputs of one group where there are too few groups to fill the GPU and rows of weights are long. A row is
 * cut into units of a few weight blocks, so that the warps together read a stretch of memory. Sixteen
 * roles share the units: role r has r, r + 16, ... and a sum of its own; sums of roles r and r + 8 are
 * added up, and these eight in their order. A team of 16 warps plays a role each, one of 8 warps two, one
 * behind the other: that is for short rows, of which a block multiplies two groups at a time, and for
 * rows that do not stay in shared memory. Then, by the last block of a group to be done, pieces are added
 * up in their order. Roles and pieces depend on the matrices and the GPU alone, and a row is a column of
 * the mma's second operand: nothing depends on which rows are together.
 *
 * A warp keeps units on their way into shared memory while it multiplies others, those of the next group
 * behind those of the last one. The first of them are under way before the launch before has ended, and
 * behind them more come into the GPU's cache: so memory has work while launches wait for each other. A
 * block lets the next launch's blocks come when its own weights are all under way.
 *
 * Rows come in strips (linear.cuh). Few and short ones lie in shared memory as long as the block runs,
 * which may pack them itself; of others a unit's strip comes with its weights.
 *
 * Invariant: weights have been in the device's memory since before the row of launches. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/weights.cuh"

#define WARPS 16u /* of a block whose rows stay, and roles; */
#define HALF  8u  /* of other blocks, and roles that are added up by pairs */

static_assert(WARPS * 32 == LINEAR_THREADS, "blocks pack rows");

#define UNIT_MAX     4u      /* weight blocks that are fetched together, no more than a strip has */
#define UNIT_BYTES   2304u   /* of plain floats at most */
#define STAGES_MAX   6u      /* units of a warp that are on their way or at work, */
#define FLIGHT_GOOD  32768u  /* bytes of them that are on their way and keep memory busy */
#define BESIDE       113664u /* bytes of shared memory of which two launches' blocks have room beside each other */
#define PACKS_ROWS   4u      /* that a block packs at most, */
#define PACKS_VALUES 16384u  /* and all of them together: more take longer than another launch; */
#define PACKS_LITTLE 8192u   /* on a GPU with little shared memory one row of so many */
#define LITTLE       163840u
#define STAYS_MAX    98304u  /* bytes of rows that stay in shared memory */
#define AHEAD_MAX    131072u /* bytes that a multiprocessor brings into the cache before it begins, */
#define AHEAD_PIECE  2048u   /* and a thread at a time */
#define STATIC_MAX   2048u   /* bytes of shared memory beside those that a launch asks for */
#define UNPACK_BLOCKS 4u     /* that a warp unpacks together */

static_assert(UNIT_MAX * LAYOUT_BLOCK == STRIP, "a unit of codes has one strip");

/* What a warp keeps of a unit's weights of one matrix in shared memory. Scales of single weight blocks
 * come with these; what a chunk has in common comes whole with every unit. */
template <int type> struct narrow_ring {
    static constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    static constexpr bool is_float = l.low_bits >= 16;
    static constexpr bool own_scales = l.scale == SCALE_D || l.scale == SCALE_DM;
    static constexpr uint32_t own = own_scales ? layout_scale_bytes(l, 1) : 0;
    static constexpr uint32_t common = own_scales ? 0 : layout_scale_bytes(l, LAYOUT_BLOCKS);
    static constexpr uint32_t block = layout_block_bytes(l);
    static constexpr uint32_t unit =
        !is_float || 4 * block <= UNIT_BYTES ? UNIT_MAX : 2 * block <= UNIT_BYTES ? 2 : 1;
    static constexpr uint32_t scales = common + unit * own;
    static constexpr uint32_t bytes = scales + unit * block;
    static constexpr uint32_t stride = WARPS * unit; /* blocks from a role's unit to its next: */
    static_assert(HALF * unit % LAYOUT_BLOCKS == 0, "all of a warp's lie in the same place of a chunk");
    static constexpr uint32_t step = stride / LAYOUT_BLOCKS * layout_full_chunk_bytes(l);
};

struct narrow_part {
    const uint8_t *w, *up; /* packed; `up` NULL but for a GLU */
    size_t group_bytes;
    uint32_t n_group, n_block; /* blocks of threads */
    uint32_t group0, block0;   /* the part's first ones among those of all parts */
    enum quant_type type;
    struct linear_end end;
};

struct narrow_args {
    /* Rows that are not packed yet: instead of x and x_scale; its x is NULL if they are. It stands
     * first, and nothing at the end is padded, as GCC 12 clears bytes at the wrong place for padding
     * behind an array. */
    struct linear_input input;
    struct narrow_part part[LINEAR_PARTS_MAX];
    uint32_t n_part, n_group; /* of all parts */
    uint32_t n_block, piece;  /* weight blocks of a row, and of a piece of it */
    uint32_t n_row, row0;
    uint32_t team;          /* warps that share a group: HALF or WARPS */
    uint32_t stages, stage; /* of a warp's ring: units, their bytes, */
    uint32_t strip;         /* those of a unit's strips, if these come with units, */
    uint32_t warp_bytes;    /* and all together, of shared memory */
    uint32_t stays;         /* bytes of rows behind the rings; 0: rows come with units */
    uint32_t early;         /* the next launch's blocks come before this one begins */
    uint32_t ahead;         /* bytes that a block brings into the cache before it begins */
    const uint8_t *x;       /* in strips */
    const float *x_scale;
    float *sum;      /* [pieces][n_row][groups * 16], if there are two pieces or more */
    uint32_t *tally; /* of the launch's groups */
};

#define STEP_1 16.0f /* what sums of step 1 want, as its inputs are over 16 */

/* One step of two outputs' weights: [output][pair of inputs]. */
static __device__ inline void mma(float c[4], const uint32_t w[2][2], uint32_t x0, uint32_t x1)
{
    const uint32_t a[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
    mma_16816<HALF_F16>(c, a, x0, x1);
}

/* A role's units of a row: block of the first; those that are whole and in whole chunks; whole; all. */
struct narrow_role {
    uint32_t first, n_quick, n_whole, n_unit;
};

/* What a warp multiplies, and what of it is brought next. */
struct narrow_job {
    uint32_t row0, n_row;  /* rows of the block */
    uint32_t begin, end;   /* weight blocks of its piece */
    uint32_t role, n_role; /* the warp's first one, and how many it has: HALF apart */
    uint32_t n_all;        /* units, so roles that have any */
    uint32_t n_left;       /* groups from that on whose unit is brought next */
    const uint8_t *at;      /* this lane's first byte of that one, */
    uint32_t to_unit;       /* so much behind it in its unit, and */
    uint32_t to_code;       /* so much behind that codes */
    uint32_t unit, mat;     /* which unit of its role that is, and of which matrix, */
    uint32_t second;        /* and whether it is the second role */
    struct narrow_role now; /* its role */
    uint32_t to;            /* the lane's place in the warp's ring, as a number */
};

/* ---- Weights and rows on their way ---- */

static __device__ inline void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t n)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32 * 16; i < n; i += 512)
        copy_async16(smem_address(to + i), from + i);
}

/* So many, possibly none, that no loop is left; both are the lane's own places. */
template <uint32_t n> static __device__ inline void copy_known(uint32_t at, const uint8_t *from)
{
    const uint32_t lane = threadIdx.x % 32 * 16;
#pragma unroll
    for (uint32_t i = 0; i + 512 <= n; i += 512) copy_async16(at + i, from + i);
    constexpr uint32_t rest = n / 512 * 512;
    if constexpr (n > rest)
        if (lane < n - rest) copy_async16(at + rest, from + rest);
}

/* But for the last few all items of a warp have come. */
static __device__ inline void wait_items(uint32_t stages)
{
    switch (stages) {
    case 2: copy_wait<0>(); break;
    case 3: copy_wait<1>(); break;
    case 4: copy_wait<2>(); break;
    case 5: copy_wait<3>(); break;
    default: copy_wait<STAGES_MAX - 2>();
    }
}

/* Of a role's units from block `first` on, those that end before `end`. */
template <int type> static __device__ inline uint32_t n_whole(uint32_t first, uint32_t end)
{
    using ring = narrow_ring<type>;
    return end < first + ring::unit ? 0 : (end - first - ring::unit) / ring::stride + 1;
}

template <int type>
static __device__ inline struct narrow_role find_role(const struct narrow_args &a,
                                                      const struct narrow_job &job, uint32_t second)
{
    using ring = narrow_ring<type>;
    struct narrow_role r;
    r.first = job.begin + (job.role + second * HALF) * ring::unit;
    r.n_quick = n_whole<type>(r.first, min(job.end, a.n_block / LAYOUT_BLOCKS * LAYOUT_BLOCKS));
    r.n_whole = n_whole<type>(r.first, job.end);
    r.n_unit = job.end <= r.first ? 0 : (job.end - r.first - 1) / ring::stride + 1;
    return r;
}

/* The unit that is brought next is the first of a role. */
template <int type>
static __device__ inline void open_role(const struct narrow_args &a, struct narrow_job &job)
{
    using ring = narrow_ring<type>;
    job.now = find_role<type>(a, job, job.second);
    job.unit = 0;
    job.to_unit = job.now.first / LAYOUT_BLOCKS * layout_full_chunk_bytes(ring::l);
}

/* Up to n blocks from block0 on, of a unit that is not whole or of a chunk that is not. */
template <int type>
static __device__ inline void bring_rest(uint8_t *to, const uint8_t *group, uint32_t n_block,
                                         uint32_t block0, uint32_t n)
{
    using ring = narrow_ring<type>;
    const uint32_t c = block0 / LAYOUT_BLOCKS, b = block0 % LAYOUT_BLOCKS;
    const uint32_t scales = layout_scale_bytes(ring::l, layout_chunk_blocks(n_block, c));
    const uint8_t *chunk = group + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(ring::l);
    copy_bytes(to, chunk + b * ring::own, ring::common + n * ring::own);
    copy_bytes(to + ring::scales, chunk + scales + b * ring::block, n * ring::block);
}

static __device__ inline uint32_t strips_of(uint32_t n_block)
{
    return (n_block + UNIT_MAX - 1) / UNIT_MAX;
}

/* Rows of the block's tile i, and where its strip s is. */
static __device__ inline uint32_t tile_rows(const struct narrow_job &job, uint32_t i)
{
    return min(job.n_row - min(job.n_row, i * TILE_ROWS), TILE_ROWS);
}

static __device__ inline const uint8_t *tile_strip(const struct narrow_args &a,
                                                   const struct narrow_job &job, uint32_t i,
                                                   uint32_t s)
{
    const uint32_t row = job.row0 + i * TILE_ROWS;
    return a.x + ((size_t)row * strips_of(a.n_block) + s * tile_rows(job, i)) * STRIP_BYTES;
}

/* The strips of the unit from block0 on, tile behind tile. */
template <uint32_t n_tile>
static __device__ inline void bring_x(uint8_t *to, const struct narrow_args &a,
                                      const struct narrow_job &job, uint32_t block0)
{
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t n = tile_rows(job, i), lane = threadIdx.x % 32 * 16;
        const uint8_t *from = tile_strip(a, job, i, block0 / UNIT_MAX);
        uint8_t *tile = to + i * TILE_ROWS * STRIP_BYTES;
        if (n == TILE_ROWS)
            copy_known<TILE_ROWS * STRIP_BYTES>(smem_address(tile) + lane, from + lane);
        else
            copy_bytes(tile, from, n * STRIP_BYTES);
    }
}

/* From a team's group to its next one. */
static __device__ inline uint32_t groups_a_turn(const struct narrow_args &a,
                                                const struct narrow_part &part)
{
    return part.n_block * (blockDim.x / 32 / a.team);
}

/* Behind a unit of one matrix that of the other one, the next unit, or the first one of the next role, of
 * the next group if it was the last. */
template <int type, uint32_t n_mat>
static __device__ inline void go_on(const struct narrow_args &a, const struct narrow_part &part,
                                    struct narrow_job &job)
{
    using ring = narrow_ring<type>;
    if (n_mat > 1 && (job.mat ^= 1) != 0) return;
    job.to_unit += ring::step;
    if (++job.unit < job.now.n_unit) return;
    job.second ^= job.n_role > 1;
    if (job.second == 0) {
        job.n_left--;
        job.at += groups_a_turn(a, part) * part.group_bytes;
    }
    open_role<type>(a, job);
}

/* The warp's next unit of one matrix, if there is one, to the ring's place `at`: scales, then blocks; and
 * to `x` the rows' strips, if they come with units and are there already, for both matrices of a GLU. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void bring(uint8_t *mine, uint32_t at, const struct narrow_args &a,
                                    const struct narrow_part &part, struct narrow_job &job,
                                    uint8_t *x)
{
    using ring = narrow_ring<type>;
    if (job.n_left > 0) {
        const uint8_t *const group = n_mat > 1 && job.mat ? job.at + (part.up - part.w) : job.at;
        const uint32_t block0 = job.now.first + job.unit * ring::stride;
        if (job.unit < job.now.n_quick) {
            const uint8_t *const from = group + job.to_unit;
            copy_known<ring::scales>(job.to + at, from);
            copy_known<ring::unit * ring::block>(job.to + at + ring::scales, from + job.to_code);
        } else {
            const uint32_t b = job.now.first % LAYOUT_BLOCKS;
            bring_rest<type>(mine + at,
                             group - LAYOUT_HEAD - b * ring::own - threadIdx.x % 32 * 16, a.n_block,
                             block0, min(ring::unit, job.end - block0));
        }
        if (x && job.mat == 0) bring_x<n_tile>(x, a, job, block0);
        go_on<type, n_mat>(a, part, job);
    }
    copy_commit();
}

/* ---- Sums ---- */

/* Sums [n_mat][n_tile][4] are as an mma leaves them: c[0], c[1] of output 2g and rows 2t, 2t + 1,
 * c[2], c[3] of output 2g + 1. */

/* c += by * add, told, as compilers choose apart. */
static __device__ inline void add_times(float c[4], float2 by, const float add[4])
{
    c[0] = __fmaf_rn(by.x, add[0], c[0]);
    c[1] = __fmaf_rn(by.x, add[1], c[1]);
    c[2] = __fmaf_rn(by.y, add[2], c[2]);
    c[3] = __fmaf_rn(by.y, add[3], c[3]);
}

/* What lane 4g + t finds of its rows, of each tile row g, in a unit's strips. */
template <uint32_t n_tile> struct narrow_x {
    uint32_t g, t, b; /* and the number of the unit's first block in its strip */
    const uint8_t *row[n_tile];
};

/* Its inputs of the unit's block i: two pairs of step 0, two of step 1. */
template <uint32_t n_tile>
static __device__ inline uint4 load_x(const struct narrow_x<n_tile> &x, uint32_t tile, uint32_t i)
{
    return *reinterpret_cast<const uint4 *>(x.row[tile] + 64 * (x.b + i) + 16 * x.t);
}

/* Over a block of plain floats, block i behind the place; step 1 apart. */
template <int type, uint32_t n_tile>
static __device__ inline void add_floats(float sum[n_tile][4], float sum1[n_tile][4],
                                         const struct block_place &place,
                                         const struct pair_shrink &shrink,
                                         const struct narrow_x<n_tile> &rows, uint32_t i)
{
    const block_w w = unpack_block<type>(place, i, {}, rows.g, rows.t, shrink);
    uint32_t pair[2][2][2]; /* [step][output]: inputs 0 and 2, 1 and 3 */
#pragma unroll
    for (uint32_t s = 0; s < 2; s++)
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t v[2];
            memcpy(v, w.w[r][s], sizeof v);
            pair[s][r][0] = __byte_perm(v[0], v[1], 0x5410);
            pair[s][r][1] = __byte_perm(v[0], v[1], 0x7632);
        }
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint4 x = load_x(rows, j, i);
        mma(sum[j], pair[0], x.x, x.y);
        mma(sum1[j], pair[1], x.z, x.w);
    }
}

/* Over a block of codes: what its factors make of the sums of codes. */
template <int type, uint32_t n_tile>
static __device__ inline void add_codes(float sum[n_tile][4], const struct block_place &place,
                                        const struct narrow_x<n_tile> &rows, uint32_t i)
{
    constexpr bool halves = layout_halves(weight_layout_of(static_cast<enum quant_type>(type)));
    constexpr bool apart = halves || !codes_lie<type>(); /* the two steps */
    const struct block_pairs codes = load_pairs<type>(place, i, rows.g, rows.t);
    const float2 factor = load_factor<type>(place.chunk, place.b + i, rows.g, 0);
    float2 factor1 = factor;
    if (halves) factor1 = load_factor<type>(place.chunk, place.b + i, rows.g, 1);
    if (apart) factor1 = make_float2(factor1.x * STEP_1, factor1.y * STEP_1);
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint4 x = load_x(rows, j, i);
        float part[4] = {};
        mma(part, codes.of[0], x.x, x.y);
        if (apart) {
            add_times(sum[j], factor, part);
            part[0] = part[1] = part[2] = part[3] = 0;
        }
        mma(part, codes.of[1], x.z, x.w);
        add_times(sum[j], factor1, part);
    }
}

/* What the weights of n blocks have in common beside their codes, times the sums of inputs. */
template <int type, uint32_t n_tile>
static __device__ inline void add_common(float sum[n_tile][4], const struct block_place &place,
                                         const struct narrow_x<n_tile> &rows, float2 by,
                                         uint32_t n)
{
    struct block_common k = {};
    if (rows.t < n) k = load_common<type>(place.chunk, place.b + rows.t, rows.g);
    const uint32_t both[2][2] = {{k.of[0], k.of[0]}, {k.of[1], k.of[1]}}; /* of high, of low sums */
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint2 x = load8(rows.row[j] + STRIP_SUMS + 8 * rows.t);
        float part[4] = {};
        mma(part, both, x.x, x.y);
        add_times(sum[j], by, part);
    }
}

/* Over n blocks of a unit. Of a whole one n is known, and the blocks are unpacked in the order that the
 * compiler likes. */
template <int type, uint32_t n_tile, uint32_t known>
static __device__ inline void add_blocks(float sum[n_tile][4], const struct block_place &place,
                                         const struct pair_shrink &shrink,
                                         const struct narrow_x<n_tile> &rows, uint32_t n)
{
    float part[n_tile][4] = {};
    if (known > 0) n = known;
    if constexpr (narrow_ring<type>::is_float) {
#pragma unroll(known > 0 ? known : 1)
        for (uint32_t i = 0; i < n; i++)
            add_floats<type, n_tile>(sum, part, place, shrink, rows, i);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) add_times(sum[j], {STEP_1, STEP_1}, part[j]);
    } else {
#pragma unroll(known > 0 ? known : 1)
        for (uint32_t i = 0; i < n; i++) add_codes<type, n_tile>(part, place, rows, i);
        const struct chunk_factor k = load_chunk_factor<type>(place.chunk, rows.g);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) add_times(sum[j], k.code, part[j]);
        add_common<type, n_tile>(sum, place, rows, k.common, n);
    }
}

/* Over unit u of a role, which is at `at`; the last of a row may have fewer blocks than others. */
template <int type, uint32_t n_tile>
static __device__ inline void add_unit(float sum[n_tile][4], const struct narrow_job &job,
                                       const struct narrow_role &role,
                                       const struct pair_shrink &shrink, const uint8_t *at,
                                       const struct narrow_x<n_tile> &x, uint32_t u)
{
    using ring = narrow_ring<type>;
    const struct block_place place = {at, at + ring::scales,
                                      ring::own_scales ? 0 : role.first % LAYOUT_BLOCKS};
    if (u < role.n_whole) /* the same for all lanes */
        add_blocks<type, n_tile, ring::unit>(sum, place, shrink, x, 0);
    else
        add_blocks<type, n_tile, 0>(sum, place, shrink, x, job.end - role.first - u * ring::stride);
}

/* ---- Rows ---- */

/* Rows of a piece to shared memory, where they stay; packed on the way, if they are not yet. */
template <uint32_t n_tile>
static __device__ inline void keep_rows(const struct narrow_args &a, const struct narrow_job &job,
                                        uint8_t *to, float *scale)
{
    const uint32_t strip0 = job.begin / UNIT_MAX, n = strips_of(job.end - job.begin);
    for (uint32_t row = 0; a.input.x && row < a.n_row; row++)
        linear_pack({to + row * STRIP_BYTES, a.n_row * STRIP_BYTES}, scale + row, a.input, row,
                    strip0 * STRIP, (strip0 + n) * STRIP);
    if (a.input.x) return;
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint8_t *from = tile_strip(a, job, i, strip0);
        const uint32_t bytes = tile_rows(job, i) * n * STRIP_BYTES;
        for (uint32_t k = threadIdx.x * 16; k < bytes; k += blockDim.x * 16)
            copy_async16(smem_address(to + k), from + k);
        to += TILE_ROWS * n * STRIP_BYTES;
    }
}

/* This lane's rows, of each tile row g, in a unit's strips: those of a role's first unit, and bytes to
 * those of its next. Rows that are not there are read as row 0, tiles as tile 0. */
template <uint32_t n_tile> struct narrow_rows {
    const uint8_t *row[n_tile];
    uint32_t by[n_tile];
};

/* Where rows stay, from `kept` on; else they are in the ring's first place of strips, `brought`. */
template <int type, uint32_t n_tile>
static __device__ inline struct narrow_rows<n_tile> find_rows(const struct narrow_args &a,
                                                              const struct narrow_job &job,
                                                              const uint8_t *brought,
                                                              const uint8_t *kept)
{
    using ring = narrow_ring<type>;
    const uint32_t g = threadIdx.x % 32 / 4;
    const uint32_t skip = job.role * ring::unit / UNIT_MAX;
    struct narrow_rows<n_tile> rows;
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t n = tile_rows(job, i), tile = i * TILE_ROWS * STRIP_BYTES;
        rows.by[i] = a.stays ? ring::stride / UNIT_MAX * STRIP_BYTES * n : 0;
        rows.row[i] = a.stays ? kept + tile * strips_of(job.end - job.begin) + skip * n * STRIP_BYTES
                              : brought + tile;
        rows.row[i] += (g < n ? g : 0) * STRIP_BYTES;
        if (n == 0) rows.row[i] = rows.row[0], rows.by[i] = rows.by[0];
        keep(rows.by[i]);
    }
    return rows;
}

/* What the block reads of model parameters beside weights comes nearer. */
static __device__ inline void fetch_beside(const struct narrow_args &a,
                                           const struct narrow_part &part)
{
    if (a.input.x && a.input.norm)
        for (uint32_t i = threadIdx.x * 8; i < a.input.n_in; i += blockDim.x * 8)
            fetch_near(a.input.norm + i);
    const uint32_t out = (blockIdx.x - part.block0) * WEIGHT_GROUP + threadIdx.x;
    if (part.end.bias && threadIdx.x < WEIGHT_GROUP && out < part.end.n_out)
        fetch_near(part.end.bias + out);
}

/* The block's weights behind those that are on their way already come into the cache, so many that
 * what is fetched there for other blocks stays. */
template <uint32_t n_mat>
static __device__ inline void fetch_groups(const struct narrow_args &a,
                                           const struct narrow_part &part, uint32_t n_unit)
{
    const uint32_t n_team = blockDim.x / 32 / a.team, n_warp = blockDim.x / 32;
    const uint32_t turn = (a.stages - 1) * n_warp / (n_team * n_mat * n_unit); /* under way */
    const uint32_t bytes = (uint32_t)part.group_bytes;
    uint32_t at = threadIdx.x * AHEAD_PIECE, left = a.ahead;
    uint32_t i = (turn * part.n_block + blockIdx.x - part.block0) * n_team;
    for (; i < part.n_group && left > 0; i += part.n_block * n_team) {
        const uint32_t n = min(left, min(n_team, part.n_group - i) * bytes);
        for (uint32_t m = 0; m < n_mat; m++)
            if (at < n)
                fetch_piece((m ? part.up : part.w) + i * part.group_bytes + at,
                            min(AHEAD_PIECE, n - at));
        left -= min(left, n_mat * n);
    }
}

/* What the block's sums are added to comes before they are there, as they take longer. */
static __device__ inline void fetch_old(const struct narrow_job &job, const struct linear_end &end,
                                        uint32_t r, uint32_t group)
{
    const uint32_t out = group * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (end.epilogue == LINEAR_ADD && r < job.n_row && out < end.n_out)
        fetch_near(end.y + (job.row0 + r) * end.y_stride + out);
}

/* ---- Ends ---- */

/* The sums of all warps for a block's groups: [warp][matrix][row][SUM_STRIDE]. */
#define SUM_STRIDE (WEIGHT_GROUP + 1)

/* This warp's; those of its second role are added to what is there. */
template <bool is_float, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void put_sums(float *to, const float sum[n_mat][n_tile][4],
                                       const struct pair_shrink shrink[n_mat], uint32_t n_row,
                                       bool second)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
#pragma unroll
        for (uint32_t i = 0; i < n_tile; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t r = i * TILE_ROWS + 2 * t + j % 2;
                float *const at = to + ((threadIdx.x / 32 * n_mat + m) * n_row + r) * SUM_STRIDE +
                                  2 * g + j / 2;
                const float v = is_float ? sum[m][i][j] / shrink[m].f[j / 2] : sum[m][i][j];
                if (r < n_row) *at = second ? *at + v : v;
            }
}

/* A sum over the roles, of which there are n_role, from the place of role 0 of the team. */
static __device__ inline float add_roles(const float *at, uint32_t by, uint32_t team, uint32_t n_role)
{
    float v = 0;
#pragma unroll
    for (uint32_t w = 0; w < HALF; w++) {
        if (w >= n_role) break;
        float sum = at[w * by];
        if (team > HALF && w + HALF < n_role) sum += at[(w + HALF) * by];
        v += sum;
    }
    return v;
}

/* Puts a piece's sums where the last block finds them; that one gets those of all pieces. */
static __device__ inline bool merge_pieces(float *v, const struct narrow_args &a, uint32_t row,
                                           uint32_t group, bool is_mine)
{
    const size_t n_sum = (size_t)a.n_group * WEIGHT_GROUP, stride = a.n_row * n_sum;
    float *at = a.sum + row * n_sum + group * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (is_mine) at[blockIdx.z * stride] = *v;
    if (!block_is_last(a.tally + blockIdx.y * a.n_group + group, gridDim.z)) return false;
    *v = 0;
    for (uint32_t i = 0; i < gridDim.z && is_mine; i++) *v += __ldcg(at + i * stride);
    return true;
}

/* Where a thread finishes: output o of row r of the team's group. */
struct narrow_seat {
    uint32_t team, r, o;
};

template <uint32_t n_tile> static __device__ inline struct narrow_seat find_seat(void)
{
    const uint32_t i = threadIdx.x / WEIGHT_GROUP, n = n_tile * TILE_ROWS;
    return {i / n, i % n, threadIdx.x % WEIGHT_GROUP};
}

/* A group's sums over all roles, and over pieces, to where they go; `group` is that of the seat. */
template <uint32_t n_mat>
static __device__ inline void finish_group(const float *all, const struct narrow_args &a,
                                           const struct narrow_job &job,
                                           const struct narrow_part &part, const float *scale,
                                           const struct narrow_seat &seat, uint32_t group)
{
    const uint32_t row = job.row0 + seat.r, out = group * WEIGHT_GROUP + seat.o;
    const uint32_t by = n_mat * job.n_row * SUM_STRIDE;
    const bool is_mine = seat.r < job.n_row && group < part.n_group &&
                         seat.team * a.team < blockDim.x / 32;
    float v[2] = {0, 0};
    all += seat.team * a.team * by + seat.r * SUM_STRIDE + seat.o;
    for (uint32_t m = 0; m < n_mat && is_mine; m++)
        v[m] = add_roles(all + m * job.n_row * SUM_STRIDE, by, a.team, job.n_all);
    if (gridDim.z > 1 && !merge_pieces(v, a, row, part.group0 + group, is_mine)) return;
    if (is_mine && out < part.end.n_out)
        linear_finish(part.end, row, out, v[0] * scale[row], v[1] * scale[row]);
}

/* The warp's work for part p, whose first group is that of its team. */
template <int type, uint32_t n_tile>
static __device__ inline struct narrow_job find_job(const struct narrow_args &a,
                                                    const struct narrow_part &part, uint8_t *mine)
{
    using ring = narrow_ring<type>;
    struct narrow_job job;
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32 * 16;
    job.row0 = a.row0 + blockIdx.y * n_tile * TILE_ROWS;
    job.n_row = min(a.n_row - job.row0, n_tile * TILE_ROWS);
    job.begin = blockIdx.z * a.piece;
    job.end = min(job.begin + a.piece, a.n_block);
    job.role = warp % a.team;
    job.n_all = (job.end - job.begin + ring::unit - 1) / ring::unit;
    job.n_role = (job.role < job.n_all) + (a.team == HALF && job.role + HALF < job.n_all);
    const uint32_t group = (blockIdx.x - part.block0) * (blockDim.x / 32 / a.team) + warp / a.team;
    job.n_left = group < part.n_group && job.n_role > 0
                     ? (part.n_group - group - 1) / groups_a_turn(a, part) + 1
                     : 0;
    job.mat = job.second = 0;
    job.to = smem_address(mine) + lane;
    const uint32_t b = (job.begin + job.role * ring::unit) % LAYOUT_BLOCKS;
    job.at = part.w + group * part.group_bytes + LAYOUT_HEAD + b * ring::own + lane;
    job.to_code = layout_scale_bytes(ring::l, LAYOUT_BLOCKS) + b * (ring::block - ring::own);
    open_role<type>(a, job);
    keep(job.to);
    keep(job.to_code);
    return job;
}

/* Sums of two turns have room, so that those of one are read while the next ones come; of many rows
 * there is room for one's. */
static constexpr uint32_t sum_rooms(uint32_t n_tile)
{
    return n_tile == 1 ? 2 : 1;
}

/* Where a warp is in its ring: at the place of a unit, whose strips are at `x`, if they come with units. */
struct narrow_turn {
    uint32_t at, x;
};

/* The place before, which is that of the next unit to be brought. */
static __device__ inline uint32_t place_before(const struct narrow_args &a, uint32_t at)
{
    return (at ? at : a.stages * a.stage) - a.stage;
}

/* A role's sums over a group. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void add_role(float sum[n_mat][n_tile][4], const struct narrow_args &a,
                                       const struct narrow_part &part, struct narrow_job &job,
                                       struct narrow_turn &turn,
                                       const struct pair_shrink shrink[n_mat], uint8_t *mine,
                                       const struct narrow_rows<n_tile> &rows, uint32_t second)
{
    using ring = narrow_ring<type>;
    const struct narrow_role role = find_role<type>(a, job, second);
    uint8_t *const strips = mine + a.stages * a.stage;
    struct narrow_x<n_tile> here = {threadIdx.x % 32 / 4, threadIdx.x % 4,
                                    ring::unit == UNIT_MAX ? 0 : role.first % UNIT_MAX, {}};
#pragma unroll
    for (uint32_t k = 0; k < n_tile; k++)
        here.row[k] = rows.row[k] + (second ? rows.by[k] / 2 : 0);
    for (uint32_t u = 0; u < role.n_unit; u++) {
#pragma unroll
        for (uint32_t m = 0; m < n_mat; m++) {
            wait_items(a.stages);
            __syncwarp(); /* and all lanes are done with the unit before, whose place is free */
            bring<type, n_tile, n_mat>(mine, place_before(a, turn.at), a, part, job,
                                       a.stays ? NULL : strips + (a.strip - turn.x));
            if (!a.stays && m == 0)
#pragma unroll
                for (uint32_t k = 0; k < n_tile; k++) here.row[k] = rows.row[k] + turn.x;
            add_unit<type, n_tile>(sum[m], job, role, shrink[m], mine + turn.at, here, u);
            turn.at = turn.at + a.stage == a.stages * a.stage ? 0 : turn.at + a.stage;
        }
#pragma unroll
        for (uint32_t k = 0; k < n_tile; k++) here.row[k] += rows.by[k];
        turn.x = a.strip - turn.x;
    }
}

/* All roles of a warp over its team's group, and the sums to where all threads find them. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void add_group(float *to, const struct narrow_args &a,
                                        const struct narrow_part &part, struct narrow_job &job,
                                        struct narrow_turn &turn, uint8_t *mine,
                                        const struct narrow_rows<n_tile> &rows, uint32_t group)
{
    using ring = narrow_ring<type>;
    struct pair_shrink shrink[n_mat];
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
        if (ring::is_float)
            shrink[m] = load_shrink((m ? part.up : part.w) + group * part.group_bytes,
                                    threadIdx.x % 32 / 4);
#pragma unroll 1
    for (uint32_t second = 0; second < job.n_role; second++) {
        float sum[n_mat][n_tile][4] = {};
        add_role<type, n_tile, n_mat>(sum, a, part, job, turn, shrink, mine, rows, second);
        put_sums<ring::is_float, n_tile, n_mat>(to, sum, shrink, job.n_row, second > 0);
    }
}

/* A block's work for part p. Shared memory: the warps' rings; rows that stay; sums of all warps. Scales
 * of rows that the block packs lie in `scale_room`. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void narrow_block(const struct narrow_args &a,
                                           const struct narrow_part &part, float *scale_room)
{
    using ring = narrow_ring<type>;
    uint8_t *const mine = kernel_shared() + threadIdx.x / 32 * a.warp_bytes;
    uint8_t *const x = kernel_shared() + blockDim.x / 32 * a.warp_bytes;
    struct narrow_job job = find_job<type, n_tile>(a, part, mine);
    for (uint32_t i = 0; i + 1 < a.stages; i++)
        bring<type, n_tile, n_mat>(mine, i * a.stage, a, part, job, NULL);
    fetch_beside(a, part);
    if (gridDim.z == 1) fetch_groups<n_mat>(a, part, job.n_all);
    if (a.early) kernel_yield();
    kernel_wait();
    if (a.stays)
        keep_rows<n_tile>(a, job, x, scale_room);
    else if (job.n_role > 0)
        bring_x<n_tile>(mine + a.stages * a.stage, a, job, job.begin + job.role * ring::unit);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    const float *const scale = a.input.x ? scale_room : a.x_scale;
    float *const all = (float *)(x + a.stays);
    const uint32_t n_sum = blockDim.x / 32 * n_mat * job.n_row * SUM_STRIDE;
    const struct narrow_rows<n_tile> rows =
        find_rows<type, n_tile>(a, job, mine + a.stages * a.stage, x);
    const struct narrow_seat seat = find_seat<n_tile>();
    struct narrow_turn turn = {0, 0};
    const uint32_t by = groups_a_turn(a, part), n_team = blockDim.x / 32 / a.team;
    uint32_t i = (blockIdx.x - part.block0) * n_team, k = 0; /* the block's first group of a turn */
    for (; i < part.n_group; i += by, k++) {
        const uint32_t mine_of = i + threadIdx.x / 32 / a.team;
        float *const to = all + k % sum_rooms(n_tile) * n_sum;
        if (i + by >= part.n_group && !a.early) kernel_yield(); /* all weights are under way, about */
        if (n_mat == 1) fetch_old(job, part.end, seat.r, i + seat.team);
        if (mine_of < part.n_group)
            add_group<type, n_tile, n_mat>(to, a, part, job, turn, mine, rows, mine_of);
        __syncthreads();
        finish_group<n_mat>(to, a, job, part, scale, seat, i + seat.team);
        if (sum_rooms(n_tile) == 1) __syncthreads();
    }
}

/* A row per type: CALL(type) is what is done for it. */
#define FOR_TYPE(type, CALL)                                                                       \
    switch (type) {                                                                                \
    case QUANT_F32: CALL(QUANT_F32); break;                                                        \
    case QUANT_F16: CALL(QUANT_F16); break;                                                        \
    case QUANT_BF16: CALL(QUANT_BF16); break;                                                      \
    case QUANT_Q4_0: CALL(QUANT_Q4_0); break;                                                      \
    case QUANT_Q4_1: CALL(QUANT_Q4_1); break;                                                      \
    case QUANT_Q5_0: CALL(QUANT_Q5_0); break;                                                      \
    case QUANT_Q5_1: CALL(QUANT_Q5_1); break;                                                      \
    case QUANT_Q8_0: CALL(QUANT_Q8_0); break;                                                      \
    case QUANT_Q2_K: CALL(QUANT_Q2_K); break;                                                      \
    case QUANT_Q3_K: CALL(QUANT_Q3_K); break;                                                      \
    case QUANT_Q4_K: CALL(QUANT_Q4_K); break;                                                      \
    case QUANT_Q5_K: CALL(QUANT_Q5_K); break;                                                      \
    case QUANT_Q6_K: CALL(QUANT_Q6_K); break;                                                      \
    case QUANT_IQ4_NL: CALL(QUANT_IQ4_NL); break;                                                  \
    case QUANT_IQ4_XS: CALL(QUANT_IQ4_XS); break;                                                  \
    }

/* The part that a block works for. */
static __device__ inline const struct narrow_part &find_part(const struct narrow_args &a)
{
    uint32_t p = 0;
    while (p + 1 < a.n_part && blockIdx.x >= a.part[p + 1].block0) p++;
    return a.part[p];
}

/* Blocks of a multiprocessor that registers must leave room for: that of the launch behind, too. */
static constexpr uint32_t blocks_beside(uint32_t n_tile)
{
    return n_tile == 1 ? 2 : 1;
}

/* Parts of one type. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __global__ void __launch_bounds__(WARPS * 32, blocks_beside(n_tile))
    narrow(const struct narrow_args a)
{
    __shared__ float scale_room[PACKS_ROWS];
    narrow_block<type, n_tile, n_mat>(a, find_part(a), scale_room);
}

/* Parts of several types, as queries, keys and values often have. */
template <uint32_t n_tile>
static __global__ void __launch_bounds__(WARPS * 32, blocks_beside(n_tile))
    narrow_mixed(const struct narrow_args a)
{
    __shared__ float scale_room[PACKS_ROWS];
    const struct narrow_part &part = find_part(a);
#define CALL(type) narrow_block<type, n_tile, 1>(a, part, scale_room)
    FOR_TYPE(part.type, CALL)
#undef CALL
}

/* What a kernel needs to know of its types: bytes of a unit's weights, and the blocks of the longest unit. */
struct narrow_need {
    uint32_t bytes, unit;
};

template <int type> static struct narrow_need need_of(void)
{
    using ring = narrow_ring<type>;
    return {ring::bytes, ring::unit};
}

/* Blocks for the parts, no more than there is place for, so that none has more turns than it must.
 * Returns how many turns that is. */
static uint32_t share_groups(struct narrow_args *a, uint32_t n_place, uint32_t n_team)
{
    uint32_t n_turn = a->n_group / (n_place * n_team);
    for (n_turn = n_turn < 1 ? 1 : n_turn;; n_turn++) {
        const uint32_t each = n_turn * n_team;
        uint32_t n_block = 0;
        for (uint32_t i = 0; i < a->n_part; i++) {
            a->part[i].block0 = n_block;
            a->part[i].n_block = (a->part[i].n_group + each - 1) / each;
            n_block += a->part[i].n_block;
        }
        if (n_block <= n_place || n_turn >= a->n_group) return n_turn;
    }
}

/* Stages of a ring, of which all but one are on their way: as many as leave room beside the block for
 * one of the next launch, or as memory wants; fewer than two: there is no room for them. */
static uint32_t stages_of(const struct cuda_device *d, uint32_t stage, uint32_t beside)
{
    const uint32_t room = (uint32_t)d->smem_max - STATIC_MAX;
    const uint32_t good = BESIDE < beside ? 0 : (BESIDE - beside) / stage;
    const uint32_t most = room < beside ? 0 : (room - beside) / stage;
    const uint32_t least = 1 + (FLIGHT_GOOD + stage - 1) / stage;
    const uint32_t n = good >= least ? good : least;
    return n > most ? most : n < STAGES_MAX ? n : STAGES_MAX;
}

/* What the launches of a call have in common. */
struct narrow_plan {
    uint32_t n_warp, n_piece;
    size_t smem;
};

/* Rows stay where there is room for them and for a ring. */
static struct narrow_plan plan(const struct cuda_device *d, struct narrow_args *a, uint32_t n_tile,
                               struct narrow_need need)
{
    const uint32_t n_mat = a->part[0].up ? 2 : 1, most = n_tile * TILE_ROWS;
    const uint32_t n_row = a->n_row < most ? a->n_row : most, strip = n_row * STRIP_BYTES;
    const uint32_t stays = (a->piece + UNIT_MAX - 1) / UNIT_MAX * strip;
    const uint32_t n_unit = (a->n_block + need.unit - 1) / need.unit;
    const uint32_t sums = sum_rooms(n_tile) * n_mat * n_row * SUM_STRIDE * (uint32_t)sizeof(float);
    const uint32_t stages = stages_of(d, WARPS * need.bytes, stays + WARPS * sums);
    const bool does_stay = stays <= STAYS_MAX && stages >= 2;
    struct narrow_plan p;
    memset(&p, 0, sizeof p);
    a->stays = does_stay ? stays : 0;
    a->stages = does_stay ? stages : n_mat + 1;
    p.n_warp = does_stay ? WARPS : HALF;
    p.n_piece = (a->n_block + a->piece - 1) / a->piece;
    a->team = !does_stay || (a->n_group > d->n_sm && n_unit <= HALF) ? HALF : WARPS;
    a->stage = need.bytes;
    a->strip = does_stay ? 0 : strip;
    a->warp_bytes = a->stages * a->stage + 2 * a->strip;
    p.smem = p.n_warp * (a->warp_bytes + sums) + a->stays;
    const uint32_t fit = (uint32_t)(d->smem_max / p.smem), wanted = n_tile == 1 ? 3 : 2;
    const uint32_t n_place = does_stay || fit < 1 ? 1 : fit < wanted ? fit : wanted;
    a->ahead = AHEAD_MAX / n_place;
    a->early = share_groups(a, n_place * d->n_sm, p.n_warp / a->team) == 1;
    return p;
}

/* Rows of one launch are n_tile times eight for a block; as many launches as the tally asks for. */
static sac_status launch_tiles(struct cuda_device *d, void (*kernel)(struct narrow_args),
                               struct narrow_args a, uint32_t n_tile, struct narrow_need need)
{
    const struct narrow_plan p = plan(d, &a, n_tile, need);
    const struct narrow_part *last = &a.part[a.n_part - 1];
    const uint32_t tile = n_tile * TILE_ROWS, n = (a.n_row + tile - 1) / tile;
    const uint32_t each = p.n_piece > 1 ? TALLY / a.n_group : n;
    for (uint32_t first = 0; first < n; first += each) {
        a.row0 = first * tile;
        const dim3 grid(last->block0 + last->n_block, n - first < each ? n - first : each, p.n_piece);
        TRY(queue_launch(d, "narrow linear layer", kernel, grid, p.n_warp * 32, p.smem, a));
        queue_set_apart(d, a.early);
    }
    return SAC_OK;
}

/* Pieces of a row of weights: where there are groups for less than half of the GPU, as many blocks as
 * fill it, each with two units or more for a role, as to merge pieces takes as long. They depend on the
 * matrices and the GPU alone, as sums do on them. */
static void cut_rows(struct narrow_args *a, const struct cuda_device *d, uint32_t n_group,
                     uint32_t part_row)
{
    const uint32_t n_unit = (a->n_block + UNIT_MAX - 1) / UNIT_MAX, most = n_unit / (2 * WARPS);
    uint32_t n = d->n_sm / n_group;
    n = n < most ? n : most;
    if (n * n_group * WEIGHT_GROUP > part_row) n = part_row / (n_group * WEIGHT_GROUP);
    if (!a->sum || n < 1) n = 1;
    a->piece = (n_unit + n - 1) / n * UNIT_MAX;
}

template <int type>
static sac_status launch(struct cuda_device *d, const struct narrow_args &a)
{
    const struct narrow_need need = need_of<type>();
    const bool is_glu = a.part[0].up != NULL;
    if (a.n_row <= TILE_ROWS)
        return is_glu ? launch_tiles(d, narrow<type, 1, 2>, a, 1, need)
                      : launch_tiles(d, narrow<type, 1, 1>, a, 1, need);
    return is_glu ? launch_tiles(d, narrow<type, 2, 2>, a, 2, need)
                  : launch_tiles(d, narrow<type, 2, 1>, a, 2, need);
}

static struct narrow_need need_of_type(enum quant_type type)
{
#define CALL(type) return need_of<type>()
    FOR_TYPE(type, CALL)
#undef CALL
    return {};
}

static sac_status launch_mixed(struct cuda_device *d, const struct narrow_args &a)
{
    struct narrow_need most = {};
    for (uint32_t i = 0; i < a.n_part; i++) {
        const struct narrow_need n = need_of_type(a.part[i].type);
        most.bytes = n.bytes > most.bytes ? n.bytes : most.bytes;
        most.unit = n.unit > most.unit ? n.unit : most.unit;
    }
    return a.n_row <= TILE_ROWS ? launch_tiles(d, narrow_mixed<1>, a, 1, most)
                                : launch_tiles(d, narrow_mixed<2>, a, 2, most);
}

/* ---- Unpacking ---- */

/* A warp for n blocks of 32 inputs of a group, of one chunk, which are on their way together. */
template <int type, uint32_t n>
static __device__ __forceinline__ void unpack_blocks(__half *out, const uint8_t *group,
                                                     uint32_t n_block, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const struct pair_shrink shrink = load_shrink(group, g);
    const struct block_place place = find_block<type>(group, n_block, block);
    const struct chunk_scale k = load_chunk<type>(place.chunk, g, shrink);
    block_w v[n];
#pragma unroll
    for (uint32_t i = 0; i < n; i++) v[i] = unpack_block<type>(place, i, k, g, t, shrink);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * n; i++) {
            const size_t row = (size_t)blockIdx.x * WEIGHT_GROUP + 2 * g + r;
            __half *to = out + (row * n_block + block) * LAYOUT_BLOCK + 16 * i + 4 * t;
            *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(v[i / 2].w[r][i % 2]);
        }
}

template <int type>
static __global__ void unpack(__half *out, const uint8_t *w, size_t group_bytes, uint32_t n_block)
{
    kernel_begin();
    static_assert(LAYOUT_BLOCKS % UNPACK_BLOCKS == 0, "a warp's blocks are of one chunk");
    const uint8_t *group = w + (size_t)blockIdx.x * group_bytes;
    uint32_t block = (blockIdx.y * HALF + threadIdx.x / 32) * UNPACK_BLOCKS;
    if (block + UNPACK_BLOCKS <= n_block)
        unpack_blocks<type, UNPACK_BLOCKS>(out, group, n_block, block);
    else
        for (; block < n_block; block++) unpack_blocks<type, 1>(out, group, n_block, block);
}

template <int type>
static sac_status launch_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                                uint32_t begin, uint32_t n)
{
    constexpr uint32_t step = HALF * UNPACK_BLOCKS;
    const uint32_t n_block = layout_n_block(w->n_in);
    return queue_launch(d, "unpacking of weights", unpack<type>,
                        dim3(n, (n_block + step - 1) / step), HALF * 32, 0, out,
                        w->data + begin * w->group_bytes, w->group_bytes, n_block);
}

bool narrow_packs(const struct cuda_device *d, uint32_t n_row, uint32_t width)
{
    if (d->smem_max < LITTLE) return n_row == 1 && width <= PACKS_LITTLE;
    return n_row <= PACKS_ROWS && n_row * width <= PACKS_VALUES;
}

sac_status narrow_run(struct cuda_device *d, const struct linear_rows *rows,
                      const struct narrow_use *use, uint32_t n)
{
    const struct weight *w = use[0].w;
    struct narrow_args a;
    uint32_t n_group = 0;
    bool mixed = false;
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < n; i++) {
        a.part[i].w = use[i].w->data;
        a.part[i].up = use[i].up ? use[i].up->data : NULL;
        a.part[i].group_bytes = use[i].w->group_bytes;
        a.part[i].n_group = use[i].w->n_group;
        a.part[i].group0 = n_group;
        a.part[i].type = use[i].w->type;
        mixed = mixed || use[i].w->type != w->type;
        a.part[i].end = use[i].end;
        n_group += use[i].w->n_group;
    }
    a.n_part = n;
    a.n_block = layout_n_block(w->n_in);
    a.n_group = n_group;
    a.x = rows->strips;
    a.x_scale = rows->scale;
    a.sum = rows->part;
    a.tally = d->tally;
    a.n_row = rows->n_row;
    if (rows->input) a.input = *rows->input;
    cut_rows(&a, d, n_group, rows->part_row);
    if (mixed) return launch_mixed(d, a);
#define CALL(type) return launch<type>(d, a)
    FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}

sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                         uint32_t begin, uint32_t n)
{
#define CALL(type) return launch_unpack<type>(d, out, w, begin, n)
    FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}
