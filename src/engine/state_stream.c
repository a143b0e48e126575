/* state_stream.c: the byte stream of a saved sequence, its header, and what can be found out about
 * a file without an engine: for which model it was made, what it holds, and whether it is
 * complete. */
#include "engine/state.h"
#include "engine/state_walk.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC   "SACSTATE"
#define VERSION 3u

/* Size of a buffer, because cards of pages are small. */
#define ROOM_BYTES (1u << 20)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

_Static_assert(sizeof(struct segment) == 8, "none here either");
_Static_assert(sizeof(struct head) == 120 + METHOD_SET_KINDS * METHOD_SPEC_BYTES,
               "no padding, which would be written");

sac_status state_damaged(const struct stream *s, const char *what)
{
    return error_set(s->err, SAC_ERR_FORMAT, "%s is damaged: %s", s->name, what);
}

sac_status state_transfer(struct stream *s, void *p, size_t n)
{
    uint8_t spare[4096];
    s->n += n;
    if (s->direction == MEASURE) return SAC_OK;
    if (s->n > s->size) return state_damaged(s, "its parts are longer than the whole");
    for (size_t part; n > 0; n -= part) {
        part = p || n < sizeof spare ? n : sizeof spare;
        void *at = p ? p : spare;
        const uint64_t from = s->n - n;
        if (!s->file && s->direction == WRITE) memcpy(s->to + from, at, part);
        if (!s->file && s->direction == READ) memcpy(at, s->from + from, part);
        if (s->file && s->direction == WRITE && fwrite(at, 1, part, s->file) != part)
            return error_set(s->err, SAC_ERR_IO, "cannot write %s: %s", s->name, strerror(errno));
        if (s->file && s->direction == READ && fread(at, 1, part, s->file) != part)
            return state_unreadable(s, ferror(s->file) ? errno : -1);
        XXH3_64bits_update(&s->hash, at, part);
    }
    return SAC_OK;
}

sac_status state_pass(struct stream *s, uint64_t n)
{
    s->n += n;
    return s->n <= s->size ? SAC_OK : state_damaged(s, "its parts are longer than the whole");
}

int state_read_at(const struct stream *s, void *p, size_t n, uint64_t at)
{
    uint8_t *to = p;
    assert(at + n <= s->size);
    if (!s->file) memcpy(to, s->from + at, n);
    while (s->file && n > 0) {
        const ssize_t got = pread(fileno(s->file), to, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : -1;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

sac_status state_unreadable(const struct stream *s, int why)
{
    return error_set(s->err, SAC_ERR_IO, "cannot read %s: %s", s->name,
                     why > 0 ? strerror(why) : "it has become shorter");
}

sac_status state_walk_check(struct stream *s)
{
    const uint64_t sum = XXH3_64bits_digest(&s->hash);
    uint64_t stored = sum;
    TRY(state_transfer(s, &stored, sizeof stored));
    return stored == sum ? SAC_OK : state_damaged(s, "its checksum is another one");
}

uint64_t state_head_check(const struct head *h)
{
    return XXH3_64bits(h, offsetof(struct head, check));
}

void state_start_head(struct head *h)
{
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->version = VERSION;
    h->page_tok = PAGE_TOK;
}

/* Whether the pages fill what is left after everything else. */
static bool has_pages(const struct head *h)
{
    if (h->page_at > h->bytes || h->page_at < sizeof *h + sizeof(uint64_t) ||
        h->n_page > (h->page_at - sizeof *h - sizeof(uint64_t)) / sizeof(uint64_t))
        return false;
    return h->n_page ? (h->bytes - h->page_at) % h->n_page == 0 : h->bytes == h->page_at;
}

sac_status state_read_head(struct stream *s, struct head *h)
{
    s->direction = READ;
    XXH3_64bits_reset(&s->hash);
    if (s->size < sizeof *h)
        return error_set(s->err, SAC_ERR_FORMAT, "%s has %llu bytes: no saved sequence", s->name,
                         (unsigned long long)s->size);
    TRY(state_transfer(s, h, sizeof *h));
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return error_set(s->err, SAC_ERR_FORMAT, "%s is no saved sequence", s->name);
    if (h->version != VERSION || h->page_tok != PAGE_TOK)
        return error_set(s->err, SAC_ERR_UNSUPPORTED,
                         "%s has format version %u with pages of %u tokens, this build reads %u "
                         "with %u",
                         s->name, h->version, h->page_tok, VERSION, PAGE_TOK);
    if (h->check != state_head_check(h))
        return state_damaged(s, "its head's checksum is another one");
    if (h->bytes != s->size)
        return error_set(s->err, SAC_ERR_FORMAT, "%s is %s: it has %llu bytes of %llu", s->name,
                         s->size < h->bytes ? "cut short" : "too long", (unsigned long long)s->size,
                         (unsigned long long)h->bytes);
    const bool has_names =
        memchr(h->method[0], 0, METHOD_SPEC_BYTES) && memchr(h->method[1], 0, METHOD_SPEC_BYTES);
    if (!has_names || h->type_k > SAC_KV_Q8 || h->type_v > SAC_KV_Q8 || h->n_past > h->n_tok ||
        h->has_gaps > 1 || h->n_segment > SEGMENT_MAX || !has_pages(h))
        return state_damaged(s, "its head makes no sense");
    return SAC_OK;
}

sac_status state_open_file(struct stream *s, const char *path, sac_error *err)
{
    struct stat st;
    /* Does not wait for a FIFO's writer */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *s = (struct stream){.name = path, .file = fd < 0 ? NULL : fdopen(fd, "rb"), .err = err};
    if (!s->file) {
        const int why = errno;
        if (fd >= 0) close(fd);
        return error_set(err, why == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO, "cannot read %s: %s",
                         path, strerror(why));
    }
    if (fstat(fileno(s->file), &st) == 0 && S_ISREG(st.st_mode)) {
        s->size = (uint64_t)st.st_size;
        return SAC_OK;
    }
    fclose(s->file);
    return error_set(err, SAC_ERR_IO, "cannot read %s: not a regular file", path);
}

sac_status state_read_much(struct stream *s)
{
    s->room = mem_alloc(ROOM_BYTES);
    if (!s->room) return error_set(s->err, SAC_ERR_MEMORY, "no memory to read %s", s->name);
    (void)setvbuf(s->file, s->room, _IOFBF,
                  ROOM_BYTES); /* without a buffer, the file is read all the same */
    return SAC_OK;
}

void state_read_ahead(const struct stream *s, uint64_t n)
{
    if (s->file) (void)posix_fadvise(fileno(s->file), 0, (off_t)n, POSIX_FADV_WILLNEED);
}

void state_close_file(struct stream *s)
{
    fclose(s->file);
    mem_free(s->room);
}

sac_status sac_state_get_info(sac_state_info *out, const char *path, sac_error *err)
{
    struct stream s;
    struct head h = {0};
    TRY(state_open_file(&s, path, err));
    const sac_status status = state_read_head(&s, &h);
    state_close_file(&s);
    if (status != SAC_OK) return status;
    *out = (sac_state_info){.n_tok = h.n_tok,
                            .n_ctx = h.n_ctx,
                            .type_k = (sac_kv_type)h.type_k,
                            .type_v = (sac_kv_type)h.type_v,
                            .bytes = h.bytes};
    memcpy(out->decode, h.method[METHOD_SET_DECODE], sizeof out->decode);
    memcpy(out->prefill, h.method[METHOD_SET_PREFILL], sizeof out->prefill);
    return SAC_OK;
}

sac_status state_holds(const char *path, uint64_t bytes, const int32_t *tok, size_t n, bool *out,
                       sac_error *err)
{
    struct stream s;
    struct head h = {0};
    int32_t piece[1024];
    TRY(state_open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    sac_status status = state_read_head(&s, &h);
    bool same = status == SAC_OK && h.n_tok == n;
    for (size_t i = 0, part; same && i < n; i += part) {
        part = n - i < 1024 ? n - i : 1024;
        status = state_transfer(&s, piece, part * sizeof *piece);
        same = status == SAC_OK && memcmp(piece, tok + i, part * sizeof *piece) == 0;
    }
    state_close_file(&s);
    *out = same;
    return status;
}

/* Skips n bytes by reading them in pieces. */
static sac_status read_over(struct stream *s, uint64_t n)
{
    for (uint64_t part; n > 0; n -= part) {
        part = n < (1u << 20) ? n : 1u << 20;
        TRY(state_transfer(s, NULL, (size_t)part));
    }
    return SAC_OK;
}

static sac_status check_pages(struct stream *s, const struct head *h, const uint64_t *sum)
{
    const uint64_t n = h->n_page ? (h->bytes - h->page_at) / h->n_page : 0;
    for (uint64_t i = 0; i < h->n_page; i++) {
        XXH3_64bits_reset(&s->hash);
        TRY(read_over(s, n));
        if (XXH3_64bits_digest(&s->hash) != sum[i])
            return state_damaged(s, "a page's checksum is another one");
    }
    return SAC_OK;
}

static sac_status check_sums(struct stream *s)
{
    struct head h;
    TRY(state_read_head(s, &h));
    uint64_t *sum = mem_alloc(h.n_page * sizeof *sum + 1);
    if (!sum)
        return error_set(s->err, SAC_ERR_MEMORY, "no memory for the checksums of %s", s->name);
    sac_status status = read_over(s, h.page_at - s->n - sizeof *sum * (h.n_page + 1));
    if (status == SAC_OK) status = state_transfer(s, sum, h.n_page * sizeof *sum);
    if (status == SAC_OK) status = state_walk_check(s);
    if (status == SAC_OK) status = check_pages(s, &h, sum);
    mem_free(sum);
    return status;
}

sac_status state_verify(const char *path, uint64_t bytes, sac_error *err)
{
    struct stream s;
    TRY(state_open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    sac_status status = state_read_much(&s);
    if (status == SAC_OK) status = check_sums(&s);
    state_close_file(&s);
    return status;
}
