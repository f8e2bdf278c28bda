#include "spec/tree/draft_dists.h"

#include "base/mem.h"

DraftDists *draft_dists_new(int32_t n_vocab) {
    fr_assert(n_vocab > 0);
    DraftDists *l = mem_calloc(1, sizeof *l);
    if (l) l->n_vocab = n_vocab;
    return l;
}

void draft_dists_free(DraftDists *l) {
    if (!l) return;
    for (int32_t i = 0; i < l->n_rows_made; i++) mem_free(l->rows[i]);
    mem_free(l);
}

void draft_dists_reset(DraftDists *l) { l->n_draws = l->n_rows = 0; }

float *draft_dists_row(DraftDists *l) {
    if (l->n_rows == TREE_MAX_NODES) return NULL;
    if (l->n_rows == l->n_rows_made) {
        float *row = mem_calloc((size_t)l->n_vocab, sizeof *row);
        if (!row) return NULL;
        l->rows[l->n_rows_made++] = row;
    }
    return l->rows[l->n_rows++];
}

bool draft_dists_add(DraftDists *l, int32_t parent, int32_t child, DrawKind kind, const float *q) {
    if (l->n_draws == DRAFT_MAX_DRAWS) return false;
    l->draws[l->n_draws++] = (DistDraw){.parent = parent, .child = child, .kind = kind, .q = q};
    return true;
}

void sibling_group(const Tree *t, int32_t parent, SiblingGroup *out) {
    const DraftDists *l = t->dists;
    out->n = 0;
    for (int32_t i = 0; l && i < l->n_draws; i++)
        if (l->draws[i].parent == parent) out->draws[out->n++] = l->draws[i];
    if (out->n > 0) return;
    for (int32_t i = parent + 1; i < t->n; i++)
        if (t->nodes[i].parent == parent) out->draws[out->n++] = (DistDraw){.parent = parent, .child = i, .kind = DRAW_POINT};
}

static int refuse(fr_error *err, int32_t i, const char *what) {
    return error_set(err, FR_ERR_INTERNAL, "draw %d of the drafter's tree %s", i, what);
}

/* The draw i by itself. */
static int check_draw(const DraftDists *l, const Tree *t, int32_t i, fr_error *err) {
    const DistDraw *d = &l->draws[i];
    if (d->child < 1 || d->child >= t->n || t->nodes[d->child].parent != d->parent)
        return refuse(err, i, "names a child that does not stand below its parent");
    if ((d->kind == DRAW_POINT) != (d->q == NULL)) return refuse(err, i, "has a distribution where it is a point, or none");
    if (d->q && !(d->q[t->nodes[d->child].token] > 0)) return refuse(err, i, "took a token of no chance");
    return FR_OK;
}

/* The draw i beside an earlier one of its group. */
static int check_pair(const DistDraw *early, const DistDraw *d, int32_t i, fr_error *err) {
    if (early->kind != d->kind) return refuse(err, i, "is of another kind than its siblings");
    if (d->kind == DRAW_IID) return FR_OK;
    if (early->child == d->child) return refuse(err, i, "took a token for the second time");
    if (early->q != d->q) return refuse(err, i, "comes from another distribution than its siblings");
    return FR_OK;
}

int draft_dists_validate(const DraftDists *l, const Tree *t, fr_error *err) {
    bool has_group[TREE_MAX_NODES] = {false}, is_drawn[TREE_MAX_NODES] = {false};
    int32_t last[TREE_MAX_NODES]; /* of each parent: its latest draw */
    int32_t before[DRAFT_MAX_DRAWS]; /* of each draw: the one before in its group, or -1 */
    for (int32_t i = 0; i < l->n_draws; i++) {
        const DistDraw *d = &l->draws[i];
        int status = check_draw(l, t, i, err);
        if (status) return status;
        before[i] = has_group[d->parent] ? last[d->parent] : -1;
        for (int32_t k = before[i]; k >= 0 && !status; k = before[k]) status = check_pair(&l->draws[k], d, i, err);
        if (status) return status;
        has_group[d->parent] = is_drawn[d->child] = true;
        last[d->parent] = i;
    }
    for (int32_t i = 1; i < t->n; i++)
        if (has_group[t->nodes[i].parent] && !is_drawn[i])
            return error_set(err, FR_ERR_INTERNAL, "node %d of the drafter's tree was never drawn, but its siblings were", i);
    return FR_OK;
}
