/* fields.h: which fields of a request mean something, to this server or to those whose clients it
 * answers. Others are ignored, as those servers do, and told in the log: most are slips of the pen.
 */
#ifndef SAC_SERVE_FIELDS_H
#define SAC_SERVE_FIELDS_H

#include "serve/journal.h"
#include "serve/json.h"

/* Tells of each field of the body that is not known, once in the life of the journal. */
void fields_check(const cJSON *body, struct journal *journal);

#endif
