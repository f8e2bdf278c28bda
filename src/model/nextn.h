/* nextn.h - the layer for multi-token prediction that some model files bring behind the others: from a hidden state of the
 * model and the token that was chosen there it predicts the token after that one.
 *
 *     x = eh_proj [ norm(E(token); enorm) ; norm(h; hnorm) ]      one layer like the model's last layer with attention
 *     h' = norm(layer(x); shared_head_norm)                       h' takes the place of h at the next token
 *     logits = head h'
 *
 * h is the model's hidden state after its final norm: so Qwen 3.5 and Qwen3-Next were trained (llama.cpp's pull request
 * 24025 found it by acceptance, and vLLM's forward returns that state). For DeepSeek-V3 and GLM llama.cpp (pull requests 24868,
 * 25980 and 26534) and vLLM take the same state at the first step; at the next steps both take h' behind its norm for GLM. The
 * paper of DeepSeek-V3 leaves open whether its h is the one before the norm.
 *
 * Names in the file, after "blk.N.", N the number of layers that the model runs: nextn.eh_proj.weight, nextn.enorm.weight,
 * nextn.hnorm.weight; nextn.shared_head_norm.weight (missing: output_norm), nextn.embed_tokens.weight and
 * nextn.shared_head_head.weight (missing: the model's embedding and LM head); and the tensors of the layer.
 * "<architecture>.nextn_predict_layers" counts such layers, and block_count includes them. Of several, the first is read. */
#ifndef MODEL_NEXTN_H
#define MODEL_NEXTN_H

#include "model/model.h"

typedef struct Nextn {
    Model model; /* the layer, its norm and its head; embedding and ropes are borrowed from the model's */
    LayerSpec layer;
    const GgufTensor *eh_proj;      /* [n_embd][2 n_embd] */
    const GgufTensor *embed_tokens; /* [n_vocab][n_embd]; NULL: the model's */
    const float *enorm, *hnorm;     /* [n_embd] */
} Nextn;

/* Reads the description into a Nextn that stays where it is; the model must outlive it. Refuses a model that has no such
 * layer, and missing, unknown, misshapen or infinite tensors by name. */
int nextn_open(Nextn *out, const Model *model, fr_error *err);
void nextn_close(Nextn *n); /* a zeroed one, and one that failed to open, are fine */

#endif
