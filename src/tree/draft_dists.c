/* draft_dists.c - the draws that a drafter declares for its tree, and the check of what it declared.
 *
 * Rows of distributions are allocated when they are first needed and then kept, so that later steps allocate nothing.
 * The check links each draw to the one before it in its group, so that it compares draws within a group only. */
#include "tree/draft_dists.h"

#include "base/mem.h"

DraftDists *draft_dists_new(int32_t n_vocab) {
    fr_assert(n_vocab > 0);
    DraftDists *d = mem_calloc(1, sizeof *d);
    if (d) d->n_vocab = n_vocab;
    return d;
}

void draft_dists_free(DraftDists *d) {
    if (!d) return;
    for (int32_t i = 0; i < d->n_rows_made; i++) mem_free(d->rows[i]);
    mem_free(d);
}

void draft_dists_reset(DraftDists *d) { d->n_draws = d->n_rows = 0; }

float *draft_dists_row(DraftDists *d) {
    if (d->n_rows == TREE_MAX_NODES) return NULL;
    if (d->n_rows == d->n_rows_made) {
        float *row = mem_calloc((size_t)d->n_vocab, sizeof *row);
        if (!row) {
            d->no_memory = true;
            return NULL;
        }
        d->rows[d->n_rows_made++] = row;
    }
    return d->rows[d->n_rows++];
}

bool draft_dists_add(DraftDists *d, int32_t parent, int32_t child, DrawKind kind, const float *q) {
    if (d->n_draws == DRAFT_MAX_DRAWS) return false;
    d->draws[d->n_draws++] = (DistDraw){.parent = parent, .child = child, .kind = kind, .q = q};
    return true;
}

void sibling_group(const Tree *t, int32_t parent, SiblingGroup *out) {
    const DraftDists *d = t->dists;
    out->n = 0;
    for (int32_t i = 0; d && i < d->n_draws; i++)
        if (d->draws[i].parent == parent) out->draws[out->n++] = d->draws[i];
    if (out->n > 0) return;
    for (int32_t i = parent + 1; i < t->n; i++)
        if (t->nodes[i].parent == parent)
            out->draws[out->n++] = (DistDraw){.parent = parent, .child = i, .kind = DRAW_POINT};
}

static int refuse(fr_error *err, int32_t i, const char *what) {
    return error_set(err, FR_ERR_INTERNAL, "draw %d of the drafter's tree %s", i, what);
}

/* Draw i by itself. */
static int check_draw(const DistDraw *draw, const Tree *t, int32_t i, fr_error *err) {
    if (draw->child < 1 || draw->child >= t->n || t->nodes[draw->child].parent != draw->parent)
        return refuse(err, i, "names a child that is not a child of its parent");
    if ((draw->kind == DRAW_POINT) != (draw->q == NULL))
        return refuse(err, i, "is a point with a distribution, or a random draw without one");
    if (draw->q && !(draw->q[t->nodes[draw->child].token] > 0)) return refuse(err, i, "drew a token of probability 0");
    return FR_OK;
}

/* Draw i and an earlier one of its group. */
static int check_pair(const DistDraw *early, const DistDraw *draw, int32_t i, fr_error *err) {
    if (early->kind != draw->kind) return refuse(err, i, "is of another kind than its siblings");
    if (draw->kind == DRAW_IID) return FR_OK;
    if (early->child == draw->child) return refuse(err, i, "drew a token for the second time");
    if (early->q != draw->q) return refuse(err, i, "comes from another distribution than its siblings");
    return FR_OK;
}

int draft_dists_validate(const DraftDists *d, const Tree *t, fr_error *err) {
    bool has_group[TREE_MAX_NODES] = {false}, is_drawn[TREE_MAX_NODES] = {false};
    int32_t last[TREE_MAX_NODES];    /* [parent] its latest draw */
    int32_t before[DRAFT_MAX_DRAWS]; /* [draw] the previous draw of its group, or -1 */
    for (int32_t i = 0; i < d->n_draws; i++) {
        const DistDraw *draw = &d->draws[i];
        int status = check_draw(draw, t, i, err);
        if (status) return status;
        before[i] = has_group[draw->parent] ? last[draw->parent] : -1;
        for (int32_t k = before[i]; k >= 0 && !status; k = before[k]) status = check_pair(&d->draws[k], draw, i, err);
        if (status) return status;
        has_group[draw->parent] = is_drawn[draw->child] = true;
        last[draw->parent] = i;
    }
    for (int32_t i = 1; i < t->n; i++)
        if (has_group[t->nodes[i].parent] && !is_drawn[i])
            return error_set(err, FR_ERR_INTERNAL, "node %d of the drafter's tree has no draw, but its siblings have",
                             i);
    return FR_OK;
}
