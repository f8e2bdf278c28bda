/* study_trees.c - the trees of appendix D.3 of the paper, and the --draft options that make them here. */
#include "research/study.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *rule;
} methods[STUDY_N_METHODS] = {
    {"SD", "chain"},
    {"SpecTr", "k-seq"},
    {"RSD-C", "recursive"},
    {"RSD-S", "recursive"},
    {"RSD-S transport", "transport"},
};

const char *study_method_name(StudyMethod m) { return methods[m].name; }
const char *study_method_rule(StudyMethod m) { return methods[m].rule; }

#define SD(group, shape) \
    { group, STUDY_SD, shape }
#define PATHS(group, shape) \
    {group, STUDY_SPECTR, shape}, {group, STUDY_RSD_S, shape}, { group, STUDY_RSD_S_TRANSPORT, shape }
#define BRANCH(group, shape) \
    { group, STUDY_RSD_C, shape }

static const StudyTree by_length[] = {
    SD(2, "2"),
    PATHS(2, "2x2"),
    PATHS(2, "3x2"),
    BRANCH(2, "2-2"),
    BRANCH(2, "2-1"),
    BRANCH(2, "3-1"),
    SD(3, "3"),
    PATHS(3, "3x3"),
    PATHS(3, "4x3"),
    BRANCH(3, "2-2-2"),
    BRANCH(3, "3-1-1"),
    BRANCH(3, "4-1-1"),
    SD(4, "4"),
    PATHS(4, "5x4"),
    PATHS(4, "7x4"),
    BRANCH(4, "2-2-2-2"),
    BRANCH(4, "5-1-1-1"),
    BRANCH(4, "7-1-1-1"),
    SD(5, "5"),
    PATHS(5, "6x5"),
    PATHS(5, "12x5"),
    BRANCH(5, "2-2-2-2-2"),
    BRANCH(5, "6-1-1-1-1"),
    BRANCH(5, "12-1-1-1-1"),
};

static const StudyTree by_budget[] = {
    SD(6, "6"),
    PATHS(6, "2x3"),
    PATHS(6, "3x2"),
    BRANCH(6, "2-1-1"),
    BRANCH(6, "2-2"),
    BRANCH(6, "3-1"),
    SD(10, "10"),
    PATHS(10, "2x5"),
    PATHS(10, "5x2"),
    BRANCH(10, "2-1-1-1-1"),
    BRANCH(10, "2-2-1"),
    BRANCH(10, "5-1"),
    SD(14, "14"),
    PATHS(14, "2x7"),
    PATHS(14, "7x2"),
    BRANCH(14, "2-1-1-1-1-1"),
    BRANCH(14, "2-2-2"),
    BRANCH(14, "7-1"),
    SD(21, "21"),
    PATHS(21, "3x7"),
    PATHS(21, "7x3"),
    BRANCH(21, "3-1-1-1-1-1"),
    BRANCH(21, "3-2-2"),
    BRANCH(21, "7-1-1"),
    SD(30, "30"),
    PATHS(30, "5x6"),
    PATHS(30, "6x5"),
    BRANCH(30, "2-2-2-2"),
    BRANCH(30, "5-1-1-1-1"),
    BRANCH(30, "6-1-1-1-1"),
};

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))
const StudyPlan study_by_length = {"length", "draft length", by_length, COUNT(by_length)};
const StudyPlan study_by_budget = {"budget", "node budget", by_budget, COUNT(by_budget)};

/* Reads the numbers of a shape; returns their count. */
static int32_t read_shape(const char *shape, int32_t *numbers) {
    int32_t n = 0;
    for (const char *p = shape;; p++) {
        char *end;
        numbers[n++] = (int32_t)strtol(p, &end, 10);
        p = end;
        if (!*p) return n;
    }
}

enum { MAX_NUMBERS = 32 };

int32_t study_tree_depth(const StudyTree *t) {
    int32_t numbers[MAX_NUMBERS], n = read_shape(t->shape, numbers);
    if (t->method == STUDY_SD) return numbers[0];
    return t->method == STUDY_RSD_C ? n : numbers[1];
}

int32_t study_tree_nodes(const StudyTree *t) {
    int32_t numbers[MAX_NUMBERS], n = read_shape(t->shape, numbers);
    if (t->method == STUDY_SD) return numbers[0];
    if (t->method != STUDY_RSD_C) return numbers[0] * numbers[1];
    int32_t level = 1, nodes = 0;
    for (int32_t i = 0; i < n; i++) {
        level *= numbers[i];
        nodes += level;
    }
    return nodes;
}

void study_tree_draft(const StudyTree *t, const char *draft_model, char *out, size_t n_out) {
    int32_t v[MAX_NUMBERS] = {0};
    read_shape(t->shape, v);
    switch (t->method) {
    case STUDY_SD: snprintf(out, n_out, "sps:model=%s,length=%d", draft_model, v[0]); return;
    case STUDY_SPECTR: snprintf(out, n_out, "spectr:model=%s,paths=%d,length=%d", draft_model, v[0], v[1]); return;
    case STUDY_RSD_C: snprintf(out, n_out, "rsd-c:model=%s,branch=%s", draft_model, t->shape); return;
    case STUDY_RSD_S:
    case STUDY_RSD_S_TRANSPORT:
        snprintf(out, n_out, "rsd-s:model=%s,width=%d,depth=%d", draft_model, v[0], v[1]);
        return;
    case STUDY_N_METHODS: fr_assert(t->method < STUDY_N_METHODS);
    }
}
