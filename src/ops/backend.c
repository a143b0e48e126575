/* backend.c: finds a backend by its name, and implements the CPU as one. GPUs are in
 * backend_cuda.c. */
#include "ops/backend.h"

#include "base/mem.h"
#include "ops/cuda/api.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static sac_status open_host(struct backend *out, sac_error *err)
{
    *out = (struct backend){.is_host = true, .name = "cpu"};
    return ops_init(&out->ops, err);
}

/* Parses "cuda" (device 0) or "cuda:N". */
static bool parse_index(const char *device, uint32_t *out)
{
    char *end;
    *out = 0;
    if (strncmp(device, "cuda", 4) != 0) return false;
    if (device[4] == 0) return true;
    if (device[4] != ':' || !isdigit((unsigned char)device[5])) return false;
    const unsigned long n = strtoul(device + 5, &end, 10);
    *out = (uint32_t)n;
    return *end == 0 && n < 1024;
}

sac_status backend_open(struct backend *out, const char *device, sac_error *err)
{
    uint32_t index;
    *out = (struct backend){0};
    if (!device || strcmp(device, "cpu") == 0) return open_host(out, err);
    if (!parse_index(device, &index))
        return error_set(err, SAC_ERR_ARG, "unknown device '%.40s': use cpu, cuda or cuda:N",
                         device);
    return backend_open_cuda(out, index, err);
}

void backend_close(struct backend *b)
{
    if (b->device) b->api->close(b->device);
    *b = (struct backend){0};
}

sac_status backend_check(const struct backend *b, const struct page_geom *geom, uint32_t n_head,
                         sac_error *err)
{
    return b->is_host ? SAC_OK : b->api->check(geom, n_head, err);
}

void *backend_take(struct backend *b, size_t bytes)
{
    return b->is_host ? mem_map(bytes) : b->api->take(b->device, bytes);
}

void backend_give(struct backend *b, void *p, size_t bytes)
{
    if (b->is_host)
        mem_unmap(p, bytes);
    else if (b->device)
        b->api->give(b->device, p);
}

void *backend_take_shared(const struct backend *b, size_t bytes)
{
    return b->is_host ? NULL : b->api->take_shared(b->device, bytes);
}

void backend_give_shared(const struct backend *b, void *p)
{
    if (p) b->api->give_shared(b->device, p);
}

void backend_pin(const struct backend *b, void *p, size_t bytes)
{
    if (!b->is_host) b->api->pin(b->device, p, bytes);
}

void backend_unpin(const struct backend *b)
{
    if (b->device) b->api->unpin(b->device);
}

void backend_unpack(const struct backend *b, const struct weight *w)
{
    (void)b->api->unpack(b->device, w);
}

void backend_up(const struct backend *b, void *dst, const void *src, size_t bytes)
{
    if (!b->is_host)
        b->api->up(b->device, dst, src, bytes);
    else if (dst != src)
        memcpy(dst, src, bytes);
}

void backend_up_rows(const struct backend *b, void *dst, size_t pitch, const void *src,
                     size_t width, size_t n_row)
{
    if (!b->is_host) {
        b->api->up_rows(b->device, dst, pitch, src, width, n_row);
        return;
    }
    for (size_t i = 0; i < n_row; i++)
        memcpy((uint8_t *)dst + i * pitch, (const uint8_t *)src + i * width, width);
}

void backend_down(const struct backend *b, void *dst, const void *src, size_t bytes)
{
    if (!b->is_host)
        b->api->down(b->device, dst, src, bytes);
    else if (dst != src)
        memcpy(dst, src, bytes);
}

void backend_copy(const struct backend *b, void *dst, const void *src, size_t bytes)
{
    if (b->is_host)
        memcpy(dst, src, bytes);
    else
        b->api->copy(b->device, dst, src, bytes);
}

void backend_send(const struct backend *from, const struct backend *to, void *dst, const void *src,
                  size_t bytes)
{
    if (from->is_host)
        backend_up(to, dst, src, bytes);
    else if (to->is_host)
        backend_down(from, dst, src, bytes);
    else
        from->api->send(from->device, to->device, dst, src, bytes);
}

bool backend_join(const struct backend *const *b, uint64_t *const *inbox, uint32_t n, size_t n_word)
{
    struct cuda_device *device[BACKEND_TEAM_MAX];
    assert(n > 0 && n <= BACKEND_TEAM_MAX);
    for (uint32_t i = 0; i < n; i++) {
        assert(!b[i]->is_host);
        device[i] = b[i]->device;
    }
    return b[0]->api->join(device, inbox, n, n_word);
}

void backend_sum(const struct backend *b, const struct op_sum *op)
{
    (void)b->api->sum(b->device, op); /* the device remembers a failure */
}

sac_status backend_wait(const struct backend *b, sac_error *err)
{
    return b->is_host ? SAC_OK : b->api->wait(b->device, err);
}

bool backend_ahead_begin(const struct backend *b)
{
    return !b->is_host && b->api->ahead_begin(b->device);
}

bool backend_ahead_end(const struct backend *b)
{
    return b->api->ahead_end(b->device);
}

bool backend_ahead_go(const struct backend *b)
{
    return b->api->ahead_go(b->device);
}

void *backend_up_later(const struct backend *b, void *dst, size_t bytes)
{
    return b->api->up_later(b->device, dst, bytes);
}
