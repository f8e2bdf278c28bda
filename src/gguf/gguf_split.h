/* gguf_split.h - models in several GGUF files: NAME-00001-of-00003.gguf and so on. */
#ifndef FORMAT_GGUF_SPLIT_H
#define FORMAT_GGUF_SPLIT_H

#include "gguf/gguf.h"

enum { GGUF_MAX_PARTS = 1000, GGUF_MAX_PATH = 4096 };

/* How many parts the name of a first part promises; 1 for any other name. */
int gguf_split_count(const char *path);
/* The path of part i (from 0) beside the first part. False: it is too long. */
bool gguf_split_path(const char *first, int i, char out[GGUF_MAX_PATH]);

/* For gguf_open: opens the other parts of a file that is the first of several, and appends their tensors to its own. */
int gguf_join_parts(Gguf *g, fr_error *err);

#endif
