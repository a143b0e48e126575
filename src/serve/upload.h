/* upload.h: converts a file in a request's body, alone or as a part of a form, to {"name", "text",
 * "format", "encoding", ...}. */
#ifndef SAC_SERVE_UPLOAD_H
#define SAC_SERVE_UPLOAD_H

#include "serve/api_error.h"
#include "serve/json.h"

#include <microhttpd.h>

/* Whether the body is a file or a form instead of JSON, by its content type and a name in the
 * query. */
bool upload_is_file(struct MHD_Connection *connection);
/* The name is the query's, the form's field `name`, or the file's. A text of more than
 * `text_max` bytes is refused. The caller owns `*out`. */
sac_status upload_read(cJSON **out, struct MHD_Connection *connection, const struct strbuf *body,
                       uint32_t text_max, struct api_error *error);

#endif
