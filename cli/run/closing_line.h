/* closing_line.h - the one line on a terminal that says how fast a text was generated. */
#ifndef RUN_CLOSING_LINE_H
#define RUN_CLOSING_LINE_H

#include "cli/stats_json.h"

/* The time that plain decoding needs for n tokens behind n_before others, by the engine's cost model; 0: the engine has
 * not measured its costs. */
double closing_line_plain_s(const fr_engine *engine, int64_t n_before, int64_t n);

/* "[53.2 tokens/s, 2.41 tokens a pass; plain decoding: about 24.0 tokens/s]" on standard error, and nothing where no
 * token was generated. plain_s: as above; 0: nothing is said of plain decoding. */
void closing_line_print(const RequestStats *s, double plain_s);

#endif
