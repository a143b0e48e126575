/* fields.h: the fields of a request that mean something to this server, or to the servers whose
 * clients it serves. Other fields are ignored, as those servers do, and logged, because most of
 * them are typos. */
#ifndef SAC_SERVE_FIELDS_H
#define SAC_SERVE_FIELDS_H

#include "serve/journal.h"
#include "serve/json.h"

/* Tells of each field of the body that is not known, once in the life of the journal. */
void fields_check(const cJSON *body, struct journal *journal);

#endif
