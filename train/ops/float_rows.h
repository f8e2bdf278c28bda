/* float_rows.h - writes a tensor of floats into a GGUF file as another type. */
#ifndef OPS_FLOAT_ROWS_H
#define OPS_FLOAT_ROWS_H

#include "gguf/gguf_write.h"

typedef struct FloatRows {
    TensorType type;
    int64_t n_rows, n;  /* n_rows 0: a vector */
    const float *value; /* [n_rows][n] */
} FloatRows;

/* `rows` and its values must stay valid until the file is written. A tensor whose rows are no whole number of blocks of
 * the type is written as F32. */
void float_rows_add(GgufWriter *w, const char *name, FloatRows *rows);

#endif
