/* machine.cuh: src/ops/cuda/machine.cuh for a CPU. Asynchronous copies are complete at once, so a
 * kernel that reads before it has waited for them is not detected. */
#ifndef SAC_TESTS_CUDA_MACHINE_CUH
#define SAC_TESTS_CUDA_MACHINE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum half_type { HALF_F16, HALF_BF16 };

#define LINEAR_PANEL  64u                /* so that the matrices of small models are cut */
#define PIECE_BYTES   ((size_t)96 << 10) /* and their copies, */
#define PROMPT_PIECE  2u                 /* and short prompts of tests */
#define TEAM_POLLS    1u
#define ORDER_NEAR    1024u
#define SMEM_IS_LARGE false

/* ---- Launches ---- */

template <typename... P> static const void *kernel_entry(void (*kernel)(P...))
{
    const void *entry = reinterpret_cast<const void *>(kernel);
    host_know(entry, host_kernel<P...>::bind);
    return entry;
}

static inline void kernel_begin(void)
{
    grid_begin();
}

static inline uint32_t tally_increment(uint32_t *tally)
{
    return (*tally)++;
}

static inline void word_store_gpu(uint64_t *to, uint64_t word)
{
    *to = word;
}

static inline uint64_t word_load_gpu(const uint64_t *at)
{
    return *at;
}

static inline void kernel_launch_dependents(void)
{
}

static inline void prefetch_l1(const float *p)
{
    (void)*(const volatile float *)p;
}

static inline void prefetch_l2(const void *p)
{
    (void)*(const volatile uint8_t *)p; /* it must be there */
}

static inline uint8_t *kernel_shared(void)
{
    return grid_shared();
}

/* ---- Blocks of a cluster ---- */

#define CLUSTER_OF(n)

static inline uint32_t cluster_size(void)
{
    return 1;
}

static inline uint32_t cluster_rank(void)
{
    return 0;
}

static inline void cluster_sync(void)
{
    __syncthreads();
}

static inline unsigned long long cluster_load(const unsigned long long *shared, uint32_t rank)
{
    (void)rank;
    return *shared;
}

/* ---- Between GPUs ---- */

static inline void word_store_system(uint64_t *to, uint64_t word)
{
    host_send(to, word);
}

static inline uint64_t word_load_system(const uint64_t *at)
{
    return *at;
}

static inline void spin_pause(void)
{
    grid_pause();
}

static inline uint64_t clock_ns(void)
{
    return host_clock_ns();
}

/* ---- Arithmetic ---- */

template <int H> static inline float machine_float(uint32_t word, int i)
{
    const uint16_t bits = (uint16_t)(word >> 16 * i);
    return H == HALF_F16 ? __half2float({bits}) : bf16_to_f32(bits);
}

/* What a lane brings: its halves of A and B, and its sums. Lane 4 g + j has rows g and g + 8 of A
 * and of the sums, column g of B, and of each the pairs j. */
struct mma_part {
    uint32_t a[4], b[2];
    float c[4];
};

/* The product of a warp, by the lane that comes last: sums are in the order of k. */
template <int H> static void mma_join(grid_words *of_lane)
{
    typedef float eight __attribute__((vector_size(32)));
    struct mma_part part[32];
    float a[16][16], b[16][8], c[16][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t g = lane / 4, j = lane % 4;
        struct mma_part *p = &part[lane];
        memcpy(p, of_lane[lane], sizeof *p);
        for (uint32_t i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][i / 4 * 8 + 2 * j + i % 2] = machine_float<H>(p->a[i / 2], i % 2);
        for (uint32_t i = 0; i < 4; i++) {
            b[i / 2 * 8 + 2 * j + i % 2][g] = machine_float<H>(p->b[i / 2], i % 2);
            c[g + i / 2 * 8][2 * j + i % 2] = p->c[i];
        }
    }
    for (uint32_t row = 0; row < 16; row++) {
        eight sum, column;
        memcpy(&sum, c[row], sizeof sum);
        for (uint32_t k = 0; k < 16; k++) {
            memcpy(&column, b[k], sizeof column);
            sum += a[row][k] * column;
        }
        memcpy(c[row], &sum, sizeof sum);
    }
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++)
            memcpy(&of_lane[lane][6 + i], &c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2],
                   sizeof(float));
}

template <int H>
static inline void mma_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const struct mma_part mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    static_assert(sizeof mine <= sizeof(grid_words), "too large for an exchange");
    memcpy(c, grid_meet(GRID_MMA, ~0u, &mine, sizeof mine, mma_join<H>)[grid_lane()] + 6,
           4 * sizeof *c);
}

static inline void add_carry(uint32_t &bits, uint32_t &sum, uint32_t x)
{
    sum += x;
    bits = bits << 1 | (sum < x);
}

static inline uint32_t bits_select(uint32_t mask, uint32_t a, uint32_t b)
{
    return (mask & a) | (~mask & b);
}

template <int H> static inline uint32_t half_pack(float x, float y)
{
    if (H == HALF_F16) return __float2half_rn(x).bits | (uint32_t)__float2half_rn(y).bits << 16;
    return f32_to_bf16(x) | (uint32_t)f32_to_bf16(y) << 16;
}

static inline uint32_t h2_sub(uint32_t a, uint32_t b)
{
    return half_pack<HALF_F16>(machine_float<HALF_F16>(a, 0) - machine_float<HALF_F16>(b, 0),
                               machine_float<HALF_F16>(a, 1) - machine_float<HALF_F16>(b, 1));
}

static inline uint32_t h2_neg(uint32_t a)
{
    return a ^ 0x80008000u;
}

static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    return half_pack<HALF_F16>(machine_float<HALF_F16>(a, 0) * machine_float<HALF_F16>(b, 0),
                               machine_float<HALF_F16>(a, 1) * machine_float<HALF_F16>(b, 1));
}

static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    float r[2];
    for (int i = 0; i < 2; i++)
        r[i] = fmaf(machine_float<HALF_F16>(a, i), machine_float<HALF_F16>(b, i),
                    machine_float<HALF_F16>(c, i));
    return half_pack<HALF_F16>(r[0], r[1]);
}

static inline void keep_in_register(uint32_t &x)
{
    (void)x;
}

static inline void keep_in_register(const uint8_t *&p)
{
    (void)p;
}

static inline float log2_fast(float x)
{
    return log2f(x);
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}

/* ---- Shared memory ---- */

static inline uint32_t smem_address(const void *p)
{
    return grid_shared_address(p);
}

static inline void cp_async16(uint32_t dst, const void *src)
{
    memcpy(grid_shared_at(dst, 16), src, 16);
}

static inline void cp_async4(uint32_t dst, const void *src)
{
    memcpy(grid_shared_at(dst, 4), src, 4);
}

static inline void store_zero16(uint32_t dst)
{
    memset(grid_shared_at(dst, 16), 0, 16);
}

static inline void cp_async_commit(void)
{
}

template <int N> static inline void cp_async_wait(void)
{
}

/* Lane 4 g + j gets the pair j of row g of each tile, or turned, of column g. */
static inline void machine_tiles(uint32_t r[4], uint32_t row, bool turned)
{
    const uint32_t g = grid_lane() / 4, j = grid_lane() % 4;
    const grid_words *rows = grid_meet(GRID_TILES, ~0u, &row, sizeof row);
    for (uint32_t i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t of = turned ? 2 * j + e : g, at = turned ? g : 2 * j + e;
            memcpy(&pair[e], (const uint8_t *)grid_shared_at(rows[8 * i + of][0], 16) + 2 * at, 2);
        }
        r[i] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

static inline void ldmatrix_x4(uint32_t r[4], uint32_t row)
{
    machine_tiles(r, row, false);
}

static inline void ldmatrix_x4_trans(uint32_t r[4], uint32_t row)
{
    machine_tiles(r, row, true);
}

#endif
