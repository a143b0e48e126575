/* sha256.c: see the header. The context is created once and reset for each digest, for which
 * libcrypto allocates no memory. */
#include "base/sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>

sac_status sha256_open(struct sha256 *s, sac_error *err)
{
    EVP_MD *algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    *s = (struct sha256){algorithm, context};
    if (algorithm && context && EVP_DigestInit_ex(context, algorithm, NULL)) return SAC_OK;
    sha256_close(s);
    return error_set(err, SAC_ERR_MEMORY, "libcrypto gives no SHA-256");
}

void sha256_close(struct sha256 *s)
{
    EVP_MD_CTX_free(s->context);
    EVP_MD_free(s->algorithm);
    *s = (struct sha256){0};
}

void sha256_digest(const struct sha256 *s, uint8_t out[SHA256_BYTES], const uint8_t *before,
                   const void *bytes, size_t n)
{
    unsigned size = 0;
    const int done = EVP_DigestInit_ex(s->context, NULL, NULL) &&
                     (!before || EVP_DigestUpdate(s->context, before, SHA256_BYTES)) &&
                     EVP_DigestUpdate(s->context, bytes, n) &&
                     EVP_DigestFinal_ex(s->context, out, &size);
    /* Only an allocation inside libcrypto could fail, and there is none here; a wrong digest must
     * never be used. */
    if (!done || size != SHA256_BYTES) abort();
}
