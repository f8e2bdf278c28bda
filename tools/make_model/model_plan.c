/* model_plan.c - what an architecture of make_model's has: questions to its plan. */
#include "make_model.h"

#include <string.h>

bool plan_is(const ModelPlan *plan, const char *list) {
    size_t n = strlen(plan->arch);
    for (const char *at = list; (at = strstr(at, plan->arch)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

bool plan_has_attention(const ModelPlan *p, int64_t layer) {
    if (!plan_is(p, RECURRENT)) return true;
    return p->attention_interval && (layer + 1) % p->attention_interval == 0;
}

bool plan_has_experts(const ModelPlan *p, int64_t layer) {
    if (!p->n_experts || layer < p->n_dense) return false;
    return !p->expert_interval || (layer + 1) % p->expert_interval == 0;
}
