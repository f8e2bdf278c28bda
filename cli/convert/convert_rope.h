/* convert_rope.h - the rotation of queries and keys: from config.json to the keys and tensors of a GGUF file. */
#ifndef CONVERT_CONVERT_ROPE_H
#define CONVERT_CONVERT_ROPE_H

#include "cli/convert/config_reader.h"
#include "cli/convert/convert_shape.h"

/* Reads base, scaling and n_rot; the rest of the shape is there already. */
void convert_rope_read(ConvertShape *s, ConfigReader *r, const ConvertUsual *usual);
/* Writes the keys of the scaling. */
void convert_rope_write(const ConvertShape *s, GgufWriter *w);
/* Adds the tensors of divisors, if the scaling has some; `room` [head_dim] must last until the file is written. */
void convert_rope_tensors(const ConvertShape *s, float *room, GgufWriter *w);

#endif
