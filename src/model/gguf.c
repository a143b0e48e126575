/* gguf.c: a model as one table of keys and one of tensors, however many files it is split into.
 *
 * Owns the mappings and the joined tensor table; keys and names are in the parts. Invariants:
 *  1. Parts are ordered: part i is file i + 1 of n_part, and split.no of part i is i.
 *  2. Keys are those of part 0; of other parts only split.* is read.
 *  3. Everything is written by gguf_open and only read afterwards.
 *
 * gguf_parse.c knows the wire format, gguf_key.c typed values. A file that shrinks while it is
 * mapped kills the process at the next read (SIGBUS): replace models by renaming, do not rewrite
 * them in place. */
#include "model/gguf.h"

#include "base/mem.h"
#include "model/gguf_key.h"
#include "model/gguf_parse.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS_MAX 1024u /* of a split model; the largest published ones have about 200 */
#define PART_TAIL "-00000-of-00000.gguf"

struct gguf {
    struct gguf_part *parts; /* [n_part], owned, with their paths */
    uint32_t n_part;
    bool mapped; /* the parts' `base` is a mapping of this object; otherwise it is borrowed */
    struct gguf_tensor *tensors; /* [n_tensor], owned; names belong to the parts */
    size_t n_tensor;
    struct gguf_names tensor_names;
};

/* ---- Files ---- */

/* Maps the file of `fd`, which stays open. */
static sac_status map_fd(struct gguf_part *p, int fd, sac_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return error_set(err, SAC_ERR_IO, "%s: %s", p->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return error_set(err, SAC_ERR_IO, "%s: not a regular file", p->path);
    if (st.st_size == 0) return error_set(err, SAC_ERR_FORMAT, "%s: the file is empty", p->path);
    void *base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return error_set(err, errno == ENOMEM ? SAC_ERR_MEMORY : SAC_ERR_IO,
                         "%s: cannot map its %lld bytes: %s", p->path, (long long)st.st_size,
                         strerror(errno));
    p->base = base;
    p->bytes = (size_t)st.st_size;
    return SAC_OK;
}

static sac_status map_file(struct gguf_part *p, sac_error *err)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files. */
    const int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO, "%s: %s", p->path,
                         strerror(errno));
    const sac_status status = map_fd(p, fd, err);
    close(fd);
    return status;
}

static void part_deinit(struct gguf_part *p, bool mapped)
{
    gguf_parse_deinit(p);
    if (mapped && p->base) munmap((void *)(uintptr_t)p->base, p->bytes);
    mem_free((char *)(uintptr_t)p->path);
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->n_part; i++) part_deinit(&g->parts[i], g->mapped);
    mem_free(g->parts);
    gguf_names_deinit(&g->tensor_names);
    mem_free(g->tensors);
    mem_free(g);
}

/* ---- Parts of a split model ---- */

/* An integer key of a part that may be absent. */
static sac_status part_u32(const struct gguf_part *p, const char *name, uint32_t absent,
                           uint32_t *out, sac_error *err)
{
    *out = absent;
    const size_t i = gguf_names_find(&p->key_names, name);
    if (i == GGUF_NAMES_NONE) return SAC_OK;
    if (p->keys[i].is_array)
        return error_set(err, SAC_ERR_FORMAT, "%s: key '%s' is an array, not one value", p->path,
                         name);
    const sac_status status = gguf_key_u32(&p->keys[i], 0, out, err);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "%s", p->path);
}

/* The path of part `part_i`, from that of part `known_i`; owned by the caller. */
static sac_status part_path(const char *known, uint32_t known_i, uint32_t part_i, uint32_t n_part,
                            char **out, sac_error *err)
{
    char tail[sizeof PART_TAIL + 16];
    const size_t n = strlen(known), n_tail = sizeof PART_TAIL - 1;
    snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", known_i + 1, n_part);
    if (n < n_tail || strcmp(known + n - n_tail, tail) != 0)
        return error_set(err, SAC_ERR_FORMAT,
                         "%s: part %u of %u by its split.no and split.count, so its name must end "
                         "in %s",
                         known, known_i + 1, n_part, tail);
    char *path = mem_strdup(known);
    if (!path) return error_set(err, SAC_ERR_MEMORY, "%s: no memory for a path", known);
    snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", part_i + 1, n_part);
    memcpy(path + n - n_tail, tail, n_tail);
    *out = path;
    return SAC_OK;
}

/* Maps and parses one file into `p`, which takes ownership of `path` in any case. */
static sac_status part_open(struct gguf_part *p, char *path, sac_error *err)
{
    *p = (struct gguf_part){.path = path};
    TRY(map_file(p, err));
    return gguf_parse(p, err);
}

/* Reads the place of a part in its model; an unsplit file is part 0 of 1. */
static sac_status part_place(const struct gguf_part *p, uint32_t *out_no, uint32_t *out_count,
                             sac_error *err)
{
    TRY(part_u32(p, "split.count", 1, out_count, err));
    TRY(part_u32(p, "split.no", 0, out_no, err));
    if (*out_count == 0) *out_count = 1; /* some tools write 0 for unsplit files */
    if (*out_count > PARTS_MAX)
        return error_set(err, SAC_ERR_FORMAT, "%s: key 'split.count' is %u, at most %u is possible",
                         p->path, *out_count, PARTS_MAX);
    if (*out_no >= *out_count)
        return error_set(err, SAC_ERR_FORMAT, "%s: key 'split.no' is %u, but split.count is %u",
                         p->path, *out_no, *out_count);
    return SAC_OK;
}

/* Opens the other parts of the model of which `first`, now owned by g, is part `no`. */
static sac_status open_siblings(struct gguf *g, struct gguf_part *first, uint32_t no,
                                uint32_t n_part, sac_error *err)
{
    g->parts = mem_calloc(n_part, sizeof *g->parts);
    if (!g->parts) {
        const sac_status status =
            error_set(err, SAC_ERR_MEMORY, "%s: no memory for %u parts", first->path, n_part);
        part_deinit(first, true);
        return status;
    }
    g->n_part = n_part;
    g->parts[no] = *first;
    for (uint32_t i = 0; i < n_part; i++) {
        uint32_t part_no, part_count;
        char *path = NULL;
        if (i == no) continue;
        TRY(part_path(g->parts[no].path, no, i, n_part, &path, err));
        TRY(part_open(&g->parts[i], path, err));
        TRY(part_place(&g->parts[i], &part_no, &part_count, err));
        if (part_no != i || part_count != n_part)
            return error_set(err, SAC_ERR_FORMAT,
                             "%s: part %u of %u by its keys, part %u of %u by its name", path,
                             part_no + 1, part_count, i + 1, n_part);
    }
    return SAC_OK;
}

/* ---- Joining ---- */

static sac_status check_tensor_count(const struct gguf *g, sac_error *err)
{
    const struct gguf_part *p = &g->parts[0];
    uint32_t count;
    TRY(part_u32(p, "split.tensors.count", (uint32_t)g->n_tensor, &count, err));
    if (g->n_part > 1 && count != g->n_tensor)
        return error_set(err, SAC_ERR_FORMAT,
                         "%s: key 'split.tensors.count' is %u, but the %u parts hold %zu tensors",
                         p->path, count, g->n_part, g->n_tensor);
    return SAC_OK;
}

static sac_status join_tensors(struct gguf *g, sac_error *err)
{
    const char *path = g->parts[0].path;
    size_t n = 0, twin;
    for (uint32_t i = 0; i < g->n_part; i++) n += g->parts[i].n_tensor;
    if (n > GGUF_TENSORS_MAX)
        return error_set(err, SAC_ERR_FORMAT, "%s: %zu tensors in all parts, the limit is %zu",
                         path, n, (size_t)GGUF_TENSORS_MAX);
    g->tensors = mem_calloc(n, sizeof *g->tensors);
    if (!g->tensors) return error_set(err, SAC_ERR_MEMORY, "%s: no memory for tensors", path);
    for (uint32_t i = 0; i < g->n_part; i++) {
        for (size_t j = 0; j < g->parts[i].n_tensor; j++) {
            struct gguf_tensor *t = &g->tensors[g->n_tensor++];
            *t = g->parts[i].tensors[j];
            t->part_i = i;
        }
    }
    TRY(check_tensor_count(g, err));
    const sac_status status =
        gguf_names_init(&g->tensor_names, g->tensors, n, sizeof *g->tensors, &twin, err);
    if (status != SAC_OK) return error_prefix(err, status, "%s", path);
    if (twin != GGUF_NAMES_NONE)
        return error_set(err, SAC_ERR_FORMAT, "%s: tensor '%s' is there twice",
                         g->parts[g->tensors[twin].part_i].path, g->tensors[twin].name);
    return SAC_OK;
}

static sac_status open_parts(struct gguf *g, const char *path, sac_error *err)
{
    uint32_t no, count;
    struct gguf_part first = {0};
    char *copy = mem_strdup(path);
    if (!copy) return error_set(err, SAC_ERR_MEMORY, "%s: no memory for its path", path);
    sac_status status = part_open(&first, copy, err);
    if (status == SAC_OK) status = part_place(&first, &no, &count, err);
    if (status != SAC_OK) {
        part_deinit(&first, true);
        return status;
    }
    return open_siblings(g, &first, no, count, err);
}

sac_status gguf_open(struct gguf **out, const char *path, sac_error *err)
{
    struct gguf *g = mem_alloc(sizeof *g);
    sac_status status;
    if (!g) return error_set(err, SAC_ERR_MEMORY, "%s: no memory to open it", path);
    *g = (struct gguf){.mapped = true};
    TRY_FAIL(open_parts(g, path, err));
    TRY_FAIL(join_tensors(g, err));
    *out = g;
    return SAC_OK;
fail:
    gguf_close(g);
    return status;
}

static sac_status no_memory(size_t n, sac_error *err)
{
    return error_set(err, SAC_ERR_MEMORY, "memory: none left to open a model of %zu bytes", n);
}

sac_status gguf_open_memory(struct gguf **out, const uint8_t *data, size_t n, sac_error *err)
{
    uint32_t no, count;
    struct gguf *g = mem_alloc(sizeof *g);
    sac_status status;
    if (!g) return no_memory(n, err);
    *g = (struct gguf){.mapped = false};
    g->parts = mem_calloc(1, sizeof *g->parts);
    if (!g->parts) TRY_FAIL(no_memory(n, err));
    g->n_part = 1;
    g->parts[0] = (struct gguf_part){.path = mem_strdup("memory"), .base = data, .bytes = n};
    if (!g->parts[0].path) TRY_FAIL(no_memory(n, err));
    TRY_FAIL(gguf_parse(&g->parts[0], err));
    TRY_FAIL(part_place(&g->parts[0], &no, &count, err));
    if (count > 1) {
        status =
            error_set(err, SAC_ERR_UNSUPPORTED,
                      "memory: key 'split.count' is %u, only whole models open from memory", count);
        goto fail;
    }
    TRY_FAIL(join_tensors(g, err));
    *out = g;
    return SAC_OK;
fail:
    gguf_close(g);
    return status;
}

/* ---- Tables ---- */

const char *gguf_path(const struct gguf *g)
{
    return g->parts[0].path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->parts[0].version;
}

uint32_t gguf_alignment(const struct gguf *g)
{
    return g->parts[0].alignment;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->n_part; i++) bytes += g->parts[i].bytes;
    return bytes;
}

uint32_t gguf_n_part(const struct gguf *g)
{
    return g->n_part;
}

const char *gguf_part_path(const struct gguf *g, uint32_t part_i)
{
    assert(part_i < g->n_part);
    return g->parts[part_i].path;
}

size_t gguf_n_key(const struct gguf *g)
{
    return g->parts[0].n_key;
}

const struct gguf_key *gguf_key_at(const struct gguf *g, size_t i)
{
    assert(i < g->parts[0].n_key);
    return &g->parts[0].keys[i];
}

const struct gguf_key *gguf_key_find(const struct gguf *g, const char *name)
{
    const size_t i = gguf_names_find(&g->parts[0].key_names, name);
    return i == GGUF_NAMES_NONE ? NULL : &g->parts[0].keys[i];
}

size_t gguf_n_tensor(const struct gguf *g)
{
    return g->n_tensor;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensor);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    const size_t i = gguf_names_find(&g->tensor_names, name);
    return i == GGUF_NAMES_NONE ? NULL : &g->tensors[i];
}

uint64_t gguf_tensor_offset(const struct gguf *g, const struct gguf_tensor *t)
{
    const struct gguf_part *p = &g->parts[t->part_i];
    assert(t->data >= p->base && t->data <= p->base + p->bytes);
    return (uint64_t)(t->data - p->base);
}

/* ---- Typed reads by name ---- */

static sac_status find_scalar(const struct gguf *g, const char *name, const struct gguf_key **out,
                              sac_error *err)
{
    const struct gguf_key *k = gguf_key_find(g, name);
    if (!k) return error_set(err, SAC_ERR_NOT_FOUND, "%s: key '%s' is missing", gguf_path(g), name);
    if (k->is_array)
        return error_set(err, SAC_ERR_FORMAT, "%s: key '%s' is an array of %llu %s, not one value",
                         gguf_path(g), name, (unsigned long long)k->n, gguf_key_type_name(k->type));
    *out = k;
    return SAC_OK;
}

/* Puts the file's name before the message of a failed read. */
static sac_status named(const struct gguf *g, sac_status status, sac_error *err)
{
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "%s", gguf_path(g));
}

sac_status gguf_get_u32(const struct gguf *g, const char *name, uint32_t *out, sac_error *err)
{
    const struct gguf_key *k = NULL;
    TRY(find_scalar(g, name, &k, err));
    return named(g, gguf_key_u32(k, 0, out, err), err);
}

sac_status gguf_get_f32(const struct gguf *g, const char *name, float *out, sac_error *err)
{
    const struct gguf_key *k = NULL;
    TRY(find_scalar(g, name, &k, err));
    return named(g, gguf_key_f32(k, 0, out, err), err);
}

sac_status gguf_get_bool(const struct gguf *g, const char *name, bool *out, sac_error *err)
{
    const struct gguf_key *k = NULL;
    TRY(find_scalar(g, name, &k, err));
    if (k->type != GGUF_BOOL)
        return error_set(err, SAC_ERR_FORMAT, "%s: key '%s' has type %s, not bool", gguf_path(g),
                         name, gguf_key_type_name(k->type));
    *out = k->data[0] != 0;
    return SAC_OK;
}

sac_status gguf_get_str(const struct gguf *g, const char *name, struct gguf_str *out,
                        sac_error *err)
{
    const struct gguf_key *k = NULL;
    size_t at = 0;
    TRY(find_scalar(g, name, &k, err));
    return named(g, gguf_key_next_str(k, &at, out, err), err);
}

/* ---- Advice ---- */

/* Advice only: a system that ignores or refuses it is slower, not wrong. Never on borrowed memory,
 * where MADV_DONTNEED would erase what it tells the system to forget. */
void gguf_tensor_release(const struct gguf *g, const struct gguf_tensor *t)
{
    /* Whole pages only: those at the ends may belong to neighbours that are still in use. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), data = (uintptr_t)t->data;
    const uintptr_t start = (data + page - 1) & ~(page - 1), end = (data + t->bytes) & ~(page - 1);
    if (g->mapped && start < end) (void)madvise((void *)start, end - start, MADV_DONTNEED);
}
