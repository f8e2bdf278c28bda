/* model_reader.h - a model file that is being read: what has been taken from it, and the memory of what was made. Only
 * model.c, model_reader.c and nextn.c include it; architectures use the functions of arch.h. */
#ifndef MODEL_MODEL_READER_H
#define MODEL_MODEL_READER_H

#include "model/arch.h"
#include "model/model.h"

/* The memory that a model owns if it was read from a file. */
struct ModelMemory {
    LayerSpec *layers;
    GgufTensor *views; /* [n_views] matrices that are rows of another; at most MODEL_MAX_VIEWS of each layer */
    int64_t n_views;
    float **vectors; /* [n_vectors], with room for two for each tensor of the file */
    int64_t n_vectors;
};
enum { MODEL_MAX_VIEWS = 5 }; /* in a layer: queries, keys and values of one matrix, gate and up of another */

/* A model file that is being read. */
struct ArchReader {
    Model *m;
    Hparams of_layer; /* the shape of the layer that is being read */
    bool *taken;      /* [gguf_n_tensors] */
    int64_t n_taken;
    fr_error *err;
};

typedef struct TensorName {
    char text[64];
} TensorName;

/* Allocates what a model of n tensors owns. After an error, the caller frees r->taken and closes the model. */
int model_reader_open(ArchReader *r, size_t n);
void model_memory_free(struct ModelMemory *memory); /* NULL is fine */
/* Takes a tensor, which must have exactly this shape: a matrix [n_out][n_in], or a vector if n_out is 0. It may be
 * missing only if it is optional; *out is then NULL. */
int model_reader_take(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, bool optional,
                      const GgufTensor **out);
/* Takes a vector [n] as floats, which the model owns. If it is optional and missing, *out stays as it is. */
int model_reader_take_vector(ArchReader *r, const char *name, int64_t n, bool optional, const float **out);
/* Reports a tensor that no part of the architecture takes. Returns the code. */
int model_reader_refuse(const ArchReader *r, const GgufTensor *t);

/* Reads a layer, which has its own numbers of heads and its own feed-forward width if the file lists them (model.c). */
int model_read_layer(ArchReader *r, int32_t i, LayerSpec *out);

#endif
