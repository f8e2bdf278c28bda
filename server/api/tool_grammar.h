/* tool_grammar.h - calls of tools have the form of the model's family and the tool's own schema. */
#ifndef SERVER_API_TOOL_GRAMMAR_H
#define SERVER_API_TOOL_GRAMMAR_H

#include "server/api/answers.h"

/* Gives the plan of the call the grammar of its calls: text with calls in it, or calls alone where tool_choice forces them. In
 * the worker. */
int tool_grammar_prepare(ApiCall *call, const Answers *a, const ChatMessages *f);

#endif
