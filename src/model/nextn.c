/* nextn.c - reads the layer for multi-token prediction of a model file. It is read when a drafter wants it, and not with the
 * model: a file whose layer is damaged, or was left out while its key stayed, still runs without it. */
#include "model/nextn.h"

#include "model/arch.h"

static int read_nextn(ArchReader *r, int32_t i, void *user) {
    Nextn *n = user;
    const Hparams *h = arch_hparams(r);
    int64_t embd = h->n_embd;
    const float *norm = NULL;
    const GgufTensor *head = NULL;
    int status = arch_matrix(r, i, "nextn.eh_proj.weight", 2 * embd, embd, false, &n->eh_proj);
    if (!status) status = arch_vector(r, i, "nextn.enorm.weight", embd, false, &n->enorm);
    if (!status) status = arch_vector(r, i, "nextn.hnorm.weight", embd, false, &n->hnorm);
    if (!status) status = arch_vector(r, i, "nextn.shared_head_norm.weight", embd, true, &norm);
    if (!status) status = arch_matrix(r, i, "nextn.shared_head_head.weight", embd, h->n_vocab, true, &head);
    if (!status) status = arch_matrix(r, i, "nextn.embed_tokens.weight", embd, h->n_vocab, true, &n->embed_tokens);
    if (norm) n->model.output_norm = norm;
    if (head) n->model.output = head;
    return status ? status : arch_find(h->arch)->layer(r, i, &n->layer);
}

int nextn_open(Nextn *out, const Model *model, fr_error *err) {
    *out = (Nextn){.embed_tokens = NULL};
    if (model->hparams.n_nextn == 0)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s has no layer for multi-token prediction (%s.nextn_predict_layers)", gguf_path(model->gguf),
                         arch_name(model->hparams.arch));
    int status = arch_open_layer(&out->model, model, model->hparams.n_layer, read_nextn, out, err);
    if (status) return status;
    out->model.layers = &out->layer;
    out->model.hparams.n_layer = 1;
    return FR_OK;
}

void nextn_close(Nextn *n) { arch_close_layer(&n->model); }
