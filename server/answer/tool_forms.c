/* tool_forms.c - how the families of chat templates write tool calls. */
#include "server/answer/answer_reader.h"

#include <string.h>

/* Families that are not listed, and templates of no known family, get the last row: it is the form of Hermes and Qwen, which most
 * fine-tuned models have taken over. */
static const ToolForm forms[] = {
    /* {"name": "f", "parameters": {...}}, several with ';' between them; after <|python_tag|> also without need */
    {.family = "llama3", .begin = "<|python_tag|>", .is_bare = true, .arguments = "parameters"},
    /* [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], since v11 [TOOL_CALLS]f[ARGS]{...} */
    {.family = "mistral", .begin = "[TOOL_CALLS]", .has_names = true, .is_list = true, .arguments = "arguments"},
    {.family = "llama2",
     .begin = "[TOOL_CALLS]",
     .has_names = true,
     .is_list = true,
     .arguments = "arguments"}, /* Mistral's older templates resemble it */
    /* <|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|> */
    {.family = "phi3", .begin = "<|tool_call|>", .end = "<|/tool_call|>", .is_list = true, .arguments = "arguments"},
    /* <tool_call>{"name": "f", "arguments": {...}}</tool_call> */
    {.family = "chatml", .begin = "<tool_call>", .end = "</tool_call>", .arguments = "arguments"},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

const ToolForm *tool_form_of(const char *family) {
    for (int i = 0; i < N_FORMS; i++)
        if (strcmp(forms[i].family, family) == 0) return &forms[i];
    return &forms[N_FORMS - 1];
}
