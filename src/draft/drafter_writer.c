/* drafter_writer.c - begins the files that training writes: the keys of the method, of the target and of the training;
 * and reads from such a file which records it was trained on. */
#include "draft/drafter_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void set_text(GgufWriter *w, const char *key, const char *text) {
    if (text) gguf_set_string(w, key, text, strlen(text));
}

static void set_training(GgufWriter *w, const DrafterTraining *t) {
    set_text(w, DRAFTER_KEY("training.command"), t->command);
    set_text(w, DRAFTER_KEY("training.data"), t->data);
    if (t->n_steps) gguf_set_u64(w, DRAFTER_KEY("training.steps"), t->n_steps);
    if (t->n_tokens) gguf_set_u64(w, DRAFTER_KEY("training.tokens"), t->n_tokens);
    if (t->n_steps) gguf_set_u64(w, DRAFTER_KEY("training.seed"), t->seed);
    if (t->loss > 0) gguf_set_f32(w, DRAFTER_KEY("training.loss"), (float)t->loss);
    set_text(w, DRAFTER_KEY("training.precision"), t->precision);
    if (t->traffic.n_lines == 0) return;
    char digits[17];
    snprintf(digits, sizeof digits, "%016" PRIx64, t->traffic.hash);
    gguf_set_u64(w, DRAFTER_KEY("training.traffic.lines"), t->traffic.n_lines);
    set_text(w, DRAFTER_KEY("training.traffic.hash"), digits);
}

static GgufWriter *open_writer(const char *architecture, const char *method, const Model *target,
                               const DrafterTraining *training) {
    GgufWriter *w = gguf_writer_new();
    if (!w) return NULL;
    char target_name[DRAFTER_TEXT_BYTES], print[17], name[DRAFTER_TEXT_BYTES + 64];
    drafter_target_name(target, target_name);
    drafter_target_digits(target, print);
    snprintf(name, sizeof name, "%s for %s", method, target_name);
    set_text(w, "general.architecture", architecture);
    set_text(w, "general.name", name);
    set_text(w, DRAFTER_KEY("method"), method);
    set_text(w, DRAFTER_KEY("target.name"), target_name);
    set_text(w, DRAFTER_KEY("target.fingerprint"), print);
    gguf_set_u32(w, DRAFTER_KEY("target.embedding_length"), (uint32_t)target->hparams.n_embd);
    gguf_set_u32(w, DRAFTER_KEY("target.vocabulary_size"), (uint32_t)target->hparams.n_vocab);
    if (training) set_training(w, training);
    return w;
}

GgufWriter *drafter_file_writer(const char *method, const Model *target, const DrafterTraining *training) {
    return open_writer(DRAFTER_ARCHITECTURE, method, target, training);
}

GgufWriter *drafter_file_companion_writer(const char *method, const Model *target, const DrafterTraining *training) {
    const char *name = arch_name(target->hparams.arch);
    char prefix[64], n_layers[96], n_nextn[96];
    snprintf(prefix, sizeof prefix, "%s.", name);
    snprintf(n_layers, sizeof n_layers, "%s.block_count", name);
    snprintf(n_nextn, sizeof n_nextn, "%s.nextn_predict_layers", name);
    GgufWriter *w = open_writer(name, method, target, training);
    for (int64_t i = 0; w && i < gguf_n_kv(target->gguf); i++) {
        const char *key = gguf_key(target->gguf, i);
        bool is_shape = strncmp(key, prefix, strlen(prefix)) == 0 && strcmp(key, n_layers) != 0 &&
                        strcmp(key, n_nextn) != 0;
        if (is_shape || strncmp(key, "tokenizer.", strlen("tokenizer.")) == 0) gguf_copy_kv(w, target->gguf, i);
    }
    return w;
}

GgufWriter *drafter_file_published_writer(const char *method, const Model *target, const DrafterTraining *training) {
    static const char prefix[] = "tokenizer.";
    GgufWriter *w = open_writer(method, method, target, training);
    for (int64_t i = 0; w && i < gguf_n_kv(target->gguf); i++)
        if (strncmp(gguf_key(target->gguf, i), prefix, sizeof prefix - 1) == 0) gguf_copy_kv(w, target->gguf, i);
    return w;
}

void drafter_file_get_traffic(const Gguf *g, const char *method, uint64_t target, DrafterTraffic *out) {
    char is[DRAFTER_TEXT_BYTES], digits[DRAFTER_TEXT_BYTES], print[17];
    int64_t n_lines;
    unsigned long long hash;
    *out = (DrafterTraffic){0};
    snprintf(print, sizeof print, "%016" PRIx64, target);
    drafter_file_text(g, DRAFTER_KEY("method"), is);
    drafter_file_text(g, DRAFTER_KEY("target.fingerprint"), digits);
    if (strcmp(is, method) != 0 || strcmp(digits, print) != 0) return;
    drafter_file_text(g, DRAFTER_KEY("training.traffic.hash"), digits);
    if (!gguf_get_i64(g, DRAFTER_KEY("training.traffic.lines"), &n_lines) || n_lines < 1) return;
    if (strlen(digits) != 16 || sscanf(digits, "%16llx", &hash) != 1) return;
    *out = (DrafterTraffic){(uint64_t)n_lines, hash};
}
