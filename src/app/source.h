/* source.h: how commands read a text that the user names: converted by the layer `text`, or byte
 * for byte. Possible problems (a guessed encoding, replaced bytes) are reported on stderr. */
#ifndef SAC_APP_SOURCE_H
#define SAC_APP_SOURCE_H

#include "base/status.h"
#include "base/strbuf.h"

#define SOURCE_AS_IS_HELP "take files byte for byte: HTML as its source, no change of encoding"

struct extract_info;

/* Appends the text of the file; `as_is`: its bytes. */
sac_status source_read(struct strbuf *out, const char *path, bool as_is, sac_error *err);

/* Warns on stderr about doubtful text extraction. */
void source_tell_doubts(const char *path, const struct extract_info *info);

#endif
