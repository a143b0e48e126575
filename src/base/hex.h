/* hex.h: bytes as hexadecimal digits. */
#ifndef SAC_BASE_HEX_H
#define SAC_BASE_HEX_H

#include <stddef.h>
#include <stdint.h>

/* Prints n bytes as 2 n digits and a NUL. */
static inline void hex_print(char *out, const uint8_t *bytes, size_t n)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

#endif
