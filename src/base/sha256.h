/* sha256.h: SHA-256, by libcrypto. Memory is allocated when it is opened, none for a digest. */
#ifndef SAC_BASE_SHA256_H
#define SAC_BASE_SHA256_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32u

struct sha256 {
    void *algorithm, *context; /* owned, libcrypto's; NULL: not open */
};

sac_status sha256_open(struct sha256 *s, sac_error *err);
void sha256_close(struct sha256 *s);

/* The digest of `before` [SHA256_BYTES] (NULL: nothing) followed by n bytes. */
void sha256_digest(const struct sha256 *s, uint8_t out[SHA256_BYTES], const uint8_t *before,
                   const void *bytes, size_t n);

#endif
