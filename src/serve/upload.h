/* upload.h: converts a file in a request's body, alone or as a part of a form, to {"name", "text",
 * "format", "encoding", ...}. */
#ifndef SAC_SERVE_UPLOAD_H
#define SAC_SERVE_UPLOAD_H

#include "serve/json.h"
#include "serve/refusal.h"

#include <microhttpd.h>

/* Whether the body is a file or a form, and not JSON: by its content type, and a name in the path.
 */
bool upload_is_file(struct MHD_Connection *connection);
/* The name is the form's field `name`, the query's, or the file's. `*out` is the caller's. */
sac_status upload_read(cJSON **out, struct MHD_Connection *connection, const struct strbuf *body,
                       struct refusal *ref);

#endif
