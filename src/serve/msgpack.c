/* msgpack.c: see the header; the format is at https://github.com/msgpack/msgpack. */
#include "serve/msgpack.h"

#include <string.h>

/* A type byte, followed by the low n bytes of `value` in big-endian order. */
static void put(struct strbuf *b, uint8_t type, uint64_t value, size_t n)
{
    char bytes[9] = {(char)type};
    for (size_t i = 0; i < n; i++) bytes[1 + i] = (char)(value >> 8 * (n - 1 - i));
    strbuf_add(b, bytes, 1 + n);
}

void msgpack_nil(struct strbuf *b)
{
    put(b, 0xc0, 0, 0);
}

void msgpack_uint(struct strbuf *b, uint64_t value)
{
    if (value < 0x80)
        put(b, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put(b, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put(b, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put(b, 0xce, value, 4);
    else
        put(b, 0xcf, value, 8);
}

void msgpack_double(struct strbuf *b, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(b, 0xcb, bits, 8);
}

void msgpack_text(struct strbuf *b, const char *text)
{
    const size_t n = strlen(text);
    if (n < 32)
        put(b, (uint8_t)(0xa0 | n), 0, 0);
    else if (n <= UINT8_MAX)
        put(b, 0xd9, n, 1);
    else if (n <= UINT16_MAX)
        put(b, 0xda, n, 2);
    else
        put(b, 0xdb, n, 4);
    strbuf_add(b, text, n);
}

/* The header of an array or map: type `few` holds counts up to 15, `many` and the next type 16 and
 * 32 bits. */
static void put_count(struct strbuf *b, uint32_t n, uint8_t few, uint8_t many)
{
    if (n < 16)
        put(b, (uint8_t)(few | n), 0, 0);
    else if (n <= UINT16_MAX)
        put(b, many, n, 2);
    else
        put(b, (uint8_t)(many + 1), n, 4);
}

void msgpack_array(struct strbuf *b, uint32_t n)
{
    put_count(b, n, 0x90, 0xdc);
}

void msgpack_map(struct strbuf *b, uint32_t n_pair)
{
    put_count(b, n_pair, 0x80, 0xde);
}
