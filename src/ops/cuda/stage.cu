/* stage.cu: how bytes get to the GPU and back: the ring of descriptors, staging buffers for large
 * copies, and copies to pinned memory (the stage_* functions of device.cuh).
 *
 * Small copies travel with the descriptors: a piece of the ring, and a kernel that puts the bytes
 * in place. Large ones, such as the rows of a prompt, go through STAGING_BUFFERS pinned buffers and
 * their mirrors on a second stream, so that they cross the bus while the GPU computes and the host
 * does not wait; from the mirror they are copied in the order of the first stream. Copies back go
 * straight to memory that the program has pinned.
 *
 * Invariant: ring_first <= ring_sent <= ring_used <= ring_end; pieces before ring_sent are on the
 * stream. The ring starts over only after the stream has been waited for, so no piece is
 * overwritten that a copy or a kernel still reads. A step that is kept back uses the half of the
 * ring that the step before does not. */
#include "ops/cuda/queue.cuh"

#include <string.h>

#define SMALL_BYTES ((size_t)64 << 10) /* of a copy that goes with the descriptors, at most */
#define WORD_BYTES  ((size_t)4 << 10)  /* of a copy to the host that a kernel does, at most */

/* ---- The ring ---- */

sac_status stage_drain(struct cuda_device *d)
{
    queue_end(d);
    const sac_status status = device_check(d, cudaStreamSynchronize(d->stream), "the GPU's queue");
    d->ring_used = d->ring_sent = d->ring_first = 0;
    d->ring_end = d->ring_bytes;
    d->ring_is_full = false;
    return status;
}

/* Continues in the half of the ring that is free. */
void stage_use_other_half(struct cuda_device *d)
{
    const size_t half = d->ring_bytes / 2;
    d->ring_first = d->ring_first ? 0 : half;
    d->ring_used = d->ring_sent = d->ring_first;
    d->ring_end = d->ring_first + half;
    d->ring_is_full = true;
}

/* Whether the step before leaves half of the ring free. */
bool stage_has_half(const struct cuda_device *d)
{
    const bool is_large = d->ring_first == 0 && d->ring_used > d->ring_bytes / 2;
    return !d->ring_is_full && !is_large && d->status == SAC_OK;
}

static sac_status stage_send_by(struct cuda_device *d, cudaStream_t stream)
{
    const size_t n = d->ring_used - d->ring_sent, at = d->ring_sent;
    d->ring_sent = d->ring_used;
    if (n == 0) return SAC_OK;
    cudaError_t code =
        cudaMemcpyAsync(d->ring + at, d->ring_host + at, n, cudaMemcpyHostToDevice, stream);
    if (code == cudaSuccess && stream != d->stream) code = cudaEventRecord(d->staged, stream);
    if (code == cudaSuccess && stream != d->stream)
        code = cudaStreamWaitEvent(d->stream, d->staged, 0);
    return device_check(d, code, "copy of descriptors");
}

sac_status stage_send(struct cuda_device *d)
{
    return stage_send_by(d, d->stream);
}

sac_status stage_send_early(struct cuda_device *d)
{
    return stage_send_by(d, d->sender);
}

sac_status stage_reserve(struct cuda_device *d, size_t bytes)
{
    if (d->ring_end - d->ring_used >= bytes) return SAC_OK;
    const sac_status status = queue_flush(d);
    if (d->ahead == AHEAD_OVERFLOW) return SAC_OK; /* nothing will read the pieces */
    return status != SAC_OK ? status : stage_drain(d);
}

void *stage_alloc(struct cuda_device *d, size_t bytes, void **out_host)
{
    const size_t n = (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    if (n > d->ring_bytes || stage_reserve(d, n) != SAC_OK) {
        device_fail(d, SAC_ERR_MEMORY, "descriptors of one launch are larger than their ring");
        return NULL;
    }
    const size_t at = d->ring_used;
    d->ring_used += n;
    *out_host = d->ring_host + at;
    return d->ring + at;
}

void *stage_put(struct cuda_device *d, const void *src, size_t bytes)
{
    void *host;
    void *p = stage_alloc(d, bytes, &host);
    if (p) memcpy(host, src, bytes);
    return p;
}

/* ---- Copies ---- */

/* A few rows go to the GPU with the descriptors, and a kernel puts them in place. */
static void put_small(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                      size_t n_row)
{
    const void *from = stage_put(d, src, n_row * width);
    if (from) cuda_copy_rows(d, dst, pitch, from, width, n_row);
}

/* The next staging buffer, allocated on first use. Waits only for the copy that last used it, not
 * for the work queued after that copy. NULL: no memory, and the failure is remembered. */
static const struct staging_buffer *staging_acquire(struct cuda_device *d)
{
    struct staging_buffer *p = &d->piece[d->next_staging];
    cudaError_t code = cudaSuccess;
    d->next_staging = (d->next_staging + 1) % STAGING_BUFFERS;
    device_use(d);
    if (p->host)
        code = cudaEventSynchronize(p->sent);
    else
        code = cudaHostAlloc((void **)&p->host, PIECE_BYTES, cudaHostAllocDefault);
    if (code == cudaSuccess && !p->mirror) code = cudaMalloc((void **)&p->mirror, PIECE_BYTES);
    return device_check(d, code, "memory for copies to the GPU") == SAC_OK ? p : NULL;
}

/* Sends n rows of a staging buffer: to its mirror on the second stream, as soon as the mirror's
 * last content has been read, and from there to dst in the order of the first stream. */
static cudaError_t staging_send(struct cuda_device *d, const struct staging_buffer *p, void *dst,
                                size_t pitch, size_t width, size_t n)
{
    cudaError_t code = cudaStreamWaitEvent(d->sender, p->read, 0);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(p->mirror, p->host, n * width, cudaMemcpyHostToDevice, d->sender);
    if (code == cudaSuccess) code = cudaEventRecord(p->sent, d->sender);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(d->stream, p->sent, 0);
    if (code == cudaSuccess)
        code = cudaMemcpy2DAsync(dst, pitch, p->mirror, width, width, n, cudaMemcpyDeviceToDevice,
                                 d->stream);
    return code == cudaSuccess ? cudaEventRecord(p->read, d->stream) : code;
}

void stage_up_rows(struct cuda_device *d, void *dst, size_t pitch, const void *src, size_t width,
                   size_t n_row)
{
    if (width == 0 || n_row == 0) return;
    if (width * n_row <= SMALL_BYTES) {
        put_small(d, dst, pitch, src, width, n_row);
        return;
    }
    if (queue_flush(d) != SAC_OK || d->ahead == AHEAD_OVERFLOW) return;
    const size_t limit = PIECE_BYTES / width;
    if (limit == 0) {
        device_fail(d, SAC_ERR_MEMORY, "a row of a copy is larger than a piece of one");
        return;
    }
    for (size_t r = 0, n; r < n_row; r += n) {
        n = n_row - r < limit ? n_row - r : limit;
        const struct staging_buffer *piece = staging_acquire(d);
        if (!piece) return;
        memcpy(piece->host, (const uint8_t *)src + r * width, n * width);
        const cudaError_t code =
            staging_send(d, piece, (uint8_t *)dst + r * pitch, pitch, width, n);
        if (device_check(d, code, "copy to the GPU") != SAC_OK) return;
    }
}

void stage_up(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        const size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        stage_up_rows(d, (uint8_t *)dst + at, n, (const uint8_t *)src + at, n, 1);
    }
}

static bool is_pinned(const struct cuda_device *d, const uint8_t *p, size_t bytes)
{
    return d->pinned && p >= d->pinned && bytes <= d->n_pinned &&
           (size_t)(p - d->pinned) <= d->n_pinned - bytes;
}

/* A copy to pinned memory is a recorded command, so it can be part of a graph. A few bytes are
 * copied by a kernel instead, which starts sooner than a copy engine. */
void stage_down(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    const bool pinned = is_pinned(d, (const uint8_t *)dst, bytes);
    if (pinned && d->writes_pinned && bytes <= WORD_BYTES)
        cuda_copy_rows(d, dst, bytes, src, bytes, 1);
    else if (pinned)
        queue_down(d, dst, src, bytes);
    else if (queue_end(d) == SAC_OK && d->ahead == AHEAD_NONE)
        device_check(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->stream),
                     "copy from the GPU");
}
