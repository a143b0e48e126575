/* digest.h: SHA-256 of data that comes in pieces, from libcrypto. For names that must not clash
 * even under attack; against accidental clashes xxHash is enough. */
#ifndef SAC_BASE_DIGEST_H
#define SAC_BASE_DIGEST_H

#include "base/status.h"

#define DIGEST_BYTES 32u

struct digest_piece {
    const void *data;
    size_t n;
};

/* The length of each piece is included, so different lists never hash the same bytes. */
sac_status digest_pieces(uint8_t out[DIGEST_BYTES], const struct digest_piece *piece,
                         size_t n_piece, sac_error *err);

#endif
