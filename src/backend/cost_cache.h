/* cost_cache.h - a measured cost curve kept in a file, so that the next start does not measure again.
 *
 * A file belongs to one key: CPU, threads, kernel table, forms of activations and cache, context, and the shapes and types of the
 * model's tensors, for on these the cost depends. The file's name is a hash of the key, and the key stands in the file: one that is
 * damaged, or of another key, is no entry. Costs decide trees and never tokens, so an entry that lies costs time only, and the
 * curve is corrected by every forward. */
#ifndef BACKEND_COST_CACHE_H
#define BACKEND_COST_CACHE_H

#include "backend/cost_curve.h"

enum { COST_KEY_BYTES = 256 };

/* What the curve of this executor depends on, as one line. */
void cost_cache_key(const Executor *e, int n_threads, char out[COST_KEY_BYTES]);

/* False where the folder has no sound entry for the key; *out is untouched then. */
bool cost_cache_load(const char *folder, const char *key, CostCurve *out);
/* Writes the entry, replacing what stands there whole. The folder must be there. */
int cost_cache_store(const char *folder, const char *key, const CostCurve *c, fr_error *err);

#endif
