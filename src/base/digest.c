/* digest.c: see the header. */
#include "base/digest.h"

#include <openssl/evp.h>

sac_status digest_pieces(uint8_t out[DIGEST_BYTES], const struct digest_piece *piece,
                         size_t n_piece, sac_error *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL);
    for (size_t i = 0; ok && i < n_piece; i++) {
        const uint64_t n = piece[i].n;
        ok = EVP_DigestUpdate(ctx, &n, sizeof n) && EVP_DigestUpdate(ctx, piece[i].data, n);
    }
    ok = ok && EVP_DigestFinal_ex(ctx, out, NULL);
    EVP_MD_CTX_free(ctx);
    return ok ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "libcrypto gives no SHA-256");
}
