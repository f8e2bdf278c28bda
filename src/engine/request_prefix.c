/* request_prefix.c - what the drafters of a request keep of the tokens of its prompt, and take over from other requests.
 *
 * The pages of the target hold its keys. Drafters with a layer or a model of their own have keys of their own for the same
 * tokens (`eagle`, `lyanna`, `sps` and its relatives); those with heads on the last hidden state keep nothing of single
 * tokens (`medusa`, `hydra`, `redrafter`). DrafterClass.take_over hands on either, so that a prompt which another
 * request has read is computed once, by the target and by the drafter.
 *
 * Hidden states are kept nowhere. A drafter that needs them has made an entry of each but the last: the entry of a token
 * needs its hidden state and the token behind it. So a request with such a drafter takes over the tokens whose entries
 * are known, and reads at least one token itself, whose hidden state is then at hand again. That costs one row, where
 * storing the states would add 36 % to the KV cache of TinyLlama 1.1B (8192 bytes to 22,528 bytes a token).
 *
 * A draft model may lag behind the target's sequence, because drafters are fed only when they propose. What it lacks it
 * runs itself; but no more than a chunk of the prompt, so that no other request waits for it. One with a recurrent state can hand on
 * what it holds only at the lengths at which it has the state (DrafterClass.reach). */
#include "engine/request_drafts.h"

#include "engine/engine.h"
#include "engine/request.h"

/* A drafter that can take over n tokens lets the request do so. */
static int32_t limit_of(const fr_request *r, const DrafterClass *class, int32_t n_held) {
    if (!class->observe_prompt) return INT32_MAX;
    if (!class->take_over) return 0;
    if (!class->n_held || n_held == INT32_MAX) return INT32_MAX;
    return class->needs_hidden ? n_held : n_held + r->engine->options.prefill_chunk;
}

/* How many of the first n tokens of a sequence a drafter of r could take over; of another request's own drafter none. */
static int32_t n_held_of(const RequestDraft *d, int32_t sequence, int32_t n) {
    const Drafter *drafter = d->shared->drafter;
    const DrafterClass *class = drafter->class;
    if (!class->n_held || d->shared == &d->own) return 0;
    int32_t n_held = class->n_held(drafter, sequence);
    if (n_held < n) n = n_held;
    return class->reach ? class->reach(drafter, sequence, n) : n;
}

int32_t request_drafts_limit(const fr_request *r, int32_t sequence, int32_t n_equal) {
    int32_t least = INT32_MAX;
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        if (!d->is_active) continue;
        int32_t n = limit_of(r, d->shared->drafter->class, n_held_of(d, sequence, n_equal));
        if (n < least) least = n;
    }
    return least;
}

static bool has_draft(const fr_request *r, const EngineDrafter *shared) {
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++)
        if (d->is_active && d->shared == shared) return true;
    return false;
}

int32_t request_drafts_limit_behind(const fr_request *r, const fr_request *reader) {
    int32_t least = INT32_MAX;
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        if (!d->is_active) continue;
        int32_t n = limit_of(r, d->shared->drafter->class, has_draft(reader, d->shared) ? INT32_MAX : 0);
        if (n < least) least = n;
    }
    return least;
}

void request_drafts_take_over(fr_request *r, int32_t sequence, int32_t n) {
    for (RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        Drafter *drafter = d->shared->drafter;
        const DrafterClass *class = drafter->class;
        if (!d->is_active || !class->take_over) continue;
        int32_t n_held = class->n_held ? n_held_of(d, sequence, n) : n;
        if (!class->n_held || n_held > n_held_of(d, d->sequence, INT32_MAX))
            class->take_over(drafter, sequence, d->sequence, n_held);
    }
}

void request_drafts_keep(const fr_request *r, int32_t sequence, int32_t n, bool same_behind) {
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        Drafter *drafter = d->shared->drafter;
        if (!d->is_active || !drafter->class->n_held || d->shared == &d->own) continue;
        int32_t most = drafter->class->needs_hidden && !same_behind ? n - 1 : n,
                n_held = n_held_of(d, d->sequence, most);
        if (n_held > n_held_of(d, sequence, INT32_MAX))
            drafter->class->take_over(drafter, d->sequence, sequence, n_held);
    }
}
