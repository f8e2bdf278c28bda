/* numeric.c - the names under which users choose types and precisions. */
#include "format/numeric.h"

#include <string.h>

static const char *const kv_names[KV_TYPE_COUNT] = {[KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8] = "q8"};
static const char *const act_names[ACT_PRECISION_COUNT] = {[ACT_PRECISION_Q16] = "q16", [ACT_PRECISION_Q8] = "q8"};

static bool find_name(const char *const *names, int n, const char *name, int *out) {
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

const char *kv_type_name(KvType t) { return kv_names[t]; }

bool kv_type_from_name(const char *name, KvType *out) {
    int i;
    bool found = find_name(kv_names, KV_TYPE_COUNT, name, &i);
    if (found) *out = (KvType)i;
    return found;
}

const char *act_precision_name(ActPrecision p) { return act_names[p]; }

bool act_precision_from_name(const char *name, ActPrecision *out) {
    int i = ACT_PRECISION_Q16;
    bool found = !name || find_name(act_names, ACT_PRECISION_COUNT, name, &i);
    if (found) *out = (ActPrecision)i;
    return found;
}
