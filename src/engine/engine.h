/* engine.h - the inside of the opaque types fr_model and fr_engine of forerun.h.
 *
 * Where to start: fr_engine_step, at the end of step.c, is one step on one screen. request.c is the life of one
 * request, engine.c opens and closes, drafter_pool.c keeps the open drafters and request_drafts.c calls them.
 * kv_policy.c decides which request gets KV pages, and prefix_cache.c shares pages between requests; draft_policy.c
 * (with budget_allocator.c) decides how much is drafted.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/arena.h"
#include "engine/draft_policy.h"
#include "engine/drafter_pool.h"
#include "engine/prefix_cache.h"
#include "engine/step.h"
#include "spec/verify/verifier.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct fr_model {
    Gguf *gguf;
    Tokenizer *tokenizer;
    Model *model;
    Weights *weights; /* of the model, resident in its backend */
    ChatFamily chat_family;
    char *name;
};

struct fr_engine {
    const fr_model *model;
    Device *device; /* threads and memory of everything that this engine computes, drafters included */
    Executor *executor;
    VerifyScratch *scratch;
    fr_engine_options options; /* every 0 replaced by its default; no drafts */
    fr_request **requests; /* [max_requests], NULL where free; the request at place i has sequence i of the executor */
    uint64_t n_arrivals;   /* requests opened so far */
    EngineDrafter drafters[ENGINE_MAX_DRAFTERS];
    PrefixCache prefixes;
    DraftPolicy policy;
    EngineStep step;
    Arena arena; /* all arrays of the engine */
};

#endif
