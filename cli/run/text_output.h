/* text_output.h - writes an answer to standard output while it is generated. */
#ifndef CLI_RUN_TEXT_OUTPUT_H
#define CLI_RUN_TEXT_OUTPUT_H

#include "base/mem.h"
#include "cli/stats_json.h"
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

/* The one line on a terminal that says how fast a text was generated. */

/* The time that plain decoding needs for n tokens behind n_before others, by the engine's cost model; 0: the engine has
 * not measured its costs. */
double closing_line_plain_s(const fr_engine *engine, int64_t n_before, int64_t n);

/* "[53.2 tokens/s, 2.41 tokens a pass; plain decoding: about 24.0 tokens/s]" on standard error, and nothing where no
 * token was generated. plain_s: as above; 0: nothing is said of plain decoding. */
void closing_line_print(const RequestStats *s, double plain_s);

#endif
