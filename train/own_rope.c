/* own_rope.c - the layers of a drafter that are not the target's, in the file that a training goes on from: whether the
 * training computes their form, and their rope, which is written to the new file. */
#include "draft/learned/layer_entries.h"
#include "train/nets.h"

#include <stdio.h>
#include <string.h>

/* ---- the form --------------------------------------------------------------------------------------------- */

int own_layers_check(const DrafterFile *f, const Hparams *shape, const char *method, fr_error *err) {
    if (!gemma_layer_in(f, 0) && shape->attn_scale == 0) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: has layers of another form, such as Gemma 4's, which forerun train %s does not support",
                     gguf_path(f->gguf), method);
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

int own_rope_read(Rope *rope, const float **kept, DrafterFile *f, const char *name, const RopeParams *params,
                  Arena *arena, fr_error *err) {
    float *factors = NULL, *copy = NULL;
    int64_t n = params->n_rot / 2;
    *kept = NULL;
    int status = own_rope_open(rope, f, params, name, err);
    if (status || !drafter_file_has(f, name)) return status;
    status = drafter_file_vector(f, name, n, &factors, err);
    if (!status) status = arena_take(arena, (const ArenaItem[]){ARENA_ITEM(&copy, n)}, 1, name, err);
    if (!status) memcpy(copy, factors, (size_t)n * sizeof *copy);
    *kept = copy;
    mem_free(factors);
    return status;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

typedef struct RopeKey {
    char text[80];
} RopeKey;

static RopeKey key_of(const char *prefix, const char *name) {
    RopeKey k;
    snprintf(k.text, sizeof k.text, "%srope.%s", prefix, name);
    return k;
}

static void set_number(GgufWriter *w, const char *prefix, const char *name, double value) {
    gguf_set_f32(w, key_of(prefix, name).text, (float)value);
}

void own_rope_write(GgufWriter *w, const char *prefix, const RopeParams *p, const char *name, const float *factors) {
    bool is_yarn = p->scaling == ROPE_SCALING_YARN;
    const char *type = is_yarn ? "yarn" : "linear";
    gguf_set_u32(w, key_of(prefix, "dimension_count").text, (uint32_t)p->n_rot);
    set_number(w, prefix, "freq_base", p->base);
    if (factors) gguf_add_tensor(w, name, TYPE_F32, 1, (int64_t[]){p->n_rot / 2}, factors);
    if (p->scaling == ROPE_SCALING_NONE) return;
    gguf_set_string(w, key_of(prefix, "scaling.type").text, type, strlen(type));
    set_number(w, prefix, "scaling.factor", p->factor);
    gguf_set_u32(w, key_of(prefix, "scaling.original_context_length").text, (uint32_t)p->n_ctx_orig);
    if (!is_yarn) return;
    set_number(w, prefix, "scaling.yarn_attn_factor", p->magnitude);
    set_number(w, prefix, "scaling.yarn_ext_factor", p->ext_factor);
    set_number(w, prefix, "scaling.yarn_beta_fast", p->beta_fast);
    set_number(w, prefix, "scaling.yarn_beta_slow", p->beta_slow);
}
