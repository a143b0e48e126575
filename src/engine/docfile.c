/* docfile.c: see the header.
 *
 * Format: a state, the statistics as floats, and struct end, little-endian. The end holds the
 * lengths of the two, and a checksum of the statistics and itself; the state has its own checksum.
 */
#include "engine/docfile.h"

#include "base/mem.h"
#include "engine/doc_stats.h"
#include "engine/state.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a hash that needs no allocation */
#include <xxhash.h>

#define MAGIC "SACDOC01"

struct end {
    char magic[8];
    uint64_t state_bytes, n_float;
    uint64_t check; /* of the statistics and of the fields above */
};

static uint64_t check_of(const float *stats, const struct end *end)
{
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    XXH3_64bits_update(&hash, stats, end->n_float * sizeof *stats);
    XXH3_64bits_update(&hash, end, offsetof(struct end, check));
    return XXH3_64bits_digest(&hash);
}

sac_status docfile_write(sac_engine *e, sac_seq seq, FILE *file, const char *name, sac_error *err)
{
    const struct doc_stats *stats = e->seqs[seq].stats;
    struct end end = {.n_float = stats->n_float};
    memcpy(end.magic, MAGIC, sizeof end.magic);
    TRY(state_write(e, seq, file, name, err));
    const long at = ftell(file);
    if (at < 0) return error_set(err, SAC_ERR_IO, "cannot write %s: %s", name, strerror(errno));
    end.state_bytes = (uint64_t)at;
    end.check = check_of(stats->value, &end);
    if (fwrite(stats->value, sizeof *stats->value, stats->n_float, file) != stats->n_float ||
        fwrite(&end, sizeof end, 1, file) != 1)
        return error_set(err, SAC_ERR_IO, "cannot write %s: %s", name, strerror(errno));
    return SAC_OK;
}

/* ---- Reading ---- */

static sac_status damaged(const char *path, const char *what, sac_error *err)
{
    return error_set(err, SAC_ERR_FORMAT, "%s is damaged: %s", path, what);
}

/* Reads and checks the end of an open file, whose two lengths must add up to the file's size. */
static sac_status read_end(struct end *out, FILE *f, const char *path, sac_error *err)
{
    const bool there =
        fseek(f, -(long)sizeof *out, SEEK_END) == 0 && fread(out, sizeof *out, 1, f) == 1;
    const long size = ftell(f);
    if (!there || size < 0 || memcmp(out->magic, MAGIC, sizeof out->magic) != 0)
        return damaged(path, "it is cut short, or no document", err);
    const uint64_t body = (uint64_t)size - sizeof *out;
    if (out->state_bytes > body || (body - out->state_bytes) / sizeof(float) != out->n_float ||
        (body - out->state_bytes) % sizeof(float))
        return damaged(path, "its parts are not as long as the whole", err);
    return SAC_OK;
}

/* Reads and checks the statistics' floats; the caller owns `*out`. */
static sac_status read_floats(struct doc_stats **out, const struct end *end, FILE *f,
                              const char *path, sac_error *err)
{
    struct doc_stats *n = mem_alloc(sizeof *n + end->n_float * sizeof(float));
    sac_status status = SAC_OK;
    if (!n) return error_set(err, SAC_ERR_MEMORY, "out of memory for the statistics of %s", path);
    if (fseek(f, (long)end->state_bytes, SEEK_SET) != 0 ||
        fread(n->value, sizeof(float), end->n_float, f) != end->n_float)
        status = error_set(err, SAC_ERR_IO, "cannot read %s: %s", path,
                           ferror(f) ? strerror(errno) : "it has become shorter");
    else if (check_of(n->value, end) != end->check)
        status = damaged(path, "the checksum of its statistics is another one", err);
    for (size_t i = 0; status == SAC_OK && i < end->n_float; i++)
        if (!isfinite(n->value[i])) status = damaged(path, "a statistic is no number", err);
    if (status != SAC_OK) {
        mem_free(n);
        return status;
    }
    *out = n;
    return SAC_OK;
}

static sac_status read_stats(struct doc_stats **out, struct end *end, const char *path,
                             sac_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return error_set(err, errno == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO,
                         "cannot read %s: %s", path, strerror(errno));
    sac_status status = read_end(end, f, path, err);
    if (status == SAC_OK) status = read_floats(out, end, f, path, err);
    fclose(f);
    return status;
}

/* Whether the token indices in the statistics are within the text. */
static bool is_sound(const sac_engine *e, const struct doc_stats *n)
{
    for (uint32_t l = 0; l < e->pool.geom.n_layer; l++) {
        const struct context_stats stats = doc_stats_layer(e, n, l);
        for (uint32_t b = 0; b < n->n_block; b++)
            if (!(stats.token[b] >= 0 && stats.token[b] < (float)n->n_tok)) return false;
    }
    return true;
}

sac_status docfile_load(sac_engine *e, const char *path, uint32_t n_text, sac_seq *out,
                        sac_error *err)
{
    struct doc_stats *stats;
    struct end end;
    sac_seq seq;
    TRY(read_stats(&stats, &end, path, err));
    stats->n_tok = n_text;
    stats->n_block = (n_text + CONTEXT_BLOCK - 1) / CONTEXT_BLOCK;
    stats->n_float = end.n_float;
    sac_status status = SAC_OK;
    if (end.n_float != doc_stats_floats(e, n_text) || !is_sound(e, stats))
        status = damaged(path, "its statistics make no sense", err);
    if (status == SAC_OK) status = state_load_pages(e, path, end.state_bytes, &seq, err);
    if (status != SAC_OK) {
        mem_free(stats);
        return status;
    }
    e->seqs[seq].stats = stats;
    *out = seq;
    return SAC_OK;
}

sac_status docfile_verify(const char *path, sac_error *err)
{
    struct doc_stats *stats;
    struct end end;
    TRY(read_stats(&stats, &end, path, err));
    mem_free(stats);
    return state_verify(path, end.state_bytes, err);
}

bool docfile_holds(const char *path, const int32_t *tok, size_t n)
{
    struct doc_stats *stats;
    struct end end;
    bool same = false;
    if (read_stats(&stats, &end, path, NULL) != SAC_OK) return false;
    mem_free(stats);
    return state_holds(path, end.state_bytes, tok, n, &same, NULL) == SAC_OK && same &&
           state_verify(path, end.state_bytes, NULL) == SAC_OK;
}
