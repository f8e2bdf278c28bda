/* llama_init.c - goes on from a trained model (`forerun train target --init`).
 *
 * The file may come from anywhere, but must be a network that this trainer trains: a Llama with a tied embedding, no
 * biases, and plain RoPE. Its matrices are read in whatever type they have; the optimiser begins anew, because a
 * model's file does not have its means.
 *
 * Test: test_train_init_cli.c. */
#include "train/nets/llama_init.h"

#include "base/hash.h"
#include "gguf/blocks.h"
#include "gguf/finite.h"
#include "text/vocab.h"

#include <stdio.h>
#include <string.h>

static int check_architecture(const Gguf *g, fr_error *err) {
    GgufString name = {"none", 4};
    gguf_get_string(g, "general.architecture", &name);
    if (name.n == 5 && memcmp(name.data, "llama", 5) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be trained further: 'train target' trains the architecture llama, and this is %.*s",
                     gguf_path(g), (int)(name.n < 40 ? name.n : 40), name.data);
}

/* The numbers of the file that are options, in one array for a message; 0 where the file does not say. */
enum { LAYERS, WIDTH, HEADS, KV_HEADS, FF, N_NUMBERS };
static const char *const number_keys[N_NUMBERS] = {"llama.block_count", "llama.embedding_length",
                                                   "llama.attention.head_count", "llama.attention.head_count_kv",
                                                   "llama.feed_forward_length"};

static int check_numbers(const LlamaShape *s, const Gguf *g, fr_error *err) {
    const uint32_t wanted[N_NUMBERS] = {(uint32_t)s->n_layer, (uint32_t)s->n_embd, (uint32_t)s->n_head,
                                        (uint32_t)s->n_head_kv, (uint32_t)s->n_ff};
    uint32_t n[N_NUMBERS] = {0};
    for (int i = 0; i < N_NUMBERS; i++) gguf_get_u32(g, number_keys[i], &n[i]);
    if (!n[KV_HEADS]) n[KV_HEADS] = n[HEADS];
    if (memcmp(n, wanted, sizeof n) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: has another shape than the options; pass its own: --layers %u --width %u --heads %u "
                     "--kv-heads %u --ff %u",
                     gguf_path(g), n[LAYERS], n[WIDTH], n[HEADS], n[KV_HEADS], n[FF]);
}

/* Numbers that no option sets. */
static int check_constants(const LlamaShape *s, const Gguf *g, fr_error *err) {
    float base = 10000, eps = 0;
    uint32_t rotated = (uint32_t)s->head_dim;
    gguf_get_f32(g, "llama.rope.freq_base", &base);
    gguf_get_f32(g, "llama.attention.layer_norm_rms_epsilon", &eps);
    gguf_get_u32(g, "llama.rope.dimension_count", &rotated);
    if (base == (float)s->rope_base && eps == s->rms_eps && rotated == (uint32_t)s->head_dim &&
        gguf_find_key(g, "llama.rope.scaling.type") < 0)
        return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be trained further: its RoPE or the epsilon of its norms is not what 'train target' "
                     "trains (base %g, all of a head, no scaling; epsilon %g)",
                     gguf_path(g), s->rope_base, (double)s->rms_eps);
}

static int read_tensor(const Gguf *g, const LlamaTensor *x, float *values, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(g, x->name);
    if (!t || t->n_dims != (x->is_norm ? 1 : 2) || t->dims[0] != x->n || t->dims[1] != x->n_rows)
        return error_set(err, FR_ERR_MISMATCH, "%s: tensor %s is missing or has the wrong shape", gguf_path(g),
                         x->name);
    int64_t n = x->n_rows * x->n;
    if (!finite_weights(t->type, t->data, n))
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity", gguf_path(g), x->name);
    blocks_dequantize(t->type, t->data, n, values);
    return FR_OK;
}

static int read_tensors(const LlamaShape *s, const Gguf *g, float *values, fr_error *err) {
    int32_t n_tensors = llama_n_tensors(s);
    if (gguf_n_tensors(g) != n_tensors)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: cannot be trained further: it has %lld tensors where a Llama with a tied embedding and "
                         "no biases has %d",
                         gguf_path(g), (long long)gguf_n_tensors(g), n_tensors);
    for (int32_t i = 0; i < n_tensors; i++) {
        LlamaTensor x = llama_tensor(s, i);
        int status = read_tensor(g, &x, values, err);
        if (status) return status;
        values += x.n_rows * x.n;
    }
    return FR_OK;
}

int llama_init_read(const LlamaShape *s, const Gguf *vocabulary, const char *path, float *values, uint64_t *fingerprint,
                    fr_error *err) {
    Gguf *g;
    int status = gguf_open(&g, path, err);
    if (status) return status;
    status = check_architecture(g, err);
    if (!status) status = check_numbers(s, g, err);
    if (!status) status = check_constants(s, g, err);
    if (!status) status = vocab_match(g, vocabulary, err);
    if (!status) status = read_tensors(s, g, values, err);
    if (!status) status = gguf_check(g, err); /* the file has not changed meanwhile */
    if (!status) *fingerprint = hash64(values, (size_t)llama_n_weights(s) * sizeof *values, 0);
    gguf_close(g);
    return status;
}
