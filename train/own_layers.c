/* own_layers.c - the layers of a drafter that are not the target's, in the file that a training goes on from: their
 * form and their rope, which are written to the new file. */
#include "draft/learned/layer_entries.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <stdio.h>
#include <string.h>

/* ---- the form --------------------------------------------------------------------------------------------- */

int own_form_read(OwnForm *form, DrafterFile *f, const Hparams *shape, fr_error *err) {
    *form = (OwnForm){.attn_scale = (double)shape->attn_scale, .is_gemma = gemma_layer_in(f, 0)};
    if (!form->is_gemma) return FR_OK;
    form->values_are_keys = !drafter_file_has_printed(f, DFLASH_WEIGHT(DFLASH_ATTN_V), 0);
    int status = FR_OK;
    for (int32_t i = 0; i < shape->n_layer && !status; i++)
        status = gemma_layer_read_scale(f, i, &form->out_scales[i], err);
    return status;
}

static void set_name_of_scale(char name[64], int32_t layer) { snprintf(name, 64, GEMMA_OUT_SCALE, layer); }

void own_form_write(GgufWriter *w, const char *prefix, const OwnForm *form, int32_t n_layer) {
    char name[64];
    snprintf(name, sizeof name, "%sattention.scale", prefix);
    if (form->attn_scale > 0) gguf_set_f32(w, name, (float)form->attn_scale);
    for (int32_t i = 0; i < n_layer; i++) {
        set_name_of_scale(name, i);
        if (form->out_scales[i] != 0) gguf_add_tensor(w, name, TYPE_F32, 1, (int64_t[]){1}, &form->out_scales[i]);
    }
}

bool own_form_keeps(const OwnForm *form, int32_t n_layer, const char *name) {
    char own[64];
    for (int32_t i = 0; i < n_layer; i++) {
        set_name_of_scale(own, i);
        if (form->out_scales[i] != 0 && strcmp(name, own) == 0) return true;
    }
    return false;
}

/* ---- the rope, reading ------------------------------------------------------------------------------------ */

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

/* ---- the rope, writing ------------------------------------------------------------------------------------ */

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
