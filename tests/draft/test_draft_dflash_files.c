/* test_draft_dflash_files.c - files of dflash that do not fit are refused. */
#include "dflash_rig.h"

#include <stdio.h>

#define TARGET "build/dflash-files-target.gguf"
#define BROKEN "build/dflash-broken.gguf"
#define FITS "build/dflash-files-fits.gguf"

static Gguf *target_gguf;
static Weights *target;

static int open_target(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 7);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    return 0;
}

static int close_target(void **state) {
    (void)state;
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* Writes the published file, with a fault if there is one. */
static void write_file(const char *path, void (*spoil)(DflashFile *f, DflashWeights *w)) {
    static DflashWeights w;
    DflashFile f = dflash_files[0];
    w = (DflashWeights){.file = &f};
    dflash_rig_begin(&w, &f, target, 5);
    if (spoil) spoil(&f, &w);
    dflash_rig_set_keys(&f, &w.rig);
    if (f.mask >= 0) dflash_rig_set_mask(&f, &w.rig);
    dflash_rig_add_tensors(&f, &w);
    learned_rig_write(&w.rig, path);
    learned_rig_free(&w.rig);
}

/* Writes the file with that fault, and expects an error with these words. */
static void refuse(void (*spoil)(DflashFile *f, DflashWeights *w), fr_code code, const char *words) {
    write_file(BROKEN, spoil);
    learned_rig_check_refused(target, "dflash:file=" BROKEN, code, words);
}

static void spoil_layer(DflashFile *f, DflashWeights *w) { (void)w, f->streams[1] = 3; }
static void spoil_block(DflashFile *f, DflashWeights *w) { (void)w, f->block = 1; }
static void spoil_mask(DflashFile *f, DflashWeights *w) { (void)w, f->mask = V; }
static void spoil_no_mask(DflashFile *f, DflashWeights *w) { (void)w, f->mask = -1; }
static void spoil_heads(DflashFile *f, DflashWeights *w) { (void)w, f->n_kv = 3; }
static void spoil_width(DflashFile *f, DflashWeights *w) { (void)w, f->H = 48; }
static void spoil_target(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.target_hidden_size", 128);
}
static void spoil_window(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.attention.sliding_window", 512);
}
static void spoil_group(DflashFile *f, DflashWeights *w) { (void)w, f->taps = 2, f->group = 24; }
static void spoil_conv(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.conv_kernel_size", 2);
    gguf_set_u32(w->rig.w, "dflash.conv_group_size", 16);
}
static void spoil_taps(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.conv_group_size", 16);
}
static void spoil_base(DflashFile *f, DflashWeights *w) {
    learned_rig_cube(&w->rig, "blk.0.attn_conv_base", f->H, 3, 2, 1);
    spoil_conv(f, w);
}
static void spoil_selector(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.selector_top_k", 16);
}
static void spoil_tensor(DflashFile *f, DflashWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "blk.0.ffn_gate.bias", TYPE_F32, 80, 0, 1);
}
static void spoil_rank(DflashFile *f, DflashWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 4, V, 1);
}
static void spoil_markov(DflashFile *f, DflashWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_gate.weight", TYPE_F32, 72, 8, 1);
    learned_rig_tensor(&w->rig, "markov_joint.weight", TYPE_F32, 80, 24, 1);
}
static void spoil_confidence(DflashFile *f, DflashWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "markov_w1.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "markov_w2.weight", TYPE_F32, 8, V, 1);
    learned_rig_tensor(&w->rig, "conf_proj.weight", TYPE_F32, 68, 1, 1);
}
static void spoil_narrow(DflashFile *f, DflashWeights *w) {
    (void)f;
    learned_rig_tensor(&w->rig, "conf_proj.weight", TYPE_F32, 72, 1, 1);
}
/* A drafter of DeepSeek V4, whose layers are others and rotate pairs. */
static void spoil_connections(DflashFile *f, DflashWeights *w) {
    (void)f;
    gguf_set_u32(w->rig.w, "dflash.hyper_connection.count", 4);
}
/* Layers of Gemma 4 with a window, whose heads are shorter there. */
static void spoil_swa(DflashFile *f, DflashWeights *w) { (void)w, f->window = 6, f->is_gemma = true; }
static void spoil_scale(DflashFile *f, DflashWeights *w) {
    f->is_gemma = f->has_values = true;
    learned_rig_tensor(&w->rig, "blk.0.layer_output_scale.weight", TYPE_F32, 1, 0, 0);
}
static void spoil_vocabulary(DflashFile *f, DflashWeights *w) {
    (void)f;
    static const GgufString tokens[] = {{"a", 1}, {"b", 1}};
    gguf_set_strings(w->rig.w, "tokenizer.ggml.tokens", tokens, 2);
}

static void files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    refuse(spoil_layer, FR_ERR_FORMAT, "target_layers has 3");
    refuse(spoil_block, FR_ERR_FORMAT, "block_size is 1");
    refuse(spoil_mask, FR_ERR_MISMATCH, "mask token 300");
    refuse(spoil_no_mask, FR_ERR_FORMAT, "mask_token_id is missing");
    refuse(spoil_heads, FR_ERR_FORMAT, "evenly");
    refuse(spoil_width, FR_ERR_FORMAT, "width of 48");
    refuse(spoil_target, FR_ERR_MISMATCH, "hidden states of 128 numbers");
    refuse(spoil_window, FR_ERR_FORMAT, "sliding_window_pattern");
    refuse(spoil_conv, FR_ERR_FORMAT, "blk.0.attn_conv_base is missing");
    refuse(spoil_taps, FR_ERR_FORMAT, "needs both conv_kernel_size and conv_group_size");
    refuse(spoil_group, FR_ERR_FORMAT, "groups of 24 channels");
    refuse(spoil_base, FR_ERR_FORMAT, "64 x 3 x 2 instead of 64 x 2 x 2");
    refuse(spoil_selector, FR_ERR_FORMAT,
           "only one of tensor selector_predecessor.weight and key dflash.selector_top_k");
    refuse(spoil_tensor, FR_ERR_UNSUPPORTED, ", which its method does not read; another version");
    refuse(spoil_rank, FR_ERR_FORMAT, "tensor markov_w2.weight has the wrong shape: 4 x 300 instead of 8 x 300");
    refuse(spoil_markov, FR_ERR_FORMAT, "a Markov head is gated or recurrent");
    refuse(spoil_confidence, FR_ERR_FORMAT, "tensor conf_proj.weight reads 68 numbers instead of 72");
    refuse(spoil_narrow, FR_ERR_FORMAT, "tensor conf_proj.weight reads 72 numbers instead of 64");
    refuse(spoil_connections, FR_ERR_UNSUPPORTED, "hyper_connection.count");
    refuse(spoil_swa, FR_ERR_UNSUPPORTED, "heads or a rope of their own");
    refuse(spoil_scale, FR_ERR_FORMAT, "layer 0 is multiplied by 0");
    refuse(spoil_vocabulary, FR_ERR_MISMATCH, "2 tokens");
    learned_rig_check_refused(target, "dflash:file=" TARGET, FR_ERR_MISMATCH,
                              "or one made by forerun import-drafter dflash");
    write_file(FITS, NULL);
    learned_rig_check_refused(target, "eagle3:file=" FITS, FR_ERR_MISMATCH, "use this one as dflash:file=");
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_that_do_not_fit_are_refused)};
    return cmocka_run_group_tests(tests, open_target, close_target);
}
