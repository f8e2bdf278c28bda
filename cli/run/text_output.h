/* text_output.h - writes an answer to standard output while it is generated. */
#ifndef RUN_TEXT_OUTPUT_H
#define RUN_TEXT_OUTPUT_H

#include "base/mem.h"
#include "forerun.h"

#include <stdbool.h>

typedef struct TextOutput {
    bool use_color;   /* drafted tokens in the colour of their drafter */
    bool is_terminal; /* the text is escaped, so that no token of the model controls the terminal */
    bool trims;       /* white space before the text is left out: an answer of a chat follows "ASSISTANT:" */
    bool has_begun;   /* something has been written */
    Buf text;         /* of one token, escaped */
} TextOutput;

/* For standard output. Call text_output_close when the text is complete. */
TextOutput text_output_open(bool use_color, bool trims);
void text_output_close(TextOutput *o);

/* Writes the text of a token at once. Not 0: standard output is closed, or there is no memory. */
int text_output_write(TextOutput *o, const fr_token_event *event);

/* The text without the white space before it; *n becomes its length. */
const char *text_output_trimmed(const char *text, size_t *n);

#endif
