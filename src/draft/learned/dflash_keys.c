/* dflash_keys.c - the keys of files of dflash (learned_files.h has their list), which the drafter and its training
 * read: those of llama.cpp's architecture dflash, of the older dflash-draft and Lucebox's qwen35-dflash-draft, which
 * have other names and count layers from the output of layer 0, and of forerun's own files. Proof:
 * tests/draft/test_draft_dflash.c. */
#include "draft/learned/layer_entries.h"
#include "draft/feedback.h"
#include "draft/learned/learned_files.h"
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

#define OLD "dflash." /* before some keys of files of the architectures that end with dflash-draft */

/* Returns the first of these names that the file has as a key, or the first name. */
static const char *key_named(KeyReader *r, const char *const names[3]) {
    for (int i = 0; i < 3; i++)
        if (names[i] && key_index(r, names[i]) >= 0) return names[i];
    return names[0];
}

static void read_mask(KeyReader *r, DflashKeys *k) {
    const char *name = key_named(r, (const char *const[]){DFLASH_KEY_MASK, OLD DFLASH_KEY_MASK, NULL});
    int64_t of_vocabulary = -1;
    if (gguf_get_i64(k->file->gguf, DFLASH_VOCABULARY_MASK, &of_vocabulary) && key_index(r, name) < 0) {
        if (of_vocabulary < 0 || of_vocabulary >= k->target->hparams.n_vocab)
            key_fail(r, FR_ERR_MISMATCH,
                     "its mask token %lld is not a token of the target; run the target that it was "
                     "trained for",
                     (long long)of_vocabulary);
        k->mask = (int32_t)of_vocabulary;
        return;
    }
    k->mask = key_int(r, name, -1, 0, k->target->hparams.n_vocab - 1);
}

static void read_windows(KeyReader *r, DflashKeys *k, int32_t n_layer) {
    k->window = key_int(r, DFLASH_KEY_WINDOW, 0, 0, 1 << 28);
    bool is_list = key_is_list(r, DFLASH_KEY_WINDOW_PATTERN);
    if (is_list) key_check_list(r, DFLASH_KEY_WINDOW_PATTERN, n_layer, 0, 1);
    if (k->window > 0 && !is_list)
        key_fail(r, FR_ERR_FORMAT, "has a window but no list %s that says which layers have it",
                 DFLASH_KEY_WINDOW_PATTERN);
    for (int32_t i = 0; i < n_layer && i < DFLASH_MAX_LAYERS && k->window > 0; i++)
        k->has_window[i] = key_number_of_layer(r, DFLASH_KEY_WINDOW_PATTERN, i, 0) != 0;
}

/* Reads the keys that llama.cpp writes for layers of Gemma 4, which have heads and a rope of their own where they have
 * a window. Here all layers share them. */
static void read_gemma(KeyReader *r, const DflashKeys *k) {
    const Hparams *h = k->shape;
    int32_t head_dim = key_int(r, "attention.key_length_swa", h->head_dim, 1, 1 << 12),
            value_dim = key_int(r, "attention.value_length_swa", head_dim, 1, 1 << 12),
            n_rot = key_int(r, "rope.dimension_count_swa", h->rope.n_rot, 0, 1 << 12);
    double base = key_float(r, "rope.freq_base_swa", h->rope.base, 1, 1e12);
    key_int(r, "attention.shared_kv_layers", 0, 0, 0);
    key_int(r, "embedding_length_per_layer_input", 0, 0, 0);
    if (k->window > 0 &&
        (head_dim != h->head_dim || value_dim != head_dim || n_rot != h->rope.n_rot || base != h->rope.base))
        key_fail(r, FR_ERR_UNSUPPORTED,
                 "layers with a window that have heads or a rope of their own are not supported");
}

/* Reads the keys of DFlash 2. The rank of the selector is that of its tensors. */
static void read_selection(KeyReader *r, DflashKeys *k) {
    k->conv_taps = key_int(r, DFLASH_KEY_CONV_TAPS, 0, 0, DFLASH_MAX_SLOTS);
    k->conv_group = key_int(r, DFLASH_KEY_CONV_GROUP, k->conv_taps ? 1 : 0, 0, 1 << 16);
    if ((k->conv_taps == 0) != (k->conv_group == 0))
        key_fail(r, FR_ERR_FORMAT, "needs both %s and %s, or neither", DFLASH_KEY_CONV_TAPS, DFLASH_KEY_CONV_GROUP);
    key_index(r, DFLASH_KEY_SELECTOR_RANK);
    k->selector_top = key_int(r, DFLASH_KEY_SELECTOR_TOP, 0, 0, TOP_K_MAX);
}

/* Reads the factors around the layers. llama.cpp writes 0 for no factor. */
static void read_scales(KeyReader *r, DflashKeys *k) {
    float scale = k->file->names_target ? k->target->hparams.embedding_scale : 1;
    k->embedding_scale = (float)key_float(r, DFLASH_KEY_EMBEDDING_SCALE, (double)scale, 0, 1e6);
    if (k->embedding_scale == 0) k->embedding_scale = 1;
    k->logit_scale = (float)key_float(r, DFLASH_KEY_LOGIT_SCALE, 0, 0, 1e6);
    bool has_cap = key_index(r, DFLASH_KEY_LOGIT_CAP) >= 0;
    k->logit_cap = has_cap ? (float)key_float(r, DFLASH_KEY_LOGIT_CAP, 0, 0, 1e6) : -1;
}

static void read_keys(KeyReader *r, void *user) {
    DflashKeys *k = user;
    const char *list = key_named(r,
                                 (const char *const[]){DFLASH_KEY_LAYERS, "target_layer_ids", OLD "target_layer_ids"});
    stream_width_check(r, k->target, DFLASH_KEY_TARGET_WIDTH);
    stream_list_read(r, k->file->gguf, k->target, list, DFLASH_KEY_LAYERS, strcmp(list, DFLASH_KEY_LAYERS) != 0,
                     &k->streams);
    k->block = key_int(r, key_named(r, (const char *const[]){DFLASH_KEY_BLOCK, OLD DFLASH_KEY_BLOCK, NULL}), -1, 2,
                       DFLASH_MAX_SLOTS);
    read_mask(r, k);
    k->is_causal = key_bool(r, DFLASH_KEY_CAUSAL, false);
    k->windows_are_causal = key_bool(r, DFLASH_KEY_CAUSAL_WINDOW, false);
    k->from_anchor = key_bool(r, DFLASH_KEY_FROM_ANCHOR, drafter_file_has(k->file, DFLASH_MARKOV_BEFORE));
    read_windows(r, k, key_int(r, "block_count", -1, 1, DFLASH_MAX_LAYERS));
    read_gemma(r, k);
    read_selection(r, k);
    read_scales(r, k);
    key_index(r, "has_confidence_head");   /* its tensors tell */
    key_index(r, OLD "n_target_features"); /* it follows from the list of layers */
    key_index(r, "n_target_features");
    key_index(r, OLD "n_target_layers");
}

int dflash_read_keys(Hparams *h, DflashKeys *k, const DrafterFile *f, const Model *target, fr_error *err) {
    GgufString architecture = {"dflash", strlen("dflash")};
    char prefix[64];
    *k = (DflashKeys){.file = f, .target = target, .shape = h};
    if (!f->names_target) gguf_get_string(f->gguf, "general.architecture", &architecture);
    snprintf(prefix, sizeof prefix, "%s%.*s", drafter_file_prefix(f), (int)architecture.n, architecture.data);
    int status = hparams_read_drafter(h, f->gguf, prefix, read_keys, k, err);
    h->rope.style = ROPE_HALVES;
    return status;
}
