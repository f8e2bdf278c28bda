/* scales.h - factors of whole matrices. NVIDIA's NVFP4 checkpoints have a float for each matrix beside the scales within; GGUF files
 * have it as a tensor "NAME.scale" beside "NAME.weight", of experts one number for each (llama.cpp's pull requests 19769 and 21095).
 * Outputs are multiplied by it before anything else becomes of them. "NAME.input_scale" is the factor of the inputs that a GPU's
 * 4-bit products would use; here, and in llama.cpp, inputs are rounded otherwise, and it is not needed. */
#ifndef MODEL_SCALES_H
#define MODEL_SCALES_H

#include "model/model.h"

/* The factors of a matrix, or of each of some. */
typedef struct MatrixScale {
    const GgufTensor *matrix;
    const float *values; /* [matrix->dims[2]] */
} MatrixScale;

/* The factor of the matrix whose numbers begin at `data`, a matrix of the model's file or some of its rows; 1 mostly. */
float model_scale(const Model *m, const void *data);
/* Whether any matrix has one. */
bool model_has_scales(const Model *m);

#endif
