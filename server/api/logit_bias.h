/* logit_bias.h - the field "logit_bias" in the forms of OpenAI and llama.cpp. */
#ifndef SERVE_LOGIT_BIAS_H
#define SERVE_LOGIT_BIAS_H

#include "server/api/api.h"

/* Fills plan->bias; value NULL: none. */
int logit_bias_read(Plan *plan, const json_t *value, ApiError *error);

#endif
