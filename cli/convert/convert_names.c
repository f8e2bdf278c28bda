/* convert_names.c - the names of tensors: the numbers in them, and those of the layer for multi-token prediction.
 *
 * Qwen publishes that layer under "mtp.": a layer with attention as all others, "mtp.layers.0.", and the matrix and the norms
 * around it. A GGUF file has it after the other layers (Nextn in src/model/model.h). */
#include "cli/convert/convert_names.h"

#include <stdio.h>
#include <string.h>

const ConvertTensor convert_nextn_tensors[] = {
    {"mtp.fc.weight", TENSOR_NEXTN_EH_PROJ, false, FORM_SAME},
    {"mtp.pre_fc_norm_embedding.weight", TENSOR_NEXTN_ENORM, false, FORM_SAME},
    {"mtp.pre_fc_norm_hidden.weight", TENSOR_NEXTN_HNORM, false, FORM_SAME},
    {"mtp.norm.weight", TENSOR_NEXTN_HEAD_NORM, false, FORM_SAME},
    {"mtp.embed_tokens.weight", TENSOR_NEXTN_EMBD, true, FORM_SAME},
    {.from = NULL},
};

/* Puts numbers into a name with "%d", as many as there are. */
static void write_name(const char *form, int64_t layer, int64_t expert, char out[CONVERT_MAX_NAME]) {
    enum { LAST = CONVERT_MAX_NAME - 20 };
    int64_t numbers[2] = {layer, expert};
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; *form && n < LAST; form++) {
        bool is_number = i < 2 && form[0] == '%' && form[1] == 'd';
        if (is_number) n += (size_t)snprintf(out + n, CONVERT_MAX_NAME - n, "%lld", (long long)numbers[i++]), form++;
        else out[n++] = *form, out[n] = '\0';
    }
}

void convert_name_from(const ConvertTensor *t, const ConvertShape *s, int64_t layer, int64_t expert,
                       char out[CONVERT_MAX_NAME]) {
    static const char model[] = "model.";
    char form[CONVERT_MAX_NAME];
    bool is_nextn = layer >= s->n_layer && !s->nextn_in_layers && strncmp(t->from, model, sizeof model - 1) == 0;
    if (is_nextn) snprintf(form, sizeof form, "mtp.%s", t->from + sizeof model - 1);
    write_name(is_nextn ? form : t->from, is_nextn ? layer - s->n_layer : layer, expert, out);
}

void convert_name_to(const ConvertTensor *t, int64_t layer, char out[CONVERT_MAX_NAME]) {
    if (tensor_is_of_layer(t->to))
        snprintf(out, CONVERT_MAX_NAME, "blk.%lld.%s", (long long)layer, tensor_table[t->to].name);
    else snprintf(out, CONVERT_MAX_NAME, "%s", tensor_table[t->to].name);
}

bool convert_is_of_experts(const ConvertTensor *t) {
    const char *first = strstr(t->from, "%d");
    return first && strstr(first + 1, "%d");
}

bool convert_is_less_1(const ConvertArch *arch, const char *name) {
    static const char end[] = "norm.weight";
    size_t n = strlen(name);
    bool is_norm = n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0 && !strstr(name, "linear_attn");
    return arch->adds_1_to_norms && (is_norm || strstr(name, "pre_fc_norm"));
}
