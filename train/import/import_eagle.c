/* import_eagle.c - EAGLE-1 and EAGLE-2 as SafeAILab publishes them (model/cnets.py, later cnets1.py, of their
 * repository).
 *
 *     embed_tokens.weight                       the target's embedding: checked, not copied
 *     fc.weight [H][2H], fc.bias [H]            embedding first, then the hidden state, as in our files; some have no bias
 *     layers.0.self_attn.{q,k,v,o}_proj.weight  q and k in rotated halves; made into pairs where the target rotates pairs
 *     layers.0.post_attention_layernorm.weight  the norm before the MLP; there is none before attention
 *     layers.0.mlp.{gate,up,down}_proj.weight
 *
 * EAGLE-3, which reads hidden states of three layers and has a vocabulary of its own, is another method. It is
 * recognised by its tensors and refused. */
#include "train/import/import.h"

#include "draft/learned/eagle.h"

static int refuse_eagle3(const Import *x, fr_error *err) {
    const SafeTensor *fc = published_find(x->from, "fc.weight");
    if (!published_find(x->from, "d2t") && !published_find(x->from, "midlayer.self_attn.q_proj.weight") &&
        !(fc && fc->dims[1] == 3 * (int64_t)x->target->hparams.n_embd))
        return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: is an EAGLE-3 drafter, which cannot be imported; only EAGLE-1 and EAGLE-2 can",
                     published_path(x->from));
}

/* The drafter takes its head counts and rope from the target; the shape of a matrix does not show how many heads it
 * has. */
static int check_heads(const Import *x, fr_error *err) {
    const Hparams *h = &x->target->hparams;
    const struct {
        const char *key;
        int32_t is;
    } counts[] = {{"num_attention_heads", h->n_head}, {"num_key_value_heads", h->n_head_kv}};
    for (int i = 0; i < 2; i++) {
        int64_t n = counts[i].is;
        if (published_config(x->from, counts[i].key, &n) && n != counts[i].is)
            return error_set(
                err, FR_ERR_MISMATCH,
                "%s: its config.json has %lld for %s, the target %d; the drafter was trained for another target",
                published_path(x->from), (long long)n, counts[i].key, counts[i].is);
    }
    if (h->rope.style != ROPE_PAIRS || h->rope.n_rot == h->head_dim) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: the target rotates only %d of the %d components of a head; importing a layer for such a "
                     "target is not supported",
                     published_path(x->from), h->rope.n_rot, h->head_dim);
}

int import_plan_eagle(Import *x, fr_error *err) {
    const Hparams *h = &x->target->hparams;
    const SafeTensor *gate = published_find(x->from, "layers.0.mlp.gate_proj.weight");
    int64_t embd = h->n_embd, q = hparams_q_dim(h), kv = hparams_kv_dim(h), ff = gate ? gate->dims[0] : 0;
    int status = refuse_eagle3(x, err);
    if (!status) status = check_heads(x, err);
    if (!status) status = import_check_embedding(x, "embed_tokens.weight", err);
    if (status) return status;
    ImportRows paired = h->rope.style == ROPE_PAIRS ? IMPORT_ROWS_PAIRED : IMPORT_ROWS_SAME;
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
        ImportRows rows;
    } tensors[] = {
        {EAGLE_FC ".weight", "fc.weight", 2 * embd, embd, 0},
        {EAGLE_ATTN_Q, "layers.0.self_attn.q_proj.weight", embd, q, paired},
        {EAGLE_ATTN_K, "layers.0.self_attn.k_proj.weight", embd, kv, paired},
        {EAGLE_ATTN_V, "layers.0.self_attn.v_proj.weight", embd, kv, 0},
        {EAGLE_ATTN_OUTPUT, "layers.0.self_attn.o_proj.weight", q, embd, 0},
        {EAGLE_FFN_NORM, "layers.0.post_attention_layernorm.weight", embd, 0, 0},
        {EAGLE_FFN_GATE, "layers.0.mlp.gate_proj.weight", embd, ff, 0},
        {EAGLE_FFN_UP, "layers.0.mlp.up_proj.weight", embd, ff, 0},
        {EAGLE_FFN_DOWN, "layers.0.mlp.down_proj.weight", ff, embd, 0},
    };
    import_set_int(x, EAGLE_KEY_FEED_FORWARD, ff);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && !status; i++) {
        ImportTensor *t;
        status = import_add(x, tensors[i].name, tensors[i].from, tensors[i].n_in, tensors[i].n_out, &t, err);
        if (!status) t->rows = tensors[i].rows;
    }
    if (status) return status;
    bool has_bias = published_find(x->from, "fc.bias") != NULL;
    return has_bias ? import_add(x, EAGLE_FC ".bias", "fc.bias", embd, 0, NULL, err)
                    : import_add_zeros(x, EAGLE_FC ".bias", embd, err);
}
