/* recall.cu: selection from attention tables that are learnt over the steps (op_lane_recall,
 * _settle, _rest; ops/recall.h), for lfps. Each table has an entry for each token by position (ver)
 * and by distance (sla); an entry tells how much more than average the token has been read.
 *
 * A step is five launches: open_kernel, a block for each lane: running sums of keys and values, the
 * heads that are bypassed because sinks hold their attention, and thresholds; find_kernel, a warp
 * for 256 tokens: bit words of candidates, tokens whose entries exceed a threshold; list_kernel, a
 * block for each table: their list; score_kernel, a thread for each candidate: exact logits;
 * best_kernel, a block for each table: the best ones by a radix select, their marks, and the update
 * of both entries. With `guard` two launches repeat list and scores where candidates hold too
 * little.
 *
 * Sums have one order; moments of tables are in f64 and updated with every change of an entry. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/marked.cuh"

#define FEW_THREADS 256u
#define WARPS       (FEW_THREADS / 32)
#define THREADS 1024u
#define WORDS   8u  /* candidate words of a warp */
#define SPREAD  64u /* blocks that score a table's candidates, at most */

/* ---- Tables ---- */

/* Entries of tokens 0, 1, ... for the query at `pos`; entries by distance are stored in reverse. */
static __device__ inline float *row_of(const struct op_memory &m, uint32_t table, bool sla,
                                       uint32_t pos)
{
    if (!sla) return m.ver + table * m.n_tok;
    return m.sla + table * (m.n_tok + PAGE_TOK) + m.n_tok - 1 - pos;
}

static __device__ void add_powers(double s[4], double x)
{
    double y = 1;
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += y *= x;
}

static __device__ void sum_moments(struct op_moments *to, const double s[4], double *room)
{
    for (int i = 0; i < 4; i++) {
        const double all = block_sum(s[i], room);
        if (threadIdx.x == 0) to->s[i] = all;
    }
}

/* Multiplies entries 0 to pos by `unit`, which becomes 1, and computes their moments anew. All
 * threads. */
static __device__ void make_plain(const struct op_memory &m, uint32_t table, uint32_t pos,
                                  float unit, double *room)
{
    struct op_pair *pair = &m.pair[table];
    for (int sla = 0; sla < 2; sla++) {
        float *x = row_of(m, table, sla, pos);
        double s[4] = {};
        for (uint32_t i = threadIdx.x; i <= pos; i += blockDim.x) add_powers(s, x[i] *= unit);
        sum_moments(sla ? &pair->sla : &pair->ver, s, room);
    }
    if (threadIdx.x == 0) pair->unit = 1;
}

static __device__ inline bool is_gone(const struct op_seen &keys, uint32_t pos, uint32_t page_i)
{
    return page_i < pos / PAGE_TOK && keys.page[page_i] == PAGE_NONE;
}

/* ---- Heads ---- */

static __device__ inline float log_add(float a, float b)
{
    const float hi = a > b ? a : b, lo = a > b ? b : a; /* NaN passes through */
    return lo == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}

static __device__ inline float log_of(const struct exp_sum &s)
{
    return s.sum == 0 ? -INFINITY : s.max + logf(s.sum);
}

/* Adds the tokens since the last step to the sums of keys and values; a thread has a channel. */
static __device__ void add_new(const struct op_lane_recall &op, const struct page_geom &g)
{
    const uint32_t d = g.head_dim;
    for (uint32_t i = threadIdx.x; i < 2 * d; i += FEW_THREADS) {
        const uint32_t c = i % d;
        double sum = 0;
        for (uint32_t tok = max(op.from, op.sink); tok <= op.pos; tok++) {
            struct page_geom of = g;
            const uint8_t *page = choose_page(&of, op.keys, op.pos, tok);
            sum += i < d ? choose_key(of, page, tok % PAGE_TOK, c)
                         : choose_value(of, page, tok % PAGE_TOK, c);
        }
        (i < d ? op.of.key_sum : op.of.value_sum)[c] += sum;
    }
}

/* Log-sum-exp over the sinks and over the newest tokens before the own, for the heads from g0 on;
 * by a warp. */
static __device__ void ends_mass(struct exp_sum sink[CHOOSE_HEADS],
                                 struct exp_sum local[CHOOSE_HEADS],
                                 const struct op_lane_recall &op, const struct page_geom &g,
                                 uint32_t g0)
{
    const struct choose_query q = {op.q, op.group, op.scale, op.softcap};
    const uint32_t n = op.sink + op.pos - op.local;
#pragma unroll
    for (uint32_t i = 0; i < CHOOSE_HEADS; i++) sink[i] = local[i] = exp_sum_none();
    for (uint32_t x = threadIdx.x % 32; x < n; x += 32) {
        const uint32_t tok = x < op.sink ? x : op.local + x - op.sink;
        float logit[CHOOSE_HEADS];
        struct page_geom of = g;
        if (is_gone(op.keys, op.pos, tok / PAGE_TOK)) continue;
        const uint8_t *page = choose_page(&of, op.keys, op.pos, tok);
        choose_logits(logit, q, of, page, tok % PAGE_TOK, g0);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            struct exp_sum &to = x < op.sink ? sink[i] : local[i];
            to = exp_sum_add(to, exp_sum_of(logit[i]));
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
        sink[i] = warp_exp_sum(sink[i]);
        local[i] = warp_exp_sum(local[i]);
    }
}

/* A log-normal estimate of the log mass of everything after the sinks; by a warp. */
static __device__ float guess_rest(const struct op_lane_recall &op, uint32_t d, uint32_t g)
{
    const float *q = op.q + (size_t)g * d;
    const double n = op.pos + 1 - op.sink;
    double middle = 0, length = 0;
    for (uint32_t c = threadIdx.x % 32; c < d; c += 32) {
        middle += (double)q[c] * op.of.key_sum[c] / n;
        length += (double)q[c] * q[c];
    }
    for (int i = 16; i > 0; i /= 2) {
        middle += __shfl_xor_sync(~0u, middle, i);
        length += __shfl_xor_sync(~0u, length, i);
    }
    return (float)(log(n) + middle * op.scale + length * op.of.spread[g] / 2);
}

/* Decides which of the warp's heads are bypassed. Returns whether everything is finite. */
static __device__ bool open_heads(const struct op_lane_recall &op, const struct page_geom &g,
                                  uint32_t g0)
{
    struct exp_sum sink[CHOOSE_HEADS], local[CHOOSE_HEADS];
    bool finite = true;
    ends_mass(sink, local, op, g, g0);
#pragma unroll
    for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
        if (g0 + i >= op.group) continue;
        const float rest = guess_rest(op, g.head_dim, g0 + i), of_sink = log_of(sink[i]);
        const float all = log_add(log_add(of_sink, rest), log_of(local[i]));
        finite = finite && isfinite(all);
        if (threadIdx.x % 32 > 0) continue;
        op.room.made->rest[g0 + i] = rest;
        op.room.made->bypass[g0 + i] = expf(of_sink - all) > op.bypass;
    }
    return finite;
}

/* The threshold a * mean / kappa, with kappa = sum (x - mean)^4 / (sum (x - mean)^2)^2; infinite if
 * all entries are equal. */
static __device__ float find_hot(float *out_mean, const struct op_moments &m, double n, double a)
{
    const double mean = m.s[0] / n, m2 = m.s[1] - n * mean * mean;
    const double m4 =
        m.s[3] - 4 * mean * m.s[2] + 6 * mean * mean * m.s[1] - 3 * n * mean * mean * mean * mean;
    const bool flat = !(m2 > 1e-12 * m.s[1]) || !(m4 > 0);
    *out_mean = (float)mean;
    return flat ? INFINITY : (float)(a * mean * m2 * m2 / m4);
}

static __device__ void open_table(const struct op_lane_recall &op, uint32_t i, bool bad)
{
    const uint32_t n_head = op.group / op.of.n_table, n = op.pos + 1 - op.sink;
    const struct op_pair &pair = op.of.pair[i];
    struct op_recall_table t = {};
    t.hot[0] = find_hot(&t.mean[0], pair.ver, n, op.a);
    t.hot[1] = find_hot(&t.mean[1], pair.sla, n, op.a);
    t.flat = t.hot[0] == INFINITY && t.hot[1] == INFINITY;
    for (uint32_t g = i * n_head; g < (i + 1) * n_head && !bad; g++)
        t.n_voter += !op.room.made->bypass[g];
    op.room.made->table[i] = t;
}

/* Stores the mean value that replaces what is not read, if all heads are bypassed; else -inf. */
static __device__ void store_rest(const struct op_lane_recall &op, uint32_t d, bool all)
{
    const double n = op.pos + 1 - op.sink;
    if (!op.rest_log) return;
    for (uint32_t g = threadIdx.x; g < op.group; g += FEW_THREADS)
        op.rest_log[g] = all ? op.room.made->rest[g] : -INFINITY;
    for (uint32_t i = threadIdx.x; i < op.group * d && all; i += FEW_THREADS)
        op.rest_value[i] = (float)(op.of.value_sum[i % d] / n);
}

static __global__ void __launch_bounds__(FEW_THREADS)
    open_kernel(const struct page_geom geom, const struct op_lane_recall *list)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_lane_recall &op = list[blockIdx.x];
    const uint32_t g0 = threadIdx.x / 32 * CHOOSE_HEADS;
    add_new(op, geom);
    __syncthreads(); /* all sums are stored */
    bool bad = g0 < op.group && !open_heads(op, geom, g0);
    for (uint32_t i = threadIdx.x; i < op.of.n_table; i += FEW_THREADS)
        bad = bad || !isfinite(op.of.pair[i].unit);
    bad = block_sum((uint32_t)bad, room) > 0; /* block_sum is also the barrier after open_heads */
    for (uint32_t i = threadIdx.x; i < op.of.n_table; i += FEW_THREADS) open_table(op, i, bad);
    const uint32_t is = threadIdx.x < op.group && op.room.made->bypass[threadIdx.x];
    const uint32_t n_bypass = block_sum(is, room);
    store_rest(op, geom.head_dim, n_bypass == op.group);
    if (threadIdx.x > 0) return;
    op.result->n_bypass = n_bypass;
    if (bad) op.result->n_bad = 1;
}
static_assert(WARPS * CHOOSE_HEADS >= OP_RECALL_TABLES, "a warp has all its heads at once");

/* ---- Candidates ---- */

/* Bit t: whether one of lane t's two entries exceeds its threshold. By a warp. */
static __device__ inline uint32_t above_word(float ver, float sla, float least_ver, float least_sla)
{
    return __ballot_sync(~0u, ver > least_ver || sla > least_sla);
}

/* Candidates: tokens above the threshold (hot) and their neighbours at -1, 1 and 2, as far as those
 * exceed the mean. */
static __device__ void find_words(uint32_t cand[WORDS], const struct op_lane_recall &op,
                                  const struct op_recall_table &t, uint32_t table, uint32_t first)
{
    const float *ver = row_of(op.of, table, false, op.pos),
                *sla = row_of(op.of, table, true, op.pos);
    const uint32_t n_word = op.pos / PAGE_TOK + 1, lane = threadIdx.x % 32;
    uint32_t hot[WORDS + 2], above[WORDS + 2]; /* with one word before and one after */
#pragma unroll
    for (uint32_t i = 0; i < WORDS + 2; i++) {
        const uint32_t w = first + i - 1; /* wraps around for the first word */
        const float v = w < n_word ? ver[w * 32 + lane] : -INFINITY;
        const float s = w < n_word ? sla[w * 32 + lane] : -INFINITY;
        hot[i] = above_word(v, s, fmaxf(t.hot[0], 0), fmaxf(t.hot[1], 0));
        above[i] = above_word(v, s, t.mean[0], t.mean[1]);
    }
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) {
        const uint32_t x = hot[i + 1], low = hot[i], high = hot[i + 2];
        const uint32_t near = x | x >> 1 | high << 31 | x << 1 | low >> 31 | x << 2 | low >> 30;
        cand[i] = near & above[i + 1];
    }
}

/* Tokens of a page that can be candidates. */
static __device__ inline uint32_t open_bits(const struct op_lane_recall &op, uint32_t page_i)
{
    return is_gone(op.keys, op.pos, page_i) ? 0 : choose_bits(page_i, op.sink, op.pos + 1);
}

static __global__ void __launch_bounds__(FEW_THREADS) find_kernel(const struct op_lane_recall *list)
{
    kernel_begin();
    const struct op_lane_recall &op = list[blockIdx.z];
    const uint32_t table = blockIdx.y, n_word = op.pos / PAGE_TOK + 1;
    const uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * WORDS;
    if (table >= op.of.n_table || first >= n_word) return;
    const struct op_recall_table &t = op.room.made->table[table];
    if (t.n_voter == 0) return;
    const bool all = op.all || t.flat;
    uint32_t cand[WORDS];
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) cand[i] = ~0u;
    if (!all) find_words(cand, op, t, table, first);
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) {
        const uint32_t w = first + i, local = choose_bits(w, op.local, UINT32_MAX);
        if (threadIdx.x % 32 == 0 && w < n_word)
            op.room.cand[table * op.room.n_word + w] = (cand[i] | local) & open_bits(op, w);
    }
    if (first == 0 && threadIdx.x == 0 && !all) /* of both tables */
        atomicAdd(&op.result->n_line_scored, 2 * n_word * PAGE_TOK * (uint32_t)sizeof(float) / 64);
}

/* Whether for some head the candidates hold less than the rest is estimated to hold. All
 * threads. */
static __device__ bool is_short(const struct op_lane_recall &op, uint32_t table,
                                struct exp_sum *room)
{
    const uint32_t n_head = op.group / op.of.n_table, n = op.room.made->table[table].n_tok;
    bool is = false;
    for (uint32_t g = table * n_head; g < (table + 1) * n_head; g++) {
        const float *score = op.room.score + g * op.room.stride;
        struct exp_sum s = exp_sum_none();
        if (op.room.made->bypass[g]) continue;
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            s = exp_sum_add(s, exp_sum_of(score[i]));
        is = is || log_of(block_exp_sum(s, room)) < op.room.made->rest[g];
    }
    return is;
}

/* One block lists a table's candidates. widens: the second time, where they hold too little, with
 * all tokens. */
static __global__ void __launch_bounds__(THREADS)
    list_kernel(const struct op_lane_recall *list, uint32_t widens)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    __shared__ struct exp_sum sums[32];
    const struct op_lane_recall &op = list[blockIdx.y];
    const uint32_t table = blockIdx.x, n_word = op.pos / PAGE_TOK + 1;
    if (table >= op.of.n_table) return;
    struct op_recall_table *t = &op.room.made->table[table];
    if (t->n_voter == 0 || (widens && (!op.guard || !is_short(op, table, sums)))) return;
    uint32_t *cand = op.room.cand + table * op.room.n_word, n = 0, all;
    uint32_t *tok = op.room.tok + table * op.room.stride;
    for (uint32_t first = 0; first < n_word; first += THREADS) {
        const uint32_t w = first + threadIdx.x;
        if (widens && w < n_word) cand[w] = open_bits(op, w);
        uint32_t left = w < n_word ? cand[w] : 0;
        uint32_t at = n + block_exclusive_sum((uint32_t)__popc(left), room, &all);
        for (; left; left &= left - 1) tok[at++] = w * PAGE_TOK + (uint32_t)__ffs(left) - 1;
        n += all;
    }
    if (threadIdx.x > 0) return;
    t->n_tok = n;
    t->widened = widens;
}

/* Cache lines of the keys of a page's candidates. */
static __device__ uint32_t key_lines(const struct op_lane_recall &op, const struct page_geom &g,
                                     const struct page_lines &l, uint32_t table, uint32_t page_i)
{
    const uint32_t word = op.room.cand[table * op.room.n_word + page_i];
    if (page_i == op.pos / PAGE_TOK) return (uint32_t)__popc(word) * (g.head_dim * 2 / 64);
    return count_lines(l.k, word) + (uint32_t)(l.k_page / 64);
}

/* A thread scores a candidate. */
static __global__ void __launch_bounds__(FEW_THREADS)
    score_kernel(const struct page_geom geom, const struct page_lines lines,
                 const struct op_lane_recall *list, uint32_t widens)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_lane_recall &op = list[blockIdx.z];
    const uint32_t table = blockIdx.y;
    if (table >= op.of.n_table) return;
    const struct op_recall_table &t = op.room.made->table[table];
    const uint32_t n_head = op.group / op.of.n_table, head0 = table * n_head;
    if (t.n_voter == 0 || blockIdx.x * FEW_THREADS >= t.n_tok || (widens && !t.widened)) return;
    const uint32_t *tok = op.room.tok + table * op.room.stride;
    const struct choose_query q = {op.q + (size_t)head0 * geom.head_dim, n_head, op.scale,
                                   op.softcap};
    uint32_t n_line = 0;
    for (uint32_t i = blockIdx.x * FEW_THREADS + threadIdx.x; i < t.n_tok;
         i += gridDim.x * FEW_THREADS) {
        const uint32_t at = tok[i];
        struct page_geom of = geom;
        const uint8_t *page = choose_page(&of, op.keys, op.pos, at);
        if (i == 0 ||
            tok[i - 1] / PAGE_TOK != at / PAGE_TOK) /* counted with the page's first candidate */
            n_line += key_lines(op, geom, lines, table, at / PAGE_TOK);
        for (uint32_t g0 = 0; g0 < n_head; g0 += CHOOSE_HEADS) {
            float x[CHOOSE_HEADS];
            choose_logits(x, q, of, page, at % PAGE_TOK, g0);
#pragma unroll
            for (uint32_t g = 0; g < CHOOSE_HEADS; g++)
                if (g0 + g < n_head) op.room.score[(head0 + g0 + g) * op.room.stride + i] = x[g];
        }
    }
    n_line = block_sum(n_line, room);
    if (threadIdx.x == 0) atomicAdd(&op.result->n_line_scored, n_line);
}

/* ---- The best ---- */

/* A table's candidates, and the buffers of its block. */
struct table_best {
    const struct op_lane_recall &op;
    uint32_t table, n, n_voter;
    uint32_t *tok;
    float *weight; /* of candidates; negative: not taken */
    float *lse;    /* in shared memory [OP_RECALL_TABLES] */
};

/* Weights: the mean softmax probability over the heads that are not bypassed, among all candidates
 * or among those taken. Returns false if a logit is not finite. */
static __device__ bool weigh(const struct table_best &t, bool of_taken, struct exp_sum *room)
{
    const struct op_lane_recall &op = t.op;
    const uint32_t n_head = op.group / op.of.n_table, head0 = t.table * n_head;
    const float *score = op.room.score + head0 * op.room.stride;
    for (uint32_t g = 0; g < n_head; g++) {
        struct exp_sum s = exp_sum_none();
        if (op.room.made->bypass[head0 + g]) continue;
        for (uint32_t i = threadIdx.x; i < t.n; i += THREADS)
            if (!of_taken || t.weight[i] >= 0)
                s = exp_sum_add(s, exp_sum_of(score[g * op.room.stride + i]));
        s = block_exp_sum(s, room);
        if (!isfinite(s.sum)) return false;
        if (threadIdx.x == 0) t.lse[g] = log_of(s);
    }
    __syncthreads(); /* lse is written */
    for (uint32_t i = threadIdx.x; i < t.n; i += THREADS) {
        float sum = 0;
        if (of_taken && !(t.weight[i] >= 0)) continue;
        for (uint32_t g = 0; g < n_head; g++)
            if (!op.room.made->bypass[head0 + g])
                sum += expf(score[g * op.room.stride + i] - t.lse[g]);
        t.weight[i] = sum / (float)t.n_voter;
    }
    __syncthreads(); /* other threads read the weights next */
    return true;
}

/* Marks the candidates above the cut, ties by their index, and sets the weights of the others to
 * -1. Returns how many bits are new. */
static __device__ uint32_t mark_best(const struct table_best &t, struct op_cut cut, uint32_t *room)
{
    uint32_t n_new = 0, n_tie = 0, all;
    for (uint32_t first = 0; first < t.n; first += THREADS) {
        const uint32_t i = first + threadIdx.x, key = i < t.n ? cut_key(t.weight[i]) : 0;
        const bool tie = i < t.n && key == cut.key;
        const uint32_t before = n_tie + block_exclusive_sum(tie, room, &all);
        n_tie += all;
        if (i >= t.n) continue;
        const uint32_t page = t.tok[i] / PAGE_TOK, bit = 1u << t.tok[i] % PAGE_TOK;
        if (!(key > cut.key || (tie && before < cut.n_tie)))
            t.weight[i] = -1;
        else if (page < t.op.pos / PAGE_TOK)
            n_new += !(atomicOr(&t.op.mask[page], bit) & bit);
    }
    return block_sum(n_new, room);
}

/* Adds to an entry, and the change to the power sums. */
static __device__ inline void change(float *entry, double s[4], double by)
{
    const double old = *entry;
    *entry = (float)(old + by);
    const double now = *entry;
    double x = 1, y = 1;
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += (y *= now) - (x *= old);
}

static __device__ inline uint32_t line_of(const float *p)
{
    return (uint32_t)((uintptr_t)p / 64);
}

/* Adds to both entries of a taken token what it holds more than an equal share. Returns the number
 * of cache lines touched. */
static __device__ uint32_t remember(const struct table_best &t, uint32_t n_taken, float unit,
                                    double *room)
{
    const struct op_memory &m = t.op.of;
    float *row[2] = {row_of(m, t.table, false, t.op.pos), row_of(m, t.table, true, t.op.pos)};
    const double even = 1 / (2.0 * n_taken);
    double s[2][4] = {};
    uint32_t n_line = 0;
    for (uint32_t i = threadIdx.x; i < t.n; i += THREADS) {
        if (!(t.weight[i] >= 0)) continue;
        const double by = ((double)t.weight[i] - even) / unit;
        uint32_t last = i; /* count a line once: the taken token before may share it */
        while (last > 0 && !(t.weight[last - 1] >= 0)) last--;
        for (int sla = 0; sla < 2; sla++) {
            float *entry = &row[sla][t.tok[i]];
            n_line += last == 0 || line_of(&row[sla][t.tok[last - 1]]) != line_of(entry);
            change(entry, s[sla], by);
        }
    }
    for (int i = 0; i < 8; i++) {
        struct op_moments *to = i < 4 ? &m.pair[t.table].ver : &m.pair[t.table].sla;
        const double all = block_sum(s[i / 4][i % 4], room);
        if (threadIdx.x == 0) to->s[i % 4] += all;
    }
    return n_line;
}

static __global__ void __launch_bounds__(THREADS) best_kernel(const struct op_lane_recall *list)
{
    kernel_begin();
    __shared__ uint32_t bin[CUT_BINS], room[32];
    __shared__ double doubles[32];
    __shared__ struct exp_sum sums[32];
    __shared__ float lse[OP_RECALL_TABLES];
    const struct op_lane_recall &op = list[blockIdx.y];
    const uint32_t table = blockIdx.x;
    if (table >= op.of.n_table) return;
    const struct op_recall_table &made = op.room.made->table[table];
    const struct table_best t = {op,
                                 table,
                                 made.n_tok,
                                 made.n_voter,
                                 op.room.tok + table * op.room.stride,
                                 op.room.weight + table * op.room.stride,
                                 lse};
    if (t.n_voter == 0) return;
    if (!weigh(t, false, sums)) {
        if (threadIdx.x == 0) atomicOr(&op.result->n_bad, 1u);
        return;
    }
    const uint32_t need = min(op.budget, t.n);
    const uint32_t n_new = mark_best(t, cut_find(t.weight, t.n, need, bin, room), room);
    weigh(t, true, sums);
    const float unit = op.of.pair[table].unit * (float)op.decay;
    const uint32_t n_line = block_sum(remember(t, need, unit, doubles), room);
    if (threadIdx.x == 0) {
        op.of.pair[table].unit = unit;
        atomicAdd(&op.result->n_chosen, n_new);
        atomicAdd(&op.result->n_line_scored, n_line);
    }
    if (!(unit >= OP_RECALL_LEAST)) make_plain(op.of, table, op.pos, unit, doubles);
}

/* ---- A step ---- */

struct recall_launch {
    const struct op_lane_recall *list;
    uint32_t n, n_page, n_table;
    const struct page_geom &geom;
    const struct page_lines &lines;
};

static sac_status launch_scores(struct cuda_device *d, const struct recall_launch &l, bool widens)
{
    const uint32_t most = choose_round_up(l.n_page) * PAGE_TOK / FEW_THREADS + 1;
    const dim3 grid(most < SPREAD ? most : SPREAD, l.n_table, l.n);
    TRY(queue_launch(d, "lists of candidates", list_kernel, dim3(l.n_table, l.n), THREADS, 0,
                     l.list, widens));
    return queue_launch(d, "scores of candidates", score_kernel, grid, FEW_THREADS, 0, l.geom,
                        l.lines, l.list, widens);
}

sac_status cuda_lane_recall(struct cuda_device *d, const struct op_lane_recall *op, uint32_t n)
{
    const struct op_lane_recall *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    struct recall_launch l = {list, n, 0, 0, *op->keys.geom, *op->lines};
    bool guard = false;
    for (uint32_t i = 0; i < n; i++) {
        l.n_page = choose_larger(l.n_page, op[i].pos / PAGE_TOK + 1);
        l.n_table = choose_larger(l.n_table, op[i].of.n_table);
        guard = guard || op[i].guard;
    }
    const uint32_t n_part = (choose_round_up(l.n_page) + WARPS * WORDS - 1) / (WARPS * WORDS);
    TRY(queue_launch(d, "heads and thresholds", open_kernel, n, FEW_THREADS, 0, l.geom, list));
    TRY(queue_launch(d, "candidates", find_kernel, dim3(n_part, l.n_table, n), FEW_THREADS, 0,
                     list));
    TRY(launch_scores(d, l, false));
    if (guard) TRY(launch_scores(d, l, true));
    return queue_launch(d, "the best candidates", best_kernel, dim3(l.n_table, n), THREADS, 0,
                        list);
}

/* ---- Initial tables, after a prompt ---- */

/* Sums of keys and values of a piece's tokens, from the sinks to the last sealed page; a thread has
 * a channel. */
static __device__ void sum_channels(double *sum, const struct op_lane_settle &op,
                                    const struct page_geom &g, struct attn_range page)
{
    const uint32_t d = g.head_dim, end = min(page.end, op.pos / PAGE_TOK) * PAGE_TOK;
    for (uint32_t i = threadIdx.x; i < 2 * d; i += FEW_THREADS) {
        const uint32_t c = i % d;
        double all = 0;
        for (uint32_t tok = max(page.begin * PAGE_TOK, op.sink); tok < end; tok++) {
            const uint8_t *at = place_page(op.keys.frames, op.keys.page[tok / PAGE_TOK], g.bytes);
            all += i < d ? choose_key(g, at, tok % PAGE_TOK, c)
                         : choose_value(g, at, tok % PAGE_TOK, c);
        }
        sum[i] = all;
    }
}

/* Sums of logits and of their squares over a piece, for the heads from g0 on: [2 * CHOOSE_HEADS]
 * for each warp. */
static __device__ void sum_scores(double (*part)[2 * CHOOSE_HEADS], const struct op_lane_settle &op,
                                  const struct page_geom &g, struct attn_range page, uint32_t g0)
{
    const struct choose_query q = {op.q, op.group, op.scale, op.softcap};
    const uint32_t warp = threadIdx.x / 32;
    double s[2 * CHOOSE_HEADS] = {};
    for (uint32_t p = page.begin + warp; p < page.end; p += WARPS) {
        const uint32_t tok = p * PAGE_TOK + threadIdx.x % 32;
        float x[CHOOSE_HEADS];
        struct page_geom of = g;
        if (tok < op.sink || tok > op.row) continue;
        const uint8_t *at = choose_page(&of, op.keys, op.pos, tok);
        choose_logits(x, q, of, at, tok % PAGE_TOK, g0);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            s[i] += (double)x[i];
            s[CHOOSE_HEADS + i] += (double)x[i] * x[i];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2 * CHOOSE_HEADS; i++) {
        for (int by = 16; by > 0; by /= 2) s[i] += __shfl_xor_sync(~0u, s[i], by);
        if (threadIdx.x % 32 == 0) part[warp][i] = s[i];
    }
}

static __global__ void __launch_bounds__(FEW_THREADS)
    pieces_kernel(const struct page_geom geom, const struct op_lane_settle *list)
{
    kernel_begin();
    __shared__ double part[WARPS][2 * CHOOSE_HEADS];
    const struct op_lane_settle &op = list[blockIdx.y];
    const uint32_t d = geom.head_dim, n_page = op.pos / PAGE_TOK + 1;
    const uint32_t first = blockIdx.x * OP_SETTLE_PAGES;
    if (first >= n_page) return;
    const struct attn_range page = {first, min(first + OP_SETTLE_PAGES, n_page)};
    double *sum = op.sum + (size_t)blockIdx.x * 2 * (d + op.group);
    sum_channels(sum, op, geom, page);
    for (uint32_t g0 = 0; g0 < op.group; g0 += CHOOSE_HEADS) {
        __syncthreads(); /* the last heads' sums have been read */
        sum_scores(part, op, geom, page, g0);
        __syncthreads(); /* sums of all warps are written */
        const uint32_t i = threadIdx.x, g = g0 + i % CHOOSE_HEADS;
        if (i >= 2 * CHOOSE_HEADS || g >= op.group) continue;
        double all = part[0][i];
        for (uint32_t w = 1; w < WARPS; w++) all += part[w][i];
        sum[2 * d + i / CHOOSE_HEADS * op.group + g] = all;
    }
}

/* The sum over all pieces, in their order. */
static __device__ double fold(const struct op_lane_settle &op, uint32_t d, uint32_t i)
{
    const uint32_t n_piece = op.pos / PAGE_TOK / OP_SETTLE_PAGES + 1;
    double all = 0;
    for (uint32_t p = 0; p < n_piece; p++) all += op.sum[(size_t)p * 2 * (d + op.group) + i];
    return all;
}

static __device__ void settle_lane(const struct op_lane_settle &op, uint32_t d)
{
    for (uint32_t i = threadIdx.x; i < 2 * d; i += THREADS)
        *(i < d ? op.to.key_sum + i : op.to.value_sum + (i - d)) = fold(op, d, i);
    for (uint32_t g = threadIdx.x; g < op.group; g += THREADS) {
        const double n = op.row + 1.0 - op.sink, mean = fold(op, d, 2 * d + g) / n;
        const double square = fold(op, d, 2 * d + op.group + g) / n;
        const float *q = op.q + (size_t)g * d;
        double length = 0;
        for (uint32_t c = 0; c < d; c++) length += (double)q[c] * q[c];
        const double variance = fmax(square - mean * mean, 0.0);
        op.to.spread[g] = length > 0 ? (float)(variance / length) : 0;
    }
}

/* Block 0 merges the lane's sums; each other block normalizes one table. */
static __global__ void __launch_bounds__(THREADS)
    settle_kernel(const struct page_geom geom, const struct op_lane_settle *list)
{
    kernel_begin();
    __shared__ double room[32];
    const struct op_lane_settle &op = list[blockIdx.y];
    if (blockIdx.x == 0) {
        settle_lane(op, geom.head_dim);
        return;
    }
    const uint32_t table = blockIdx.x - 1;
    if (table >= op.to.n_table) return;
    make_plain(op.to, table, op.pos, op.unit, room);
    if (threadIdx.x == 0 && op.made->n_bad) op.to.pair[table].unit = NAN;
}

sac_status cuda_lane_settle(struct cuda_device *d, const struct op_lane_settle *op, uint32_t n)
{
    const struct op_lane_settle *list = choose_stage(d, op, n);
    uint32_t n_page = 0, n_table = 0;
    if (!list || n == 0) return d->status;
    for (uint32_t i = 0; i < n; i++) {
        n_page = choose_larger(n_page, op[i].pos / PAGE_TOK + 1);
        n_table = choose_larger(n_table, op[i].to.n_table);
    }
    const uint32_t n_piece = choose_round_up(n_page) / OP_SETTLE_PAGES + 1;
    const struct page_geom geom = *op->keys.geom;
    TRY(queue_launch(d, "sums for initial tables", pieces_kernel, dim3(n_piece, n), FEW_THREADS, 0,
                     geom, list));
    return queue_launch(d, "initial tables", settle_kernel, dim3(1 + n_table, n), THREADS, 0, geom,
                        list);
}

/* ---- Correction for what is not read ---- */

/* A warp has a query head. */
static __global__ void __launch_bounds__(FEW_THREADS) rest_kernel(const struct op_lane_rest *list)
{
    kernel_begin();
    const struct op_lane_rest &op = list[blockIdx.x];
    if (op.result->n_bad || op.result->n_over) return;
    for (uint32_t g = threadIdx.x / 32; g < op.group; g += WARPS) {
        if (op.log[g] == -INFINITY) continue;
        const float share = 1 / (1 + expf(op.lse[g] - op.log[g]));
        for (uint32_t c = threadIdx.x % 32; c < op.head_dim; c += 32) {
            float *out = op.out + g * op.head_dim + c;
            *out += share * (op.value[g * op.head_dim + c] - *out);
        }
    }
}

sac_status cuda_lane_rest(struct cuda_device *d, const struct op_lane_rest *op, uint32_t n)
{
    const struct op_lane_rest *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "correction for what is not read", rest_kernel, n, FEW_THREADS, 0, list);
}
