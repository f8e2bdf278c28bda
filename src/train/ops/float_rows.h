/* float_rows.h - a tensor of floats that is written into a GGUF file as another type. */
#ifndef OPS_FLOAT_ROWS_H
#define OPS_FLOAT_ROWS_H

#include "format/gguf_write.h"

typedef struct FloatRows {
    TensorType type;
    int64_t n_rows, n;  /* n_rows 0: a vector */
    const float *value; /* [n_rows][n] */
} FloatRows;

/* Both are read when the file is written. A row of no whole blocks of its type stays F32. */
void float_rows_add(GgufWriter *w, const char *name, FloatRows *rows);

#endif
