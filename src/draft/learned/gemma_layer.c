/* gemma_layer.c - layers of the form of Gemma 4's (arch_gemma.c) in the files of `eagle3` and `dflash`. DeepSpec
 * publishes drafters with such layers for targets of that family.
 *
 * Beside a layer of the form of a Llama's, what attention and the feed-forward part add has a norm, values have a norm
 * without a weight, the activation is GELU, and the output of the layer may be multiplied by a number. A layer without
 * a value projection makes values of its keys, before their norm. A file has a layer of this form if it has the norm
 * after the feed-forward part. Proof: tests/draft/test_draft_dflash.c and test_draft_eagle3.c. */
#include "base/mem.h"
#include "draft/learned/layer_entries.h"
#include "draft/learned/learned_files.h"

#include <stdio.h>

bool gemma_layer_in(const DrafterFile *f, int32_t i_layer) {
    return drafter_file_has_printed(f, GEMMA_POST_FFN_NORM, i_layer);
}

int gemma_layer_read_scale(DrafterFile *f, int32_t i_layer, float *out, fr_error *err) {
    char name[64];
    float *scale;
    if (!drafter_file_has_printed(f, GEMMA_OUT_SCALE, i_layer)) return FR_OK;
    snprintf(name, sizeof name, GEMMA_OUT_SCALE, i_layer);
    int status = drafter_file_vector(f, name, 1, &scale, err);
    if (status) return status;
    *out = *scale;
    mem_free(scale);
    return *out != 0 ? FR_OK
                     : error_set(err, FR_ERR_FORMAT, "%s: layer %d is multiplied by 0", gguf_path(f->gguf), i_layer);
}

int gemma_layer_read(GemmaParts *g, DrafterFile *f, int32_t i_layer, const Hparams *h, LayerSpec *spec, fr_error *err) {
    char name[64];
    if (!gemma_layer_in(f, i_layer)) return FR_OK;
    snprintf(name, sizeof name, GEMMA_POST_ATTN_NORM, i_layer);
    int status = drafter_file_vector(f, name, h->n_embd, &g->post_attn_norm, err);
    snprintf(name, sizeof name, GEMMA_POST_FFN_NORM, i_layer);
    if (!status) status = drafter_file_vector(f, name, h->n_embd, &g->post_ffn_norm, err);
    if (!status) status = gemma_layer_read_scale(f, i_layer, &spec->out_scale, err);
    if (status) return status;
    g->v_norm = mem_alloc((size_t)h->head_dim * sizeof *g->v_norm);
    if (!g->v_norm) return error_memory(err, "a norm of values", (size_t)h->head_dim * sizeof *g->v_norm);
    for (int32_t i = 0; i < h->head_dim; i++) g->v_norm[i] = 1;
    spec->post_attn_norm = g->post_attn_norm;
    spec->post_ffn_norm = g->post_ffn_norm;
    spec->v_norm = g->v_norm;
    spec->activation = ACTIVATION_GELU;
    if (!spec->matrices[MATRIX_V]) spec->matrices[MATRIX_V] = spec->matrices[MATRIX_K];
    return FR_OK;
}

void gemma_layer_close(GemmaParts *g) {
    mem_free(g->post_attn_norm);
    mem_free(g->post_ffn_norm);
    mem_free(g->v_norm);
}
