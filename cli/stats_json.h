/* stats_json.h - the statistics of requests: their sums, their JSON object, and the table of acceptance by depth. */
#ifndef APP_STATS_JSON_H
#define APP_STATS_JSON_H

#include "forerun.h"

#include <jansson.h>

enum { STATS_DEPTHS = 8 }; /* depths in the table and in "acceptance_by_step" */

/* All that forerun.h says about one request, or about several together. A zeroed sum is empty. */
typedef struct RequestStats {
    fr_stats counts;
    fr_draft_stats drafts;
    char draft_error[256]; /* why a drafter was switched off; "" if none was */
} RequestStats;

void stats_read(RequestStats *out, const fr_request *request);
/* Adds the counts and times of `more`, and computes acceptance_length and tokens_per_s anew. The sum keeps its
 * logits_hash and its draft_error. */
void stats_add(RequestStats *sum, const RequestStats *more);

/* The one JSON object for statistics, which `run`, `compare` and `bench` extend with fields of their own. NULL: no
 * memory. */
json_t *stats_json(const RequestStats *s);

/* A table of stats_acceptance, with names in a column of that width (app/table.h). */
enum { STATS_NAME_WIDTH = 24 };
void stats_print_depths_head(int width);
void stats_print_depths(const RequestStats *s, const char *name, int width);

#endif
