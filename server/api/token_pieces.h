/* token_pieces.h - the field "forerun" of requests and of the events of a stream: which drafter proposed what. */
#ifndef SERVE_TOKEN_PIECES_H
#define SERVE_TOKEN_PIECES_H

#include "server/api/api.h"

/* "forerun": {"tokens": true, "trees": true} of a request; NULL: absent. */
int token_pieces_read(Plan *plan, const json_t *value, ApiError *error);
/* The key "forerun" of an event with the fresh tokens of a choice; nothing unless they were asked for. */
void token_pieces_write(JsonOut *out, const Choice *c, const TokenBatch *fresh);

#endif
