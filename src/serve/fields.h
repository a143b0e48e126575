/* fields.h: the fields of a request that mean something to this server, or to the servers whose
 * clients it serves. Other fields are ignored, as those servers do, and logged, because most of
 * them are typos. */
#ifndef SAC_SERVE_FIELDS_H
#define SAC_SERVE_FIELDS_H

#include "serve/json.h"
#include "serve/server_log.h"

/* Logs each unknown field of the body, once per name. */
void fields_check(const cJSON *body, struct server_log *log);

#endif
