/* numeric.c - the names under which users choose types and precisions. */
#include "gguf/numeric.h"

#include <string.h>

static const char *const kv_names[KV_TYPE_COUNT] = {[KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8] = "q8"};
static const char *const act_names[ACT_PRECISION_COUNT] = {[ACT_PRECISION_Q16] = "q16", [ACT_PRECISION_Q8] = "q8"};

const char *kv_type_name(KvType t) { return kv_names[t]; }

const char *act_precision_name(ActPrecision p) { return act_names[p]; }

bool act_precision_from_name(const char *name, ActPrecision *out) {
    int i = ACT_PRECISION_Q16;
    if (name)
        for (i = 0; i < ACT_PRECISION_COUNT && strcmp(name, act_names[i]) != 0;) i++;
    if (i == ACT_PRECISION_COUNT) return false;
    *out = (ActPrecision)i;
    return true;
}
