/* request_log.h - one line on standard error for each request. No prompt and no text of a client is part of it. */
#ifndef SERVE_REQUEST_LOG_H
#define SERVE_REQUEST_LOG_H

#include "server/api/api.h"

void request_log_write(const ApiCall *call, int status);
/* Of a request that was refused before it became a call. */
void request_log_refusal(const Service *s, const char *peer, const char *method, const char *path, int status);

#endif
