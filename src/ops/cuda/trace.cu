/* trace.cu: plans of prompt rows from columns and diagonals of the attention of a few rows
 * (op_trace, for minference; greedy.cu and pooled.cu continue for loopserve and flexprefill).
 *
 * Launches: trace_tops_kernel scores up to 64 rows of a head against a span of keys, m16n8k16 with
 * queries in shared memory and keys in registers (rows.cuh), and keeps softmax sums;
 * trace_merge_kernel merges these over the spans, a warp for each row; trace_weights_kernel scores
 * again and stores probabilities in bf16; trace_sums_kernel, a thread for each column and diagonal,
 * adds them up; trace_best_kernel, a block for each head, kind and pattern, takes the best lines by
 * a radix select; trace_held_kernel measures what a pattern holds; trace_list_kernel, a block for
 * each list.
 *
 * Probabilities are added in fixed point (TRACE_ONE), so sums do not depend on their order, and a
 * head's choice depends on its rows and keys alone. */
#include "ops/cuda/cut.cuh"
#include "ops/cuda/list.cuh"
#include "ops/cuda/trace.cuh"

#define WARPS        8u
#define THREADS      (WARPS * 32)
#define BEST_THREADS 1024u /* of trace_best_kernel */
#define ROWS         64u   /* rows of a block, whose queries are in shared memory */
#define HELD_BATCH   8u    /* rows of a thread in flight */
#define SPAN_PAGES   (OP_TRACE_SPAN / PAGE_TOK)

/* ---- Attention of rows ---- */

/* What a block scores: up to ROWS rows of a head, and a span of pages. */
struct trace_place {
    uint32_t head, row0, n_row; /* n_row rows of the call from row0 on */
    uint32_t page0, page_end;
};

static __device__ struct trace_place trace_place_of(const struct trace_call &c,
                                                    const struct trace_rows &rows)
{
    struct trace_place p;
    p.head = blockIdx.y;
    p.row0 = blockIdx.z * ROWS;
    p.n_row = min(ROWS, rows.n - p.row0);
    p.page0 = blockIdx.x * SPAN_PAGES;
    p.page_end = min(p.page0 + SPAN_PAGES, (c.n + PAGE_TOK - 1) / PAGE_TOK);
    return p;
}

/* Packs queries into shared memory, zeros after the last row. All threads. */
template <int F, int D>
static __device__ void pack_queries(uint8_t *query, const struct trace_call &c,
                                    const struct trace_rows &rows, const struct trace_place &p)
{
    for (uint32_t i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const uint32_t r = i / (D / 8);
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (r < p.n_row)
            piece = pack_piece<F, D>(
                rows_query<D>(c.op.rows, rows.at[p.row0 + r] - c.op.rows.pos, p.head), i % (D / 8));
        *(uint4 *)(query + query_at<D>(r, i % (D / 8))) = piece;
    }
    __syncthreads();
}

/* A logit as an exponent of 2. */
static __device__ __forceinline__ float exponent(const struct trace_call &c, float dot)
{
    const float score = dot * c.op.rows.scale;
    return (c.op.softcap > 0 ? c.op.softcap * tanhf(score / c.op.softcap) : score) * LOG2E;
}

/* Calls see(row of the place, first key, exponents, bits of keys that the row sees) for rows 16 m +
 * g and 16 m + g + 8 and N tiles of 8 keys at a time, over the warp's pages. */
template <int F, int D, typename See>
static __device__ void see_pages(uint32_t query, const struct trace_call &c,
                                 const struct trace_rows &rows, const struct trace_place &p,
                                 const See &see)
{
    constexpr int N = rows_size<F, D>::n;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4, n_m = (p.n_row + 15) / 16;
    for (uint32_t page = p.page0 + threadIdx.x / 32; page < p.page_end; page += WARPS)
        for (int part = 0; part < rows_size<F, D>::parts; part++) {
            uint32_t k[N][D / 16][2];
            const uint32_t first = page * PAGE_TOK + part * N * 8;
            load_keys<F, D>(k, c.pages, p.head / c.group, page, part * N * 8);
            for (uint32_t m = 0; m < n_m; m++) {
                float s[N][4];
                dots<F, D>(s, query, m, k);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t r = m * 16 + i * 8 + g;
                    const uint32_t n_seen = r < p.n_row ? rows.at[p.row0 + r] + 1 : 0;
                    float x[2 * N];
                    uint32_t seen = 0;
#pragma unroll
                    for (int n = 0; n < 2 * N; n++) {
                        x[n] = exponent(c, s[n / 2][2 * i + n % 2]);
                        seen |= (uint32_t)(first + n / 2 * 8 + j * 2 + n % 2 < n_seen) << n;
                    }
                    see(r, first, x, seen);
                }
            }
        }
}

/* Dynamic shared memory: queries, softmax sums [WARPS][ROWS]. */
template <int D> static size_t tops_bytes(void)
{
    return ROWS * (D * 2 + WARPS * sizeof(struct exp_sum));
}

template <int F, int D>
__global__ void __launch_bounds__(THREADS)
    trace_tops_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    constexpr int N = rows_size<F, D>::n;
    const struct trace_place p = trace_place_of(c, rows);
    uint8_t *const query = kernel_shared();
    struct exp_sum *const all = (struct exp_sum *)(query + ROWS * (D * 2));
    struct exp_sum *const mine = all + threadIdx.x / 32 * ROWS;
    for (uint32_t r = threadIdx.x; r < WARPS * ROWS; r += THREADS) all[r] = exp_sum_none();
    pack_queries<F, D>(query, c, rows, p);
    see_pages<F, D>(smem_address(query), c, rows, p,
                    [&](uint32_t r, uint32_t, const float(&x)[2 * N], uint32_t seen) {
                        const struct exp_sum sum = power_sum<N>(x, seen);
                        if (threadIdx.x % 4 == 0) mine[r] = power_sum_add(mine[r], sum);
                    });
    __syncthreads();
    if (threadIdx.x >= ROWS || p.row0 + threadIdx.x >= c.n_row16) return;
    struct exp_sum sum = all[threadIdx.x];
    for (uint32_t w = 1; w < WARPS; w++) sum = power_sum_add(sum, all[w * ROWS + threadIdx.x]);
    c.top[((size_t)p.head * c.n_span + blockIdx.x) * c.n_row16 + p.row0 + threadIdx.x] = sum;
}

/* A warp has a row. */
static __global__ void __launch_bounds__(THREADS)
    trace_merge_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t head = blockIdx.y;
    if (row >= rows.n) return;
    struct exp_sum sum = exp_sum_none();
    for (uint32_t i = lane; i < c.n_span; i += 32)
        sum = power_sum_add(sum, c.top[((size_t)head * c.n_span + i) * c.n_row16 + row]);
    for (int by = 16; by > 0; by /= 2) {
        const struct exp_sum other = {__shfl_xor_sync(~0u, sum.max, by),
                                      __shfl_xor_sync(~0u, sum.sum, by)};
        sum = power_sum_add(sum, other);
    }
    if (lane > 0) return;
    const float lse = sum.max + log2f(sum.sum);
    c.lse[(size_t)head * c.n_row16 + row] = lse;
    if (!isfinite(lse)) list_fail(c.op.lists, head / c.group);
}

template <int F, int D>
__global__ void __launch_bounds__(THREADS)
    trace_weights_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    constexpr int N = rows_size<F, D>::n;
    const struct trace_place p = trace_place_of(c, rows);
    uint8_t *const query = kernel_shared();
    pack_queries<F, D>(query, c, rows, p);
    see_pages<F, D>(smem_address(query), c, rows, p,
                    [&](uint32_t r, uint32_t first, const float(&x)[2 * N], uint32_t seen) {
                        if (r >= p.n_row) return;
                        const float lse = c.lse[(size_t)p.head * c.n_row16 + p.row0 + r];
                        uint16_t *to = trace_weight(c, p.head, rows.n, p.row0 + r) + first +
                                       threadIdx.x % 4 * 2;
#pragma unroll
                        for (int n = 0; n < N; n++) {
                            const float a = seen >> 2 * n & 1 ? exp2_fast(x[2 * n] - lse) : 0.0f;
                            const float b =
                                seen >> (2 * n + 1) & 1 ? exp2_fast(x[2 * n + 1] - lse) : 0.0f;
                            *(uint32_t *)(to + n * 8) = half_pack<HALF_BF16>(a, b);
                        }
                    });
}

/* ---- Sums along lines ---- */

/* Thread x adds up column x and diagonal x. */
static __global__ void __launch_bounds__(THREADS)
    trace_sums_kernel(const struct trace_call c, const struct trace_rows rows, bool ranks,
                      bool judges)
{
    kernel_begin();
    const uint32_t x = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y;
    if (x >= c.n) return;
    trace_sum sum[TRACE_KINDS] = {};
#pragma unroll 4
    for (uint32_t r = 0; r < rows.n; r++) {
        const uint16_t *p = trace_weight(c, head, rows.n, r);
        sum[TRACE_COLUMN] += trace_whole(p[x]);
        if (rows.at[r] >= x) sum[TRACE_SLASH] += trace_whole(p[rows.at[r] - x]);
    }
    for (uint32_t k = 0; k < TRACE_KINDS; k++) {
        if (judges) trace_sums(c, head, k)[x] = sum[k];
        const bool first = x < (k == TRACE_COLUMN ? c.op.sink : c.op.band);
        if (ranks)
            c.rank[((size_t)head * TRACE_KINDS + k) * c.stride + x] =
                first ? INFINITY : (float)sum[k];
    }
}

/* ---- The best lines ---- */

/* One block for each kind of lines, head and pattern. */
static __global__ void __launch_bounds__(BEST_THREADS) trace_best_kernel(const struct trace_call c)
{
    kernel_begin();
    __shared__ uint32_t bin[CUT_BINS], room[32];
    const uint32_t kind = blockIdx.x, head = blockIdx.y, size = blockIdx.z;
    const struct op_trace_size want = c.op.size[size * c.op.rows.n_head + head];
    const float *rank = c.rank + ((size_t)head * TRACE_KINDS + kind) * c.stride;
    uint32_t *bits = trace_taken(c, size, head, kind), n_before = 0, all;
    if (kind == 0 && threadIdx.x == 0) c.held[(size_t)size * c.op.rows.n_head + head] = 0;
    if (trace_failed(c, head) || want.family != OP_TRACE_LINES) return;
    const uint32_t most = kind == TRACE_COLUMN ? want.n_column : want.n_slash;
    const struct op_cut cut = cut_find(rank, c.n, min(most, c.n), bin, room);
    uint32_t n_same = 0;
    for (uint32_t x = threadIdx.x; x < c.n; x += BEST_THREADS)
        n_same += cut_key(rank[x]) == cut.key;
    const bool all_same = block_sum(n_same, room) == cut.n_tie; /* nearly always */
    for (uint32_t first = 0; first < c.n; first += BEST_THREADS) {
        const uint32_t x = first + threadIdx.x, key = x < c.n ? cut_key(rank[x]) : 0;
        const bool same = x < c.n && key == cut.key;
        uint32_t before = 0;
        if (!all_same) {
            before = n_before + block_exclusive_sum(same, room, &all);
            n_before += all;
        }
        const bool takes = x < c.n && (key > cut.key || (same && before < cut.n_tie));
        const uint32_t word = __ballot_sync(~0u, takes);
        if (threadIdx.x % 32 == 0) bits[x / 32] = word;
    }
}

/* What a pattern's lines hold of the judging rows' attention: the sums of the lines minus the cells
 * that lie on two of them. */
static __global__ void __launch_bounds__(THREADS)
    trace_held_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    __shared__ trace_sum room[32];
    const uint32_t x = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y, size = blockIdx.z;
    const uint32_t *column = trace_taken(c, size, head, TRACE_COLUMN);
    const uint32_t *slash = trace_taken(c, size, head, TRACE_SLASH);
    trace_sum sum = 0;
    if (trace_failed(c, head) || c.op.size[size * c.op.rows.n_head + head].family != OP_TRACE_LINES)
        return;
    if (x < c.n && trace_has(slash, x)) sum += trace_sums(c, head, TRACE_SLASH)[x];
    if (x < c.n && trace_has(column, x)) {
        sum += trace_sums(c, head, TRACE_COLUMN)[x];
        for (uint32_t first = 0; first < rows.n; first += HELD_BATCH) {
            uint32_t word[HELD_BATCH], at[HELD_BATCH];
#pragma unroll
            for (uint32_t k = 0; k < HELD_BATCH; k++) { /* loads in flight together */
                at[k] = first + k < rows.n ? rows.at[first + k] : 0;
                word[k] = at[k] >= x ? slash[(at[k] - x) / 32] : 0;
            }
#pragma unroll
            for (uint32_t k = 0; k < HELD_BATCH; k++)
                if (word[k] >> (at[k] - x) % 32 & 1)
                    sum -= trace_whole(trace_weight(c, head, rows.n, first + k)[x]);
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0 && sum > 0)
        atomicAdd(&c.held[(size_t)size * c.op.rows.n_head + head], sum);
}

/* ---- Lists ---- */

/* Tokens of the page `far` pages before a tile that its rows meet on some diagonal: token j is at
 * distances 32 far - j to 32 far - j + tile_tok - 1. */
static __device__ uint32_t slash_word(const uint32_t *slash, uint32_t n_word, uint32_t far,
                                      uint32_t tile_pages)
{
    uint32_t whole = 0;
    for (uint32_t i = far; i + 1 < far + tile_pages && i < n_word; i++) whole |= slash[i];
    if (whole) return ~0u;
    const uint32_t last = far + tile_pages - 1;
    const uint32_t hi = slash[far - 1], lo = last < n_word ? slash[last] : 0;
    const uint32_t word = hi ? ~0u << __clz((int)hi) << 1 : 0;
    return lo ? word | ~0u >> (__ffs((int)lo) - 1) : word;
}

/* The marks of a tile and head. */
struct trace_marks {
    const uint32_t *column, *slash;
    uint32_t n_page, n_word, tile_pages;
    struct op_trace_size size;
    __device__ uint32_t word(uint32_t page) const
    {
        if (size.family == OP_TRACE_ENDS) {
            const uint32_t first = n_page * PAGE_TOK + 1;
            const uint32_t recent = first > size.n_slash ? first - size.n_slash : 0;
            return bits_of(page, 0, size.n_column) | bits_of(page, recent, first - 1);
        }
        return column[page] | slash_word(slash, n_word, n_page - page, tile_pages);
    }
    __device__ float logw(uint32_t, uint32_t) const
    {
        return 0;
    }

  private:
    static __device__ uint32_t bits_of(uint32_t page, uint32_t begin, uint32_t end)
    {
        const uint32_t first = page * PAGE_TOK;
        const uint32_t lo = begin > first ? begin - first : 0;
        const uint32_t hi = end > first ? min(end - first, PAGE_TOK) : 0;
        return lo < hi ? ~0u >> (PAGE_TOK - hi) & ~0u << lo : 0;
    }
};

/* Rounded to the precision of such sums, so that patterns that hold everything compare equal. */
static __device__ float mass_of(const struct trace_call &c, uint32_t size, uint32_t head,
                                uint32_t n_row)
{
    const double held = (double)c.held[(size_t)size * c.op.rows.n_head + head];
    return (float)(rint(held / TRACE_ONE / n_row * 0x1p16) * 0x1p-16);
}

static __device__ uint32_t best_size(float *out_mass, const struct trace_call &c, uint32_t head,
                                     uint32_t n_row)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < c.op.n_size; i++) {
        const float mass = mass_of(c, i, head, n_row);
        if (i > 0 && mass <= *out_mass) continue;
        best = i;
        *out_mass = mass;
    }
    return best;
}

/* Whose lines a head reads, and which pattern. */
struct trace_choice {
    uint32_t size, head;
    float mass; /* held by the lines */
    enum plan_reason why;
};

static __device__ struct trace_choice choice_of(const struct trace_call &c, uint32_t head,
                                                uint32_t n_row)
{
    struct trace_choice r = {0, head, -1, c.op.why};
    if (r.why == PLAN_SPARSE && trace_failed(c, head)) r.why = PLAN_NAN;
    if (r.why != PLAN_SPARSE) return r;
    if (c.op.rule == OP_TRACE_BEST) {
        r.size = best_size(&r.mass, c, head, n_row);
        const enum op_trace_family family = c.op.size[r.size * c.op.rows.n_head + head].family;
        if (family == OP_TRACE_ALL) r.why = PLAN_SHORT;
        if (family != OP_TRACE_LINES) r.mass = -1;
        return r;
    }
    if (c.op.by_group) r.head -= head % c.group;
    const auto told = [&](enum trace_result_kind what) {
        return (double)*trace_result(c, what, r.head);
    };
    if (told(TRACE_REACHED) == 0 || told(TRACE_CELLS) > c.op.most) r.why = PLAN_NO_GAIN;
    r.mass = r.why ? 1.0f : (float)(told(TRACE_HELD) / told(TRACE_WHOLE));
    return r;
}

static __global__ void __launch_bounds__(THREADS)
    trace_list_kernel(const struct trace_call c, uint32_t n_row)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const uint32_t head = blockIdx.x, tile_pages = c.op.rows.tile_tok / PAGE_TOK;
    const uint32_t n_page = (c.op.rows.tile0 + blockIdx.y) * tile_pages;
    const size_t i = (size_t)blockIdx.y * c.op.rows.n_head + head;
    const struct list_room to = list_room_of(c.op.lists, i);
    struct attn_list list = {};
    const struct trace_choice r = choice_of(c, head, n_row); /* uniform in the block */
    enum plan_reason why = r.why;
    if (why == PLAN_SPARSE && (n_page + tile_pages) * PAGE_TOK <= c.op.rows.dense_to)
        why = PLAN_SHORT;
    if (why == PLAN_SPARSE) {
        const struct trace_marks marks = {trace_taken(c, r.size, r.head, TRACE_COLUMN),
                                          trace_taken(c, r.size, r.head, TRACE_SLASH),
                                          n_page,
                                          (c.n + 31) / 32,
                                          tile_pages,
                                          c.op.size[r.size * c.op.rows.n_head + r.head]};
        list_make(&list, to, marks, n_page, tile_pages, room);
        if (list.n_tok > to.tok_max || list.n_range > to.range_max) why = PLAN_OVERFLOW;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    list_close(&list, to, why, n_page, tile_pages);
    if (blockIdx.y == 0) list.mass = r.mass;
    c.op.lists.made[i] = list;
}

/* ---- The launcher ---- */

/* Divides the buffer, whose size op_trace_bytes gives. */
static void lay_out(struct trace_call *c)
{
    const size_t n_head = c->op.rows.n_head, n_line = n_head * TRACE_KINDS * c->stride;
    c->sum = (trace_sum *)c->op.room;
    c->held = c->sum + n_line;
    c->top = (struct exp_sum *)(c->held + OP_TRACE_SIZES * n_head);
    c->lse = (float *)(c->top + n_head * c->n_span * c->n_row16);
    c->rank = c->lse + n_head * c->n_row16;
    c->line = (uint32_t *)(c->rank + n_line);
    c->taken = c->line + n_head * c->stride;
    c->weight = (uint16_t *)(c->taken + OP_TRACE_SIZES * n_line / 32);
}

/* Probabilities of rows, and their sums along lines. */
template <int F, int D>
static sac_status attend(struct cuda_device *d, const struct trace_call *c,
                         const struct trace_rows *rows, bool ranks, bool judges)
{
    const uint32_t n_head = c->op.rows.n_head;
    const dim3 grid(c->n_span, n_head, (rows->n + ROWS - 1) / ROWS);
    TRY(queue_launch(d, "rows against all keys", trace_tops_kernel<F, D>, grid, THREADS,
                     tops_bytes<D>(), *c, *rows));
    TRY(queue_launch(d, "sums of rows", trace_merge_kernel,
                     dim3((rows->n + WARPS - 1) / WARPS, n_head), THREADS, 0, *c, *rows));
    TRY(queue_launch(d, "attention of rows", trace_weights_kernel<F, D>, grid, THREADS,
                     ROWS * D * 2, *c, *rows));
    if (c->op.by_group) TRY(trace_join(d, c, rows));
    return queue_launch(d, "sums along lines", trace_sums_kernel,
                        dim3((c->n + THREADS - 1) / THREADS, n_head), THREADS, 0, *c, *rows, ranks,
                        judges);
}

/* The best lines, and what they hold of the judging rows' attention. */
static sac_status take_best(struct cuda_device *d, const struct trace_call *c,
                            const struct trace_rows *judge)
{
    TRY(queue_launch(d, "the best lines", trace_best_kernel,
                     dim3(TRACE_KINDS, c->op.rows.n_head, c->op.n_size), BEST_THREADS, 0, *c));
    return queue_launch(d, "attention held by lines", trace_held_kernel,
                        dim3((c->n + THREADS - 1) / THREADS, c->op.rows.n_head, c->op.n_size),
                        THREADS, 0, *c, *judge);
}

template <int F, int D>
static sac_status launch(struct cuda_device *d, const struct trace_call *c,
                         const struct page_geom *geom)
{
    const struct op_trace *op = &c->op;
    const struct trace_rows choose = {op->choose.n, op->choose.at};
    const struct trace_rows judge = {op->judge.n, op->judge.at};
    const bool is_best = op->rule == OP_TRACE_BEST, apart = judge.n > 0;
    const bool is_pooled = op->rule == OP_TRACE_POOLED;
    const struct trace_rows *last = apart ? &judge : &choose;
    if (op->why == PLAN_SPARSE) {
        TRY((attend<F, D>(d, c, &choose, is_best || is_pooled, !apart)));
        if (apart) TRY((attend<F, D>(d, c, &judge, false, true)));
        if (is_pooled) return trace_pooled(d, c, geom);
        TRY(is_best ? take_best(d, c, last) : trace_greedy(d, c, last));
    }
    return queue_launch(d, "lists of lines", trace_list_kernel,
                        dim3(op->rows.n_head, op->rows.n_tile), THREADS, 0, *c, last->n);
}

template <int F>
static sac_status launch_form(struct cuda_device *d, const struct page_geom *geom,
                              const struct trace_call *c)
{
    switch (geom->head_dim) {
    case 64: return launch<F, 64>(d, c, geom);
    case 128: return launch<F, 128>(d, c, geom);
    case 256: return launch<F, 256>(d, c, geom);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "lines of prompt rows: this head size");
    }
}

/* Stages the rows and sizes. */
static sac_status stage_descriptors(struct cuda_device *d, struct op_trace *op)
{
    const size_t sizes = (size_t)op->n_size * op->rows.n_head * sizeof *op->size;
    const size_t choose = op->choose.n * sizeof(uint32_t), judge = op->judge.n * sizeof(uint32_t);
    if (op->why != PLAN_SPARSE) return SAC_OK;
    TRY(stage_reserve(d, sizes + choose + judge + 3 * STAGE_ALIGN));
    op->size = (struct op_trace_size *)stage_put(d, op->size, sizes);
    op->choose.at = (uint32_t *)stage_put(d, op->choose.at, choose);
    if (op->judge.n > 0) op->judge.at = (uint32_t *)stage_put(d, op->judge.at, judge);
    return d->status;
}

sac_status cuda_trace(struct cuda_device *d, const struct op_trace *op)
{
    struct trace_call c;
    const uint32_t n_row = op->choose.n > op->judge.n ? op->choose.n : op->judge.n;
    memset(&c, 0, sizeof c);
    c.op = *op;
    c.op.rows.geom = NULL;
    c.group = op->rows.n_head / op->rows.geom->n_kv_head;
    c.n = op->rows.end;
    c.n_span = (op->rows.end + OP_TRACE_SPAN - 1) / OP_TRACE_SPAN;
    c.n_row16 = (n_row + 15) / 16 * 16;
    c.stride = (size_t)c.n_span * OP_TRACE_SPAN;
    c.pages = rows_pages_of(&op->rows);
    lay_out(&c);
    TRY(stage_descriptors(d, &c.op));
    switch (attn_form_of(op->rows.geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, op->rows.geom, &c);
    case FORM_BF16: return launch_form<FORM_BF16>(d, op->rows.geom, &c);
    case FORM_Q8: return launch_form<FORM_Q8>(d, op->rows.geom, &c);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "lines of prompt rows: these pages");
    }
}
