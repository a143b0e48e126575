/* msgpack.h: values in MessagePack, appended in the shortest form. An array or map is its count,
 * followed by that many values, or pairs of a key and a value. */
#ifndef SAC_SERVE_MSGPACK_H
#define SAC_SERVE_MSGPACK_H

#include "base/strbuf.h"

#include <stdint.h>

void msgpack_nil(struct strbuf *b);
void msgpack_uint(struct strbuf *b, uint64_t value);
void msgpack_double(struct strbuf *b, double value);
void msgpack_text(struct strbuf *b, const char *text);
void msgpack_array(struct strbuf *b, uint32_t n);
void msgpack_map(struct strbuf *b, uint32_t n_pair);

#endif
