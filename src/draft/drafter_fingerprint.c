/* drafter_fingerprint.c - what identifies the target of a drafter.
 *
 * The fingerprint must differ whenever a drafter would be wrong for a target, and cost little at each open. A drafter
 * shares the embedding and the LM head with its target, and nearly all training changes them, so they are hashed whole,
 * at the speed of memory. If a model was trained further with these two frozen, all rows of its layers have changed, so
 * the first bytes of each tensor show it. The hashes of tensors are added up, so that their order in the file does not
 * matter. */
#include "draft/drafter_file.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t hash_of_tensor(const GgufTensor *t) {
    bool whole = strcmp(t->name, "token_embd.weight") == 0 || strcmp(t->name, "output.weight") == 0;
    return gguf_tensor_mark(t, whole);
}

uint64_t drafter_target_fingerprint(const Model *target) {
    const Hparams *h = &target->hparams;
    const double shape[] = {
        h->arch,     h->n_layer,         h->n_embd,     h->n_ff,      h->n_vocab,      h->n_head,     h->n_head_kv,
        h->head_dim, (double)h->rms_eps, h->rope.n_rot, h->rope.base, h->rope.scaling, h->rope.factor};
    uint64_t sum = 0;
    for (int64_t i = 0; i < gguf_n_tensors(target->gguf); i++) sum += hash_of_tensor(gguf_tensor(target->gguf, i));
    return hash64(&sum, sizeof sum, hash64(shape, sizeof shape, 0));
}

const char *drafter_target_quantisation(const Model *target) {
    for (int32_t i = 0; i < target->hparams.n_layer; i++)
        for (int32_t k = 0; k < LAYER_MATRICES; k++) {
            const GgufTensor *t = target->layers[i].matrices[k];
            if (t && t->type != TYPE_F32 && t->type != TYPE_F16 && t->type != TYPE_BF16)
                return tensor_type_info(t->type)->name;
        }
    return NULL;
}

void drafter_target_name(const Model *target, char out[DRAFTER_TEXT_BYTES]) {
    drafter_file_text(target->gguf, "general.name", out);
    if (out[0]) return;
    const char *path = gguf_path(target->gguf), *slash = strrchr(path, '/');
    snprintf(out, DRAFTER_TEXT_BYTES, "%s", slash ? slash + 1 : path);
}

void drafter_target_digits(const Model *target, char out[17]) {
    snprintf(out, 17, "%016" PRIx64, drafter_target_fingerprint(target));
}
