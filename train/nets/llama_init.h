/* llama_init.h - a model's file as the initial values of a target's training (`forerun train target --init`). */
#ifndef NETS_LLAMA_INIT_H
#define NETS_LLAMA_INIT_H

#include "train/nets/llama_net.h"
#include "gguf/gguf.h"

/* Writes the weights in the file, converted to floats, to values ([llama_n_weights(s)], in the order of llama_tensor).
 * The file must hold exactly the network that `s` describes, with the vocabulary of `vocabulary`; else the message names
 * what differs and the options that fit, and the values are undefined. *fingerprint is that of the values. */
int llama_init_read(const LlamaShape *s, const Gguf *vocabulary, const char *path, float *values, uint64_t *fingerprint,
                    fr_error *err);

#endif
