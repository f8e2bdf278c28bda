/* nextn.c - reads a layer for multi-token prediction (Nextn in model.h) from the model's own file or a companion. */
#include "model/model.h"

#include "base/error.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "model/model_reader.h"

#include <stdio.h>
#include <string.h>

/* A layer is read only when a drafter wants it, so that a model still runs if the layer is damaged, or is missing
 * although the file has its key. */
static int read_nextn(ArchReader *r, int32_t i, Nextn *n) {
    const float *norm = NULL;
    const GgufTensor *head = NULL;
    int status = arch_tensor(r, i, TENSOR_NEXTN_EH_PROJ, false, &n->eh_proj);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_ENORM, false, &n->enorm);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_HNORM, false, &n->hnorm);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_HEAD_NORM, true, &norm);
    if (!status) status = arch_tensor(r, i, TENSOR_NEXTN_HEAD, true, &head);
    if (!status) status = arch_tensor(r, i, TENSOR_NEXTN_EMBD, true, &n->embed_tokens);
    if (norm) n->model.output_norm = norm;
    if (head) n->model.output = head, n->model.output_bias = NULL;
    return status ? status : model_read_layer(r, i, &n->layer);
}

/* Refuses the layer if one of its tensors was not taken or is not finite. Nothing checks these tensors later. */
static int check_nextn(const ArchReader *r, int32_t i_layer) {
    TensorName prefix;
    snprintf(prefix.text, sizeof prefix.text, "blk.%d.", i_layer);
    for (int64_t i = 0; i < gguf_n_tensors(r->m->gguf); i++) {
        const GgufTensor *t = gguf_tensor(r->m->gguf, i);
        if (strncmp(t->name, prefix.text, strlen(prefix.text)) != 0) continue;
        if (!r->taken[i]) return model_reader_refuse(r, t);
        int64_t n = t->dims[0] * t->dims[1] * t->dims[2];
        if (!finite_weights(t->type, t->data, n)) return model_refuse_not_finite(r->m, t, r->err);
    }
    return FR_OK;
}

/* Reads the shape from a companion file, and compares it with the model's. */
static int read_companion(const Model *model, const Gguf *companion, Hparams *out, fr_error *err) {
    int status = hparams_read(out, companion, err);
    if (status) return status;
    const Hparams *a = out, *b = &model->hparams;
    const struct {
        const char *name;
        double of_file, of_model;
    } numbers[] = {{"layers before that for multi-token prediction", a->n_layer, b->n_layer},
                   {"numbers in an embedding", a->n_embd, b->n_embd},
                   {"tokens", a->n_vocab, b->n_vocab},
                   {"heads", a->n_head, b->n_head},
                   {"KV heads", a->n_head_kv, b->n_head_kv},
                   {"numbers in a head", a->head_dim, b->head_dim},
                   {"rotated numbers in a head", a->rope.n_rot, b->rope.n_rot},
                   {"as the base of rope", a->rope.base, b->rope.base},
                   {"experts", a->n_expert, b->n_expert}};
    if (a->arch != b->arch)
        return error_set(err, FR_ERR_MISMATCH, "%s has the architecture %s, but its target %s has %s",
                         gguf_path(companion), arch_name(a->arch), gguf_path(model->gguf), arch_name(b->arch));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].of_file != numbers[i].of_model)
            return error_set(
                err, FR_ERR_MISMATCH, "%s belongs to another model: it has %g %s, but the target %s has %g",
                gguf_path(companion), numbers[i].of_file, numbers[i].name, gguf_path(model->gguf), numbers[i].of_model);
    return FR_OK;
}

/* The model of the layer is a copy of the whole model with other layers, and owns only what was read for it. */
int nextn_open(Nextn *out, const Model *model, const Gguf *companion, int32_t index, fr_error *err) {
    const Gguf *g = companion ? companion : model->gguf;
    *out = (Nextn){.model = *model};
    out->model.layers = NULL, out->model.memory = NULL;
    out->model.gguf = g;
    int status = companion ? read_companion(model, companion, &out->model.hparams, err) : FR_OK;
    if (status) return status;
    if (index >= out->model.hparams.n_nextn)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s has no layer for multi-token prediction (%s.nextn_predict_layers)", gguf_path(g),
                         arch_name(model->hparams.arch));
    ArchReader r = {.m = &out->model, .of_layer = out->model.hparams, .err = err};
    int32_t i_layer = out->model.hparams.n_layer + index;
    status = model_reader_open(&r, (size_t)gguf_n_tensors(g));
    if (!status) status = read_nextn(&r, i_layer, out);
    if (!status) status = check_nextn(&r, i_layer);
    mem_free(r.taken);
    if (status) {
        nextn_close(out);
        return status;
    }
    out->model.layers = &out->layer;
    out->model.hparams.n_layer = 1;
    return FR_OK;
}

void nextn_close(Nextn *n) {
    model_memory_free(n->model.memory);
    n->model.memory = NULL;
}
