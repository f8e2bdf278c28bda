/* stats_json.h - the statistics of requests: their sums, their JSON object, and the table of acceptance by depth. */
#ifndef CLI_STATS_JSON_H
#define CLI_STATS_JSON_H

#include "forerun.h"

#include <jansson.h>
#include <stdbool.h>

enum { STATS_DEPTHS = 8 }; /* depths in the table and in "acceptance_by_step" */

/* All statistics of forerun.h about one request, or their sum over several. A zeroed struct is an empty sum. */
typedef struct RequestStats {
    fr_stats counts;
    fr_draft_stats drafts;
    char draft_error[256]; /* why a drafter was switched off; "" if none was */
    int n_repeating;       /* 1: the text repeats itself (stats_repeats); in a sum, the number of such texts */
} RequestStats;

/* Whether a text ends in a loop, as small models do: most sequences of four tokens near its end have occurred there
 * before. Drafters guess a loop easily, so its acceptance does not carry over to other text. */
bool stats_repeats(const int32_t *tokens, int64_t n);

void stats_read(RequestStats *out, const fr_request *request);
/* Adds the counts and times of `more`, and recomputes acceptance_length and tokens_per_s. The sum keeps its logits_hash
 * and its draft_error. */
void stats_add(RequestStats *sum, const RequestStats *more);

/* Makes the JSON object to which `run`, `compare` and `bench` add fields of their own. NULL: memory ran out. */
json_t *stats_json(const RequestStats *s);

/* Print a table of stats_acceptance whose first column, for the names, has that width. */
enum { STATS_NAME_WIDTH = 24 };
void stats_print_depths_head(int width);
void stats_print_depths(const RequestStats *s, const char *name, int width);

#endif
