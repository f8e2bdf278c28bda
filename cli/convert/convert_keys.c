/* convert_keys.c - what config.json has of single architectures: the factors of Granite, and the layers of SmolLM3 that do not rotate. */
#include "cli/convert/convert_arch.h"

int convert_granite_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    static const struct {
        const char *from, *to;
    } factors[] = {
        {"embedding_multiplier", "embedding_scale"},
        {"residual_multiplier", "residual_scale"},
        {"logits_scaling", "logit_scale"},
        {"attention_multiplier", "attention.scale"},
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        const json_t *v = json_object_get(c->config, factors[i].from);
        double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 1e-6 && x <= 1e6))
            return error_set(err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from 1e-06 to 1e+06", c->folder,
                             factors[i].from);
        convert_set_real(w, s->arch, factors[i].to, x);
    }
    return FR_OK;
}

/* The file does not say which layers rotate: of four, the last does not. */
int convert_smollm3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *rotates = json_object_get(c->config, "no_rope_layers"), *one; /* 1: it does, despite the name */
    size_t i;
    (void)s, (void)w;
    bool is_usual = true;
    json_array_foreach(rotates, i, one) is_usual = is_usual && (json_integer_value(one) != 0) == (i % 4 != 3);
    const json_t *interval = json_object_get(c->config, "no_rope_layer_interval");
    if (!rotates && interval && json_integer_value(interval) != 4) is_usual = false;
    return is_usual ? FR_OK
                    : (int)error_set(err, FR_ERR_UNSUPPORTED,
                                     "%s/config.json: no_rope_layers names others than each fourth layer, which is not "
                                     "supported",
                                     c->folder);
}
