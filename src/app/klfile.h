/* klfile.h: reference log-probabilities on disk, for `perplexity --kl-divergence`.
 *
 * Layout, all little-endian:
 *   8 bytes   "SACKLDIV"
 *   u32 x 6   version (1), type (0: f32, 1: f16), n_ctx, n_chunk, n_vocab, n_score
 *   i32       tokens [n_chunk, n_ctx], the first of a chunk replaced by BOS if the model adds it
 *   f32|f16   natural log-probabilities [n_chunk, n_score, n_vocab]; row i of a chunk predicts its
 *             token n_ctx - n_score + i
 * A file is hostile input: its size is checked against the counts before use. Rows are read and
 * written by index, in any order. */
#ifndef SAC_APP_KLFILE_H
#define SAC_APP_KLFILE_H

#include "base/status.h"

#include <stdint.h>

enum klfile_type { KLFILE_F32, KLFILE_F16 };

struct klfile {
    const char *path; /* borrowed */
    int fd;           /* -1: closed */
    enum klfile_type type;
    uint32_t n_ctx, n_chunk, n_vocab, n_score;
    void *row; /* owned, [n_vocab] in the file's type */
};

/* Creates the file and writes header and tokens; the caller has set the counts in `f`. */
sac_status klfile_create(struct klfile *f, const char *path, const int32_t *tok, sac_error *err);
/* Opens and checks the file; the caller owns `*out_tok` [n_chunk * n_ctx] (mem_free). */
sac_status klfile_open(struct klfile *f, const char *path, int32_t **out_tok, sac_error *err);
sac_status klfile_write(struct klfile *f, uint64_t row_i, const float *log_p, sac_error *err);
sac_status klfile_read(struct klfile *f, uint64_t row_i, float *log_p, sac_error *err);
/* Closes the file and reports delayed write errors. */
sac_status klfile_close(struct klfile *f, sac_error *err);

#endif
