/* draw.cu: importance sampling of tokens by their shares (op_lane_draw, struct op_draw), for
 * methods that read a sample. Tokens whose share reaches the cut are certain; any other is taken
 * with chance share / cut and gets the log weight ln(cut / share).
 *
 * Systematic sampling: chances are 32-bit fixed point, added up by position in 16 draw lanes, and a
 * token is taken where its lane's sum carries out of 32 bits. So the sums before a piece decide
 * both which tokens the piece takes and where it lists them. That makes it a scan over blocks:
 * draw_cut.cu finds the cut in one launch; in the second, a block claims the next piece
 * (atomicAdd), publishes the piece's sums (publish_piece), and polls for those of all pieces before
 * it (wait_for_pieces), which blocks have claimed that already run, so none waits in vain.
 * Everything is integers, and the order in which blocks come does not show.
 *
 * Grid: pieces by lanes, with one more block a lane that ends the draw and lists what is marked. A
 * block of 256 threads has a piece of 8,192 tokens; a warp has a stretch of 32 pages. Shares are
 * made from the exponentials of share.cu, in f16: cp.async brings those of four heads at a time to
 * shared memory (draw_room), during the previous kernel for the first four. Shares are never stored
 * in global memory. */
#include "ops/cuda/draw.cuh"
#include "ops/cuda/marked.cuh"

#define THREADS 256u
#define WARPS   (THREADS / 32)
#define EACH    (DRAW_PIECE / THREADS) /* items of a thread */
#define STRETCH (EACH * 32)            /* items of a warp, 32 pages */
#define NEAR    4u                     /* neighbouring items of a thread */
#define TURNS                                                                                      \
    (EACH / NEAR)  /* groups of NEAR items of a thread: one for each round of the draw lanes */
#define MARKED 16u /* pages of a thread in list_marked */
#define HEADS  4u  /* heads whose exponentials are in shared memory together */
#define BUSY                                                                                       \
    3u /* resident blocks of a multiprocessor, as they wait for memory and for each other */

static_assert(4 * NEAR == OP_DRAW_LANES, "four threads have all draw lanes");
static_assert(TURNS * OP_DRAW_LANES == 4 * PAGE_TOK, "and four pages");
static_assert(STRETCH == 32 * PAGE_TOK, "a thread of a warp for each of its pages");

/* ---- Sums of a piece ---- */

struct draw_by {
    float cut, by;
};

static __device__ inline struct draw_by draw_by_of(float cut)
{
    const struct draw_by by = {cut, 0x1p32f / cut};
    return by;
}

/* Sums of the chances of a warp's stretch: for each draw lane the low 32 bits, and in n all
 * overflows together with the tokens that are certain. */
struct draw_part {
    uint4 low[OP_DRAW_LANES / NEAR];
    uint32_t n;
};

static __device__ __forceinline__ uint32_t draw_low(const struct draw_part &of, uint32_t k)
{
    return ((const uint32_t *)of.low)[k];
}

/* A warp's shared memory. First exponentials of some heads, 128 bytes (four pages) for each lane /
 * 4; then the shares in f16, in the same layout (choose_accumulate), and the places of the sampled
 * tokens in the stretch. */
struct draw_room {
    union {
        uint4 exps[HEADS][STRETCH / 16];
        struct {
            uint4 share[TURNS / 2][32];
            uint16_t place[STRETCH];
        };
    };
    uint4 weight[HEADS][32 / 4]; /* of pages: first the largest logits, then choose_weight */
    float4 by[32 / 4];
};

/* A thread's part of its warp's stretch: lane 4 i + q has, of round s, the items 128 i + 16 s + 4 q
 * to + 3, which always belong to the same four draw lanes. */
struct draw_stretch {
    uint32_t chance[TURNS][NEAR];
    uint32_t sum[NEAR]; /* of its draw lanes, over all threads before this one */
    uint32_t certain;   /* one bit for each item */
    uint32_t first;
    float all; /* the sum of all chances in f32, exact enough to count overflows */
};

static __device__ __forceinline__ uint32_t draw_item(uint32_t s)
{
    const uint32_t lane = threadIdx.x % 32;
    return lane / 4 * 4 * PAGE_TOK + s * OP_DRAW_LANES + lane % 4 * NEAR;
}

/* Starts copies of the heads from g0 on: exponentials, in which 16-byte pieces are swizzled within
 * four pages, and the pages' largest logits. */
static __device__ __forceinline__ void
fetch_heads(struct draw_room &room, const struct op_share_planes &at, uint32_t g0, uint32_t page0)
{
    const uint32_t lane = threadIdx.x % 32, n_page = at.n_page, n_head = min(HEADS, at.group - g0);
    const uint8_t *const first = choose_exps(at, g0);
#pragma unroll
    for (uint32_t n = lane; n < STRETCH / 16; n += 32) {
        const uint32_t page = min(page0 + n / 2, n_page - 1);
        const uint8_t *from = first + page * PAGE_TOK + n % 2 * 16;
        const uint32_t to = smem_address(&room.exps[0][n ^ n / 8 % 8]);
#pragma unroll
        for (uint32_t g = 0; g < HEADS; g++, from += n_page * PAGE_TOK)
            if (g < n_head) cp_async16(to + g * (uint32_t)sizeof room.exps[0], from);
    }
    const float *top = choose_tops(at, g0) + min(page0 + lane, n_page - 1);
    const uint32_t to = smem_address(room.weight[0]) + lane * (uint32_t)sizeof *top;
#pragma unroll
    for (uint32_t g = 0; g < HEADS; g++, top += n_page)
        if (g < n_head) cp_async4(to + g * (uint32_t)sizeof room.weight[0], top);
    cp_async_commit();
}

/* Makes the shares of a stretch; by a warp. Copies of the first heads are in flight; the weights of
 * a page are made by lane page % 32. Returns whether no share can reach `cut`. */
static __device__ __forceinline__ bool make_shares(uint32_t share[TURNS][NEAR / 2],
                                                   struct draw_room &room,
                                                   const struct draw_from &from, uint32_t page0,
                                                   float cut)
{
    const struct op_share_planes &at = from.of.at;
    const uint32_t lane = threadIdx.x % 32, i = lane / 4, group = at.group;
    const uint32_t page = min(page0 + lane, at.n_page - 1);
    float most = -INFINITY, largest = 0;
    cp_async_wait<0>();
    for (uint32_t g = 0; g < min(HEADS, group); g++)
        most = fmaxf(most, ((const float *)room.weight[g])[lane] - from.log[g]);
    for (uint32_t g = HEADS; g < group; g++) most = fmaxf(most, choose_over(at, from.log, g, page));
    const float unit = choose_unit(at, most);
    ((float *)room.by)[lane] = unit;
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++) share[s][0] = share[s][1] = 0;
    for (uint32_t g0 = 0; g0 < group; g0 += HEADS) {
        const uint32_t n = min(HEADS, group - g0);
        cp_async_wait<0>();
#pragma unroll
        for (uint32_t g = 0; g < HEADS; g++) {
            if (g >= n) continue;
            const float over = ((const float *)room.weight[g])[lane] - from.log[g0 + g];
            const uint32_t weight = choose_weight(at, over, most);
            ((uint32_t *)room.weight[g])[lane] = weight;
            largest += half_unpack<HALF_F16>(weight).x;
        }
        __syncwarp(); /* all lanes' weights and copies are visible */
        for (uint32_t g = 0; g < n; g++) {
            const uint4 four = room.weight[g][i];
            const uint32_t weight[TURNS / 2] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (uint32_t s = 0; s < TURNS; s++)
                choose_accumulate(share[s],
                                  ((const uint32_t *)&room.exps[g][i * 8 + (s ^ i)])[lane % 4],
                                  weight[s / 2]);
        }
        __syncwarp(); /* the buffer has been read */
        if (g0 + HEADS < group) fetch_heads(room, at, g0 + HEADS, page0);
    }
    return __all_sync(~0u, largest * unit * (DRAW_OVER * exp2f(CHOOSE_UP)) < cut);
}

/* Clears shares of items beyond the last one. */
static __device__ __forceinline__ void end_shares(uint32_t share[TURNS][NEAR / 2], uint32_t first,
                                                  uint32_t n)
{
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++)
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++)
            if (first + draw_item(s) + k >= n) share[s][k % 2] &= k < 2 ? 0xffff0000u : 0xffffu;
}

/* Adds an item. NONE_CERTAIN: no item of the stretch is certain, which saves the test. */
template <bool NONE_CERTAIN>
static __device__ __forceinline__ void add_item(struct draw_stretch &to, uint32_t s, uint32_t k,
                                                float value, struct draw_by v)
{
    const float bits = value * v.by;
    if (NONE_CERTAIN) {
        to.chance[s][k] = (uint32_t)bits;
        to.all += bits;
    } else {
        const bool certain = !(value < v.cut);
        to.chance[s][k] = certain ? 0 : bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
        to.certain |= (uint32_t)certain << (s * NEAR + k);
        to.all += certain ? 0 : bits;
    }
    to.sum[k] += to.chance[s][k];
}

/* Adds the items from shares in f16. */
template <bool NONE_CERTAIN>
static __device__ __forceinline__ void add_made(struct draw_stretch &to,
                                                const uint32_t share[TURNS][NEAR / 2],
                                                const struct draw_room &room, struct draw_by v)
{
    const float4 four = room.by[threadIdx.x % 32 / 4];
    const float by[TURNS / 2] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++)
#pragma unroll
        for (uint32_t k = 0; k < NEAR / 2; k++) {
            const float2 both = half_unpack<HALF_F16>(share[s][k]);
            add_item<NONE_CERTAIN>(to, s, k, both.x * by[s / 2], v);
            add_item<NONE_CERTAIN>(to, s, k + 2, both.y * by[s / 2], v);
        }
}

/* Adds the items from values in global memory. */
static __device__ __forceinline__ void add_values(struct draw_stretch &to, const struct op_draw &op,
                                                  struct draw_by v)
{
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++)
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++) {
            const uint32_t i = to.first + draw_item(s) + k;
            add_item<false>(to, s, k, i < op.n ? op.value[i] : 0, v);
        }
}

/* Scans the sums over the lanes of a warp, and stores the stretch's total. */
static __device__ __forceinline__ void scan_sums(struct draw_part *to, struct draw_stretch &mine)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t own[NEAR], n = (uint32_t)__popc(mine.certain);
    u64 low = 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) {
        own[k] = mine.sum[k];
#pragma unroll
        for (uint32_t by = 4; by < 32; by *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, mine.sum[k], by);
            if (lane >= by) mine.sum[k] += other;
        }
        low += mine.sum[k];
    }
    if (lane >= 28)
        to->low[lane % 4] = make_uint4(mine.sum[0], mine.sum[1], mine.sum[2], mine.sum[3]);
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) mine.sum[k] -= own[k];
    low += __shfl_xor_sync(~0u, low, 1);
    low += __shfl_xor_sync(~0u, low, 2); /* sums without overflows */
    for (int by = 16; by > 0; by /= 2) {
        mine.all += __shfl_xor_sync(~0u, mine.all, by);
        n += __shfl_xor_sync(~0u, n, by);
    }
    if (lane == 31) to->n = n + (uint32_t)(((u64)mine.all - low + (1u << 31)) >> 32);
}

/* Publishes the sums of a piece, the total over its stretches; by a warp. */
static __device__ void publish_piece(struct draw_prefix *to, const struct draw_part *part)
{
    const uint32_t lane = threadIdx.x % 32;
    u64 sum = 0;
    if (lane >= OP_DRAW_LANES) return;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += draw_low(part[w], lane);
        if (lane == 0) sum += (u64)part[w].n << 32;
    }
    word_store_gpu(&to->word[lane], DRAW_READY | sum);
}

/* ---- Sampling ---- */

/* Sums before some item: of a draw lane, with part of the overflows counted apart in n. Certain
 * tokens are counted with draw lane 0. */
struct draw_place {
    u64 sum; /* of draw lane threadIdx.x % OP_DRAW_LANES */
    uint32_t n;
};

/* The number of tokens listed before that item. */
static __device__ inline uint32_t listed_before(const struct draw_place &to)
{
    uint32_t at = to.n + (uint32_t)(to.sum >> 32);
    for (int j = OP_DRAW_LANES / 2; j > 0; j /= 2) at += __shfl_xor_sync(~0u, at, j);
    return at;
}

#define POLLS 2u /* pieces that a thread polls together */

/* The sums over the n pieces before this one, as soon as all of them are published; by all
 * warps. */
static __device__ struct draw_place wait_for_pieces(const struct draw_prefix *prefix, uint32_t n,
                                                    struct draw_place (*room)[OP_DRAW_LANES])
{
    constexpr uint32_t step = THREADS / OP_DRAW_LANES;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % OP_DRAW_LANES;
    struct draw_place at = {0, 0};
    for (uint32_t p = threadIdx.x / OP_DRAW_LANES; p < n; p += step * POLLS) {
        uint64_t word[POLLS];
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (uint32_t i = 0; i < POLLS; i++)
                word[i] =
                    p + i * step < n ? word_load_gpu(&prefix[p + i * step].word[k]) : DRAW_READY;
#pragma unroll
            for (uint32_t i = 0; i < POLLS; i++) all = all && word[i] & DRAW_READY;
        }
#pragma unroll
        for (uint32_t i = 0; i < POLLS; i++) {
            at.sum += (uint32_t)word[i];
            at.n += (uint32_t)(word[i] >> 32) & ~(1u << 31);
        }
    }
    __syncwarp();
    at.sum += __shfl_xor_sync(~0u, at.sum, (int)OP_DRAW_LANES);
    at.n += __shfl_xor_sync(~0u, at.n, (int)OP_DRAW_LANES);
    if (lane < OP_DRAW_LANES) room[warp][lane] = at;
    __syncthreads();
    at.sum = (2 * k + 1) * (UINT32_MAX / (2 * OP_DRAW_LANES) + 1); /* op_draw_begin */
    at.n = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        at.sum += room[w][k].sum;
        at.n += room[w][k].n;
    }
    return at;
}

/* Bits of this thread's items that are taken: the carries of its sums, and the certain ones. */
static __device__ __forceinline__ uint32_t sampled_bits(const struct draw_stretch &of)
{
    uint32_t bits = 0, sum[NEAR];
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) sum[k] = of.sum[k];
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++)
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++) add_carry(bits, sum[k], of.chance[s][k]);
    return __brev(bits) | of.certain;
}

/* The token bits of page threadIdx.x % 32 of the stretch, collected from the four lanes that have
 * its items. */
static __device__ __forceinline__ uint32_t gather_page(uint32_t bits)
{
    const uint32_t q = threadIdx.x % 4, upper = q / 2, odd = q % 2;
    const uint32_t two = bits >> 16 * upper;
    const uint32_t twos = __shfl_xor_sync(~0u, bits >> 16 * (1 - upper), 2);
    /* Bytes: bits that lanes q and q ^ 2 have of this page, and those that they have of the page of
     * lane q ^ 1. */
    const uint32_t own = __byte_perm(two, twos, 0x0040 + 0x0011 * odd);
    const uint32_t others = __shfl_xor_sync(~0u, __byte_perm(two, twos, 0x0051 - 0x0011 * odd), 1);
    const uint32_t by_lane = upper ? (odd ? 0x0415 : 0x4051) : odd ? 0x1504 : 0x5140;
    const uint32_t all = __byte_perm(own, others, by_lane);
    uint32_t low = all & 0x0f0f0f0fu, high = all >> 4 & 0x0f0f0f0fu;
    low = (low | low >> 4) & 0x00ff00ffu;
    high = (high | high >> 4) & 0x00ff00ffu;
    return __byte_perm(low, high, 0x6420);
}

/* The share of an item, from f16 in shared memory. */
static __device__ __forceinline__ float made_share(const struct draw_room &room, uint32_t place)
{
    const uint32_t page = place / PAGE_TOK, t = place % PAGE_TOK;
    const uint32_t lane = page / 4 * 4 + t / NEAR % 4;
    const uint32_t both =
        ((const uint32_t *)&room.share[page % 4][lane])[t / OP_DRAW_LANES * 2 + t % 2];
    return half_unpack<HALF_F16>(t / 2 % 2 ? both >> 16 : both).x * ((const float *)room.by)[page];
}

/* Lists the sampled tokens of a stretch from number `at` on; word: token bits of the lane's page.
 * Few are sampled, so they are spread over all lanes before logs are taken. */
template <bool MADE>
static __device__ __forceinline__ void list_sampled(const struct op_draw &op,
                                                    struct draw_room &room, uint32_t first,
                                                    float cut, uint32_t at, uint32_t word)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t up_to = (uint32_t)__popc(word);
    uint32_t to = 0u - up_to;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, up_to, by);
        if (lane >= by) up_to += other;
    }
    const uint32_t n = __shfl_sync(~0u, up_to, 31);
    to += up_to;
    for (; word; word &= word - 1)
        room.place[to++] = (uint16_t)(lane * PAGE_TOK + (uint32_t)__ffs((int)word) - 1);
    __syncwarp(); /* all places are written */
    for (uint32_t i = lane; i < n; i += 32) {
        const uint32_t place = room.place[i];
        const float x = MADE ? made_share(room, place) : op.value[first + place];
        op.item[at + i] = op.first + first + place;
        op.logw[at + i] = x < cut ? LN2 * log2_fast(__fdividef(cut, x)) : 0.0f;
    }
}

struct draw_sums_room { /* of a block */
    struct draw_part part[WARPS];
    struct draw_place place[WARPS][OP_DRAW_LANES];
};

/* A warp adds up its stretch. MADE: from shares made here, else from values in global memory. */
template <bool MADE>
static __device__ __forceinline__ void add_stretch(struct draw_part *to, struct draw_stretch &mine,
                                                   struct draw_room &room, const struct op_draw &op,
                                                   const struct draw_from &from, float cut)
{
    const struct draw_by v = draw_by_of(cut);
    uint32_t share[TURNS][NEAR / 2];
    mine.certain = 0;
    mine.all = 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) mine.sum[k] = 0;
    if constexpr (MADE) {
        const bool none_certain =
            make_shares(share, room, from, (op.first + mine.first) / PAGE_TOK, cut);
        if (mine.first + STRETCH > op.n) end_shares(share, mine.first, op.n);
        if (none_certain)
            add_made<true>(mine, share, room, v);
        else
            add_made<false>(mine, share, room, v);
#pragma unroll
        for (uint32_t s = 0; s < TURNS; s += 2)
            room.share[s / 2][threadIdx.x % 32] =
                make_uint4(share[s][0], share[s][1], share[s + 1][0], share[s + 1][1]);
    } else
        add_values(mine, op, v);
    scan_sums(to, mine);
}

/* A block samples from a piece; returns the token bits of one page for each lane of its warps. */
template <bool MADE>
static __device__ uint32_t sample_piece(const struct op_lane_draw &op, const struct draw_from &from,
                                        uint32_t piece, float cut, struct draw_sums_room &all)
{
    const uint32_t warp = threadIdx.x / 32;
    struct draw_room &room = ((struct draw_room *)kernel_shared())[warp];
    struct draw_stretch mine;
    mine.first = piece * DRAW_PIECE + warp * STRETCH;
    add_stretch<MADE>(&all.part[warp], mine, room, op.at, from, cut);
    __syncthreads();
    if (warp == 0) publish_piece(&draw_prefix_of(op)[piece], all.part);
    struct draw_place to = wait_for_pieces(draw_prefix_of(op), piece, all.place);
    for (uint32_t w = 0; w < warp; w++) {
        to.sum += draw_low(all.part[w], threadIdx.x % OP_DRAW_LANES);
        to.n += threadIdx.x % OP_DRAW_LANES == 0 ? all.part[w].n : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++)
        mine.sum[k] += __shfl_sync(~0u, (uint32_t)to.sum, (int)(threadIdx.x % 4 * NEAR + k));
    const uint32_t word = gather_page(sampled_bits(mine));
    list_sampled<MADE>(op.at, room, mine.first, cut, listed_before(to), word);
    return word;
}

static __device__ void add_draw_result(const struct op_lane_draw &op, struct op_lane_result *r,
                                       uint32_t n)
{
    r->n_tok += n;
    r->n_chosen += n;
    r->n_over += n + op.n_more > op.most;
}

struct draw_call { /* arguments of a launch, [n] on the device each */
    const struct op_lane_draw *draw;
    const struct op_lane_shares *shares; /* to make values from; NULL: values are in memory */
    const struct op_lane_list *list;     /* NULL: another launch makes lists */
    uint32_t n, n_piece;
    uint32_t *turn; /* [n] zeros between launches: pieces claimed */
};

/* After the last piece: the counts of the draw, and the list of what is marked besides. */
static __device__ void finish_draw(const struct op_lane_draw &op, const struct op_lane_list *list,
                                   const struct page_lines &lines, struct draw_sums_room &room,
                                   struct marked_room &marked_room)
{
    struct op_lane_result r = *op.result;
    if (!r.n_bad)
        add_draw_result(
            op, &r,
            listed_before(wait_for_pieces(draw_prefix_of(op), draw_pieces(op), room.place)));
    __syncthreads(); /* all threads have read the result */
    if (threadIdx.x == 0) *op.result = r;
    if (!list) return;
    const bool dense = r.n_bad || r.n_over;
    const struct attn_count count =
        list_marked<MARKED>(*list, r, dense, dense ? 0 : r.n_tok, lines, marked_room);
    if (threadIdx.x > 0) return;
    struct attn_count *to = list->count; /* other blocks add to n_line_tok */
    to->dense = count.dense;
    to->not_finite = count.not_finite;
    to->n_page = count.n_page;
    to->n_tok = count.n_tok;
    to->n_chosen = count.n_chosen;
    to->n_line = count.n_line;
}

/* Starts the copies of a piece during the previous kernel, which finds the cut: what shares are
 * made from is complete by then. */
static __device__ void prefetch_piece(const struct op_lane_draw &op, const struct draw_from &from,
                                      uint32_t piece)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t first = op.at.first + piece * DRAW_PIECE + warp * STRETCH;
    if (piece >= draw_pieces(op)) return;
    fetch_heads(((struct draw_room *)kernel_shared())[warp], from.of.at, 0, first / PAGE_TOK);
}

/* A block samples from a piece; the block after the last piece finishes the draw of a lane. */
template <bool MADE>
static __global__ void __launch_bounds__(THREADS, BUSY)
    draw_sample_kernel(const struct draw_call of, const struct page_lines all_lines)
{
    __shared__ struct op_lane_draw op;
    __shared__ struct op_lane_list list;
    __shared__ struct draw_from from;
    __shared__ struct draw_sums_room room;
    __shared__ struct page_lines lines;
    __shared__ struct marked_room marked_room;
    __shared__ uint32_t turn;
    uint32_t next = 0;
    if (threadIdx.x == 0) next = atomicAdd(&of.turn[blockIdx.y], 1u); /* overlaps */
    list_load_lines(&lines, all_lines);
    if (of.list) choose_copy(&list, of.list + blockIdx.y);
    if (MADE) choose_copy(&from.of, of.shares + blockIdx.y);
    choose_copy(&op, of.draw + blockIdx.y);
    if (threadIdx.x == 0) {
        turn = next;
        if (next + 1 == gridDim.x) of.turn[blockIdx.y] = 0;
    }
    __syncthreads();
    if (MADE) prefetch_piece(op, from, turn);
    kernel_begin();
    const float cut = __ldcg(&op.state->cut); /* undefined if the lane is bad */
    const bool bad = op.result->n_bad;
    const uint32_t n_piece = bad ? 0 : draw_pieces(op);
    if (MADE && threadIdx.x < from.of.at.group)
        from.log[threadIdx.x] = __ldcg(from.of.lse + threadIdx.x);
    __syncthreads();
    if (turn == n_piece) finish_draw(op, of.list ? &list : NULL, lines, room, marked_room);
    if (turn >= n_piece) {
        cp_async_wait<0>(); /* drain copies that are not used */
        return;
    }
    const uint32_t word = sample_piece<MADE>(op, from, turn, cut, room);
    if (!of.list) return;
    uint32_t n_line = page_lines_of(lines, word);
    for (int by = 16; by > 0; by /= 2) n_line += __shfl_xor_sync(~0u, n_line, by);
    if (threadIdx.x % 32 == 0 && n_line) atomicAdd(&list.count->n_line_tok, n_line);
}

/* ---- The launcher ---- */

/* Launches the sampling. */
static sac_status take(struct cuda_device *d, const struct draw_call &of,
                       const struct page_lines &lines)
{
    const size_t smem = WARPS * sizeof(struct draw_room);
    const dim3 grid(of.n_piece + 1, of.n);
    if (of.shares)
        return queue_launch(d, "draw of tokens", draw_sample_kernel<true>, grid, THREADS, smem, of,
                            lines);
    return queue_launch(d, "draw of tokens", draw_sample_kernel<false>, grid, THREADS, smem, of,
                        lines);
}

static sac_status launch(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    const struct page_lines no_lines = {};
    const struct op_lane_draw *list = choose_stage(d, op, n);
    if (!list) return d->status;
    const struct choose_ends ends = choose_absorb_ends(d);
    const struct choose_spread shares = choose_absorb_spread(d, op, n);
    uint32_t most = 1;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].at.n);
    most = choose_round_up(most);
    TRY(draw_find_cuts(d, shares, list, n, most, ends));
    const uint32_t n_piece = (most + DRAW_PIECE - 1) / DRAW_PIECE;
    const struct op_lane_shares *made = shares.n > 0 ? shares.list : NULL;
    return take(d, {list, made, NULL, n, n_piece, d->tally + DRAW_LANES}, no_lines);
}

sac_status cuda_lane_draw(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += DRAW_LANES)
        TRY(launch(d, op + i, n - i < DRAW_LANES ? n - i : DRAW_LANES));
    return d->status;
}

/* The pages of a stretch are then exactly a warp's 32, so that the warp can count the cache
 * lines. */
static bool lists_draws(const struct op_lane_draw *draw, const struct op_lane_list *list)
{
    return list->result == draw->result && list->weighs && !list->dense &&
           list->tok == draw->at.item && draw->at.first % PAGE_TOK == 0;
}

bool choose_list_drawn(struct cuda_device *d, const struct op_lane_list *op,
                       const struct op_lane_list *staged, uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(draw_sample_kernel<true>));
    if (!last) last = queue_last(d, kernel_entry(draw_sample_kernel<false>));
    if (!last) return false;
    struct draw_call of;
    memcpy(&of, last, sizeof of);
    const struct op_lane_draw *draw = choose_staged(d, of.draw);
    bool same = of.n == n && !of.list;
    for (uint32_t i = 0; i < n && same; i++) same = lists_draws(&draw[i], &op[i]);
    if (!same) return false;
    queue_drop_last(d);
    of.list = staged;
    (void)take(d, of, *op->lines); /* the device remembers a failure */
    return true;
}
