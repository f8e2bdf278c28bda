/* stop_string.h - which stop string ended a text. */
#ifndef SERVE_STOP_STRING_H
#define SERVE_STOP_STRING_H

#include "server/api/api.h"

/* NULL: none did. The plan has tells_stop. */
const char *stop_string_of(const Choice *c);

#endif
