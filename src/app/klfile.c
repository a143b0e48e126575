/* klfile.c: see the header. Offsets are computed in 64 bits from counts that were bounded first;
 * the file's size must match them exactly. */
#include "app/klfile.h"

#include "base/half.h"
#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_FIELD   6u
#define HEAD      (sizeof magic + sizeof(uint32_t) * N_FIELD)
#define COUNT_MAX (1u << 28)

static const uint8_t magic[8] = "SACKLDIV";

static size_t value_bytes(const struct klfile *f)
{
    return f->type == KLFILE_F16 ? 2 : 4;
}

static uint64_t tokens_bytes(const struct klfile *f)
{
    return (uint64_t)f->n_chunk * f->n_ctx * sizeof(int32_t);
}

static size_t row_bytes(const struct klfile *f)
{
    return (size_t)f->n_vocab * value_bytes(f);
}

static sac_status transfer(const struct klfile *f, bool write, void *data, size_t n, uint64_t at,
                           sac_error *err)
{
    uint8_t *p = data;
    while (n > 0) {
        const ssize_t done = write ? pwrite(f->fd, p, n, (off_t)at) : pread(f->fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return error_set(err, SAC_ERR_IO, "%s: cannot %s: %s", f->path,
                             write ? "write" : "read", done ? strerror(errno) : "it is cut short");
        p += done;
        n -= (size_t)done;
        at += (uint64_t)done;
    }
    return SAC_OK;
}

static sac_status take_row(struct klfile *f, sac_error *err)
{
    f->row = mem_alloc(row_bytes(f));
    if (!f->row) return error_set(err, SAC_ERR_MEMORY, "no memory for a row of %s", f->path);
    return SAC_OK;
}

sac_status klfile_create(struct klfile *f, const char *path, const int32_t *tok, sac_error *err)
{
    uint8_t head[HEAD];
    const uint32_t fields[N_FIELD] = {1, f->type, f->n_ctx, f->n_chunk, f->n_vocab, f->n_score};
    memcpy(head, magic, sizeof magic);
    memcpy(head + sizeof magic, fields, sizeof fields);
    f->path = path;
    f->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return error_set(err, SAC_ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    TRY(take_row(f, err));
    TRY(transfer(f, true, head, sizeof head, 0, err));
    int32_t *copy = mem_alloc((size_t)tokens_bytes(f));
    if (!copy) return error_set(err, SAC_ERR_MEMORY, "no memory for the tokens of %s", path);
    memcpy(copy, tok, (size_t)tokens_bytes(f));
    const sac_status status = transfer(f, true, copy, (size_t)tokens_bytes(f), HEAD, err);
    mem_free(copy);
    return status;
}

static sac_status check_head(struct klfile *f, const uint8_t *head, uint64_t size, sac_error *err)
{
    uint32_t fields[N_FIELD];
    memcpy(fields, head + sizeof magic, sizeof fields);
    if (memcmp(head, magic, sizeof magic) != 0)
        return error_set(err, SAC_ERR_FORMAT, "%s: no file of --kl-divergence-base", f->path);
    if (fields[0] != 1 || fields[1] > KLFILE_F16)
        return error_set(err, SAC_ERR_UNSUPPORTED, "%s: version %u, type %u", f->path, fields[0],
                         fields[1]);
    f->type = fields[1];
    f->n_ctx = fields[2];
    f->n_chunk = fields[3];
    f->n_vocab = fields[4];
    f->n_score = fields[5];
    for (uint32_t i = 2; i < N_FIELD; i++)
        if (fields[i] == 0 || fields[i] > COUNT_MAX)
            return error_set(err, SAC_ERR_FORMAT, "%s: header field %u is %u", f->path, i,
                             fields[i]);
    if (f->n_score >= f->n_ctx)
        return error_set(err, SAC_ERR_FORMAT, "%s: %u scored tokens in chunks of %u", f->path,
                         f->n_score, f->n_ctx);
    /* Counts are checked against the file's size, so no allocation exceeds what the file holds. */
    const unsigned __int128 want =
        HEAD + tokens_bytes(f) +
        (unsigned __int128)f->n_chunk * f->n_score * f->n_vocab * value_bytes(f);
    if (want != size)
        return error_set(err, SAC_ERR_FORMAT, "%s: %llu bytes, its header says %s", f->path,
                         (unsigned long long)size, want > size ? "more" : "fewer");
    return SAC_OK;
}

sac_status klfile_open(struct klfile *f, const char *path, int32_t **out_tok, sac_error *err)
{
    uint8_t head[HEAD];
    struct stat st;
    *out_tok = NULL;
    f->path = path;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return error_set(err, errno == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO, "%s: %s", path,
                         strerror(errno));
    TRY(transfer(f, false, head, sizeof head, 0, err));
    TRY(check_head(f, head, (uint64_t)st.st_size, err));
    TRY(take_row(f, err));
    int32_t *tok = mem_alloc((size_t)tokens_bytes(f));
    if (!tok) return error_set(err, SAC_ERR_MEMORY, "no memory for the tokens of %s", path);
    const sac_status status = transfer(f, false, tok, (size_t)tokens_bytes(f), HEAD, err);
    if (status == SAC_OK)
        *out_tok = tok;
    else
        mem_free(tok);
    return status;
}

static uint64_t row_at(const struct klfile *f, uint64_t row_i)
{
    assert(row_i < (uint64_t)f->n_chunk * f->n_score);
    return HEAD + tokens_bytes(f) + row_i * row_bytes(f);
}

sac_status klfile_write(struct klfile *f, uint64_t row_i, const float *log_p, sac_error *err)
{
    if (f->type == KLFILE_F32)
        memcpy(f->row, log_p, row_bytes(f));
    else
        for (uint32_t i = 0; i < f->n_vocab; i++) ((uint16_t *)f->row)[i] = f32_to_f16(log_p[i]);
    return transfer(f, true, f->row, row_bytes(f), row_at(f, row_i), err);
}

sac_status klfile_read(struct klfile *f, uint64_t row_i, float *log_p, sac_error *err)
{
    TRY(transfer(f, false, f->row, row_bytes(f), row_at(f, row_i), err));
    if (f->type == KLFILE_F32)
        memcpy(log_p, f->row, row_bytes(f));
    else
        for (uint32_t i = 0; i < f->n_vocab; i++) log_p[i] = f16_to_f32(((uint16_t *)f->row)[i]);
    return SAC_OK;
}

sac_status klfile_close(struct klfile *f, sac_error *err)
{
    const int fd = f->fd;
    f->fd = -1;
    mem_free(f->row);
    f->row = NULL;
    if (fd >= 0 && close(fd) != 0)
        return error_set(err, SAC_ERR_IO, "%s: cannot write: %s", f->path, strerror(errno));
    return SAC_OK;
}
