/* cost_cache.h - a measured cost curve kept in a file, so that the next start does not measure again.
 *
 * A file belongs to one key: CPU, threads, kernel table, forms of activations and cache, context, and the shapes and
 * types of the model's tensors, because the cost depends on these. The name of the file is a hash of the key, and the
 * file contains the key: a damaged file, or one of another key, is ignored. Costs decide trees and never tokens, so a
 * wrong entry costs only time, and every forward corrects the curve. */
#ifndef BACKEND_COST_CACHE_H
#define BACKEND_COST_CACHE_H

#include "compute/cost_curve.h"

enum { COST_KEY_BYTES = 256 };

/* What the curve of this executor depends on, as one line. */
void cost_cache_key(const Executor *e, int n_threads, char out[COST_KEY_BYTES]);

/* Returns false if the folder has no valid entry for the key; *out is unchanged then. */
bool cost_cache_load(const char *folder, const char *key, CostCurve *out);
/* Writes the entry, replacing an earlier one as a whole. The folder must exist. */
int cost_cache_store(const char *folder, const char *key, const CostCurve *c, fr_error *err);

#endif
