/* fake_cuda.c: a library for GPUs that has none: the CPU's operations on memory that the program
 * cannot reach. What it takes is closed to reading and writing but while one of its own functions
 * runs, so a program that looks at a tensor without copying it ends on the spot; and descriptions
 * of work are read where a GPU's launchers read them. Tables of pages come from attn_run.frame
 * alone, which the engine keeps.
 *
 * SACCADE_FAKE_DEVICES: how many there are (1), apart from each other. SACCADE_FAKE_MIB: the memory
 * of each, or a list. SACCADE_FAKE_BROKEN_DEVICE: who fails (0), or all. SACCADE_FAKE_BROKEN=N: the
 * N-th wait tells of a failure; SACCADE_FAKE_BREAK=N: the N-th since that was set. */
#include "../check/plain_mass.h"
#include "base/mem.h"
#include "ops/cuda/api.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGIONS_MAX 16
#define RUNS_MAX    2048

struct cuda_device {
    uint32_t index;
    struct workers *pool;
    struct {
        uint8_t *p;
        size_t bytes;
    } region[REGIONS_MAX];
    const uint8_t *pinned; /* [n_pinned] of the program's memory */
    size_t n_pinned;
    uint32_t n_wait, n_since; /* waits, and those since SACCADE_FAKE_BREAK had another value */
    size_t n_break;           /* that value */
};

static struct ops ops; /* the same for all devices */

/* For tests: copies between the program and devices. */
__attribute__((visibility("default"))) uint32_t fake_n_copy;
/* Those to memory of the program that is not pinned. */
__attribute__((visibility("default"))) uint32_t fake_n_unpinned;
__attribute__((visibility("default"))) uint32_t fake_n_pinned;   /* bytes */
__attribute__((visibility("default"))) uint32_t fake_n_unpacked; /* matrices */

static size_t from_environment(const char *name, size_t absent)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : absent;
}

/* ---- Memory ---- */

static void protect(const struct cuda_device *d, int how)
{
    for (int i = 0; i < REGIONS_MAX; i++)
        if (d->region[i].p && mprotect(d->region[i].p, d->region[i].bytes, how) != 0) abort();
}

static void open_all(const struct cuda_device *d)
{
    protect(d, PROT_READ | PROT_WRITE);
}

static void close_all(const struct cuda_device *d)
{
    protect(d, PROT_NONE);
}

/* A tensor's place, or none, is where kernels can read it. */
static void is_here(const struct cuda_device *d, const void *p)
{
    bool found = p == NULL;
    for (int i = 0; i < REGIONS_MAX; i++) {
        const uint8_t *begin = d->region[i].p;
        found = found || (begin && (const uint8_t *)p >= begin &&
                          (const uint8_t *)p < begin + d->region[i].bytes);
    }
    if (found) return;
    fprintf(stderr, "fake_cuda: an operation was given a tensor of the program's memory\n");
    abort();
}

static void *take(struct cuda_device *d, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes / page + 1) * page;
    for (int i = 0; i < REGIONS_MAX; i++) {
        if (d->region[i].p) continue;
        void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return NULL;
        d->region[i].p = p;
        d->region[i].bytes = n;
        return p;
    }
    return NULL;
}

static void give(struct cuda_device *d, void *p)
{
    for (int i = 0; i < REGIONS_MAX && p; i++) {
        if (d->region[i].p != p) continue;
        munmap(p, d->region[i].bytes);
        d->region[i].p = NULL;
        return;
    }
    assert(!p);
}

static void pin(struct cuda_device *d, void *p, size_t bytes)
{
    d->pinned = p;
    d->n_pinned = fake_n_pinned = (uint32_t)bytes;
    fake_n_unpinned = 0;
}

static void unpin(struct cuda_device *d)
{
    d->n_pinned = 0;
}

/* ---- Devices ---- */

static sac_status count(uint32_t *out, sac_error *err)
{
    (void)err;
    *out = (uint32_t)from_environment("SACCADE_FAKE_DEVICES", 1);
    return SAC_OK;
}

/* The number of its own in the list, or the last one. */
static size_t mib_of(uint32_t index)
{
    const char *text = getenv("SACCADE_FAKE_MIB"), *comma;
    if (!text || !*text) return 4096;
    while (index-- > 0 && (comma = strchr(text, ','))) text = comma + 1;
    return strtoull(text, NULL, 10);
}

static sac_status info(struct cuda_info *out, uint32_t index, sac_error *err)
{
    uint32_t n;
    TRY(count(&n, err));
    if (index >= n) return error_set(err, SAC_ERR_NOT_FOUND, "there is no GPU %u", index);
    const size_t bytes = mib_of(index) << 20;
    *out = (struct cuda_info){
        .name = "Fake", .major = 9, .n_sm = 1, .bytes = bytes, .bytes_free = bytes};
    return SAC_OK;
}

static sac_status check(const struct page_geom *geom, uint32_t n_head, sac_error *err)
{
    (void)geom, (void)n_head, (void)err;
    return SAC_OK;
}

static sac_status open_device(struct cuda_device **out, uint32_t index, sac_error *err)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out) return error_set(err, SAC_ERR_MEMORY, "out of memory");
    (*out)->index = index;
    return workers_create(&(*out)->pool, 1, err);
}

static void close_device(struct cuda_device *d)
{
    if (!d) return;
    for (int i = 0; i < REGIONS_MAX; i++) assert(!d->region[i].p);
    workers_destroy(d->pool);
    mem_free(d);
}

/* ---- The queue ---- */

static void up_rows(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                    size_t n_row)
{
    is_here(d, dst);
    fake_n_copy++;
    open_all(d);
    for (size_t i = 0; i < n_row; i++)
        memcpy((uint8_t *)dst + i * pitch, (const uint8_t *)src + i * width, width);
    close_all(d);
}

static void up(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    up_rows(d, dst, bytes, src, bytes, 1);
}

static void down(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    is_here(d, src);
    fake_n_copy++;
    const size_t at = (size_t)((const uint8_t *)dst - d->pinned);
    fake_n_unpinned += (const uint8_t *)dst < d->pinned || at + bytes > d->n_pinned;
    open_all(d);
    memcpy(dst, src, bytes);
    close_all(d);
}

static void copy(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    is_here(d, dst);
    is_here(d, src);
    open_all(d);
    memcpy(dst, src, bytes);
    close_all(d);
}

static void send(struct cuda_device *from, struct cuda_device *to, void *dst, const void *src,
                 size_t bytes)
{
    assert(from != to);
    is_here(from, src);
    is_here(to, dst);
    open_all(from);
    open_all(to);
    memcpy(dst, src, bytes);
    close_all(from);
    close_all(to);
}

/* Nobody has memory that others reach. */
static bool join(struct cuda_device *const *d, uint64_t *const *inbox, uint32_t n, size_t n_word)
{
    (void)d, (void)inbox, (void)n, (void)n_word;
    return false;
}

static bool may_break(const struct cuda_device *d)
{
    const char *who = getenv("SACCADE_FAKE_BROKEN_DEVICE");
    return (who && strcmp(who, "all") == 0) ||
           d->index == from_environment("SACCADE_FAKE_BROKEN_DEVICE", 0);
}

static sac_status wait(struct cuda_device *d, sac_error *err)
{
    const size_t n_break = from_environment("SACCADE_FAKE_BREAK", 0);
    d->n_since = n_break == d->n_break ? d->n_since + 1 : 1;
    d->n_break = n_break;
    const bool is_its_turn = ++d->n_wait == from_environment("SACCADE_FAKE_BROKEN", 0) ||
                             (n_break && d->n_since == n_break);
    if (is_its_turn && may_break(d))
        return error_set(err, SAC_ERR_IO, "GPU %u: it is broken", d->index);
    return SAC_OK;
}

/* Work is done when it is asked for. */
static bool ahead_begin(struct cuda_device *d)
{
    (void)d;
    return false;
}

/* ---- Operations ---- */

/* Of which the operations of a CPU read nothing. */
static sac_status unpack(struct cuda_device *d, const struct weight *w)
{
    is_here(d, w->data);
    is_here(d, w->plain);
    fake_n_unpacked++;
    return SAC_OK;
}

static sac_status linear(struct cuda_device *d, const struct op_linear *op)
{
    is_here(d, op->x);
    is_here(d, op->norm);
    is_here(d, op->scratch);
    assert(!op->group);
    for (uint32_t i = 0; i < op->n_part; i++) {
        is_here(d, op->part[i].w->data);
        is_here(d, op->part[i].bias);
        is_here(d, op->part[i].y);
    }
    open_all(d);
    ops.linear(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status attn(struct cuda_device *d, const struct op_attn *op)
{
    static struct attn_run run[RUNS_MAX];
    struct op_attn mine = *op;
    assert(op->n_run <= RUNS_MAX);
    is_here(d, op->q);
    is_here(d, op->out);
    is_here(d, op->lse);
    is_here(d, op->frames.base);
    for (uint32_t i = 0; i < op->n_run; i++) {
        is_here(d, op->run[i].own0);
        is_here(d, op->run[i].own);
        is_here(d, op->run[i].frame);
        run[i] = op->run[i];
        run[i].table = op->run[i].frame;
    }
    mine.frames.of = NULL;
    mine.run = run;
    open_all(d);
    ops.attn(d->pool, &mine);
    close_all(d);
    return SAC_OK;
}

static sac_status kv_write(struct cuda_device *d, const struct op_kv_write *op)
{
    is_here(d, op->k);
    is_here(d, op->v);
    open_all(d);
    ops.kv_write(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status seal(struct cuda_device *d, const struct op_seal *op)
{
    for (uint32_t i = 0; i < op->n_page; i++) {
        is_here(d, op->tail[i]);
        is_here(d, op->sealed[i]);
    }
    open_all(d);
    ops.seal(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status unseal(struct cuda_device *d, const struct op_unseal *op)
{
    for (uint32_t i = 0; i < op->n_page; i++) {
        is_here(d, op->sealed[i]);
        is_here(d, op->tail[i]);
    }
    open_all(d);
    for (uint32_t i = 0; i < op->n_page; i++)
        page_unseal(op->geom, op->tail[i], op->sealed[i], PAGE_TOK);
    close_all(d);
    return SAC_OK;
}

static sac_status mass(struct cuda_device *d, const struct op_mass *op)
{
    is_here(d, op->frames.base);
    is_here(d, op->frame);
    is_here(d, op->spare);
    is_here(d, op->mass);
    open_all(d);
    plain_mass(op);
    close_all(d);
    return SAC_OK;
}

static sac_status rmsnorm(struct cuda_device *d, const struct op_rmsnorm *op)
{
    is_here(d, op->x);
    is_here(d, op->y);
    is_here(d, op->w);
    open_all(d);
    ops.rmsnorm(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status rope(struct cuda_device *d, const struct op_rope *op)
{
    is_here(d, op->x);
    is_here(d, op->cos);
    is_here(d, op->sin);
    open_all(d);
    ops.rope(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status add(struct cuda_device *d, const struct op_add *op)
{
    is_here(d, op->x);
    is_here(d, op->y);
    open_all(d);
    ops.add(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static sac_status top(struct cuda_device *d, const struct op_top *op)
{
    is_here(d, op->x);
    is_here(d, op->spare);
    is_here(d, op->out);
    open_all(d);
    ops.top(d->pool, op);
    close_all(d);
    return SAC_OK;
}

static size_t linear_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_worker;
    return ops.linear_scratch(1, n_row, n_in, n_out_sum);
}

static size_t attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max)
{
    (void)n_worker;
    return ops.attn_scratch(1, geom, n_head, n_row, n_tok_max);
}

/* ---- The table ---- */

__attribute__((visibility("default"))) const struct cuda_api *cuda_api_get(void);
const struct cuda_api *cuda_api_get(void)
{
    static struct cuda_api api = {
        .count = count,
        .info = info,
        .check = check,
        .open = open_device,
        .close = close_device,
        .take = take,
        .give = give,
        .pin = pin,
        .unpin = unpin,
        .up = up,
        .up_rows = up_rows,
        .down = down,
        .copy = copy,
        .send = send,
        .join = join,
        .wait = wait,
        .ahead_begin = ahead_begin,
        .linear = linear,
        .unpack = unpack,
        .attn = attn,
        .kv_write = kv_write,
        .seal = seal,
        .unseal = unseal,
        .mass = mass,
        .rmsnorm = rmsnorm,
        .rope = rope,
        .add = add,
        .top = top,
        .linear_scratch = linear_scratch,
        .attn_scratch = attn_scratch,
    };
    api.abi = (uint32_t)from_environment("SACCADE_FAKE_ABI", CUDA_ABI);
    return ops_init(&ops, NULL) == SAC_OK ? &api : NULL;
}
