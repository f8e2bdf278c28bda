/* synonyms.c - options as llama.cpp and vLLM name them.
 *
 * People who come from these programs type their names from habit. Where an option has the same meaning here, its name
 * is accepted. Where it has none, the error names what does it here, or why it can be left out. */
#include "cli/command.h"

#include <string.h>

#define CPU_ONLY "forerun runs on the CPU only: leave it out"
#define PULL "fetch the model once with 'forerun pull OWNER/NAME', and then pass -m OWNER/NAME"
#define CHAT "'forerun chat -m MODEL' holds a conversation"
#define KV_TYPE "--kv=f16, f32 or q8 sets the type of keys and values"
#define PIECES "prompts are read in pieces of a suitable size: leave it out"
#define DRAFT_LENGTH "it is a key of the drafter here: --draft sps:model=FILE,length=N"
#define SAMPLERS "there is no such sampler here: use --temp, --top-k, --top-p or --min-p"
#define MAPPED "the model's file is always mapped, and its weights are packed in memory: leave it out"
#define ATTENTION "there is only one kind of attention here: leave it out"
#define ROPE "the model's file sets its rope: leave it out"
#define ORDER "samplers have a fixed order: penalties, --temp, --top-k, --top-p, --min-p"
#define NO_LOG "there are no levels of logging: leave it out"
#define CONTINUES "'forerun run -m MODEL' continues a text"
#define SINGLE "'forerun run --chat -p TEXT' answers a single message"
#define ALWAYS_ON "forerun serve always has it: leave it out"
#define NAMED "-m NAME=FILE gives a model its name"

static const Synonym synonyms[] = {
    {"n-predict", .key = "tokens"},
    {"predict", .key = "tokens"},
    {"max-tokens", .key = "tokens"},
    {"max-new-tokens", .key = "tokens"},
    {"temperature", .key = "temp"},
    {"s", .key = "seed"},
    {"ctx-size", .key = "ctx"},
    {"max-model-len", .key = "ctx"},
    {"repeat-last-n", .key = "penalty-last-n"},
    {"system-prompt", .key = "system"},
    {"sys", .key = "system"},
    {"reverse-prompt", .key = "stop"},
    {"r", .key = "stop"},
    {"chat-template-file", .key = "chat-template"},
    {"grammar-file", .key = "grammar"},
    {"json-schema-file", .key = "json-schema"},
    {"jf", .key = "json-schema"},
    {"model-draft", .key = "draft", .prefix = COMMAND_DRAFT_MODEL},
    {"md", .key = "draft", .prefix = COMMAND_DRAFT_MODEL},
    {"speculative-model", .key = "draft", .prefix = COMMAND_DRAFT_MODEL},
    {"np", .key = "parallel"},
    {"max-num-seqs", .key = "parallel"},
    {"j", .key = "json-schema"},
    {"ssl-key-file", .key = "tls-key"},
    {"ssl-cert-file", .key = "tls-cert"},
    {"to", .key = "request-timeout"},
    {"timeout", .key = "request-timeout"},

    {"draft-max", .answer = DRAFT_LENGTH},
    {"draft-n", .answer = DRAFT_LENGTH},
    {"draft-min", .answer = DRAFT_LENGTH},
    {"speculative-config", .answer = "--draft=SPEC names the drafter; 'man forerun' lists them"},
    {"ngl", .answer = CPU_ONLY},
    {"gpu-layers", .answer = CPU_ONLY},
    {"n-gpu-layers", .answer = CPU_ONLY},
    {"ngld", .answer = CPU_ONLY},
    {"gpu-layers-draft", .answer = CPU_ONLY},
    {"main-gpu", .answer = CPU_ONLY},
    {"mg", .answer = CPU_ONLY},
    {"split-mode", .answer = CPU_ONLY},
    {"sm", .answer = CPU_ONLY},
    {"tensor-split", .answer = CPU_ONLY},
    {"ts", .answer = CPU_ONLY},
    {"device", .answer = CPU_ONLY},
    {"dev", .answer = CPU_ONLY},
    {"tensor-parallel-size", .answer = CPU_ONLY},
    {"gpu-memory-utilization", .answer = CPU_ONLY},
    {"hf", .answer = PULL},
    {"hfr", .answer = PULL},
    {"hf-repo", .answer = PULL},
    {"hff", .answer = PULL},
    {"hf-file", .answer = PULL},
    {"i", .answer = CHAT},
    {"interactive", .answer = CHAT},
    {"interactive-first", .answer = CHAT},
    {"cnv", .answer = CHAT},
    {"conversation", .answer = CHAT},
    {"ctk", .answer = KV_TYPE},
    {"ctv", .answer = KV_TYPE},
    {"cache-type-k", .answer = KV_TYPE},
    {"cache-type-v", .answer = KV_TYPE},
    {"b", .answer = PIECES},
    {"ub", .answer = PIECES},
    {"batch-size", .answer = PIECES},
    {"ubatch-size", .answer = PIECES},
    {"tb", .answer = "--threads sets the threads for prompts, too"},
    {"threads-batch", .answer = "--threads sets the threads for prompts, too"},
    {"fa", .answer = ATTENTION},
    {"flash-attn", .answer = ATTENTION},
    {"mlock", .answer = MAPPED},
    {"mmap", .answer = MAPPED},
    {"no-mmap", .answer = MAPPED},
    {"numa", .answer = "--pin keeps each thread on a core of its own"},
    {"jinja", .answer = "chat templates are always run: leave it out"},
    {"e", .answer = "the shell writes escapes: -p $'one\\ntwo'"},
    {"escape", .answer = "the shell writes escapes: -p $'one\\ntwo'"},
    {"no-display-prompt", .answer = "only generated text is printed: leave it out"},
    {"mirostat", .answer = SAMPLERS},
    {"typical", .answer = SAMPLERS},
    {"dynatemp-range", .answer = SAMPLERS},
    {"xtc-probability", .answer = SAMPLERS},
    {"dry-multiplier", .answer = SAMPLERS},
    {"lora", .answer = "LoRA files are not read: merge the adapter into the model"},
    {"cb", .answer = "requests are always batched: leave it out"},
    {"cont-batching", .answer = "requests are always batched: leave it out"},
    {"api-key", .answer = "pass --api-key-file=FILE, or set the variable FORERUN_API_KEY"},
    {"a", .answer = NAMED},
    {"alias", .answer = NAMED},
    {"served-model-name", .answer = NAMED},
    {"no-cnv", .answer = CONTINUES},
    {"no-conversation", .answer = CONTINUES},
    {"st", .answer = SINGLE},
    {"single-turn", .answer = SINGLE},
    {"samplers", .answer = ORDER},
    {"sampler-seq", .answer = ORDER},
    {"sampling-seq", .answer = ORDER},
    {"rope-freq-base", .answer = ROPE},
    {"rope-freq-scale", .answer = ROPE},
    {"rope-scaling", .answer = ROPE},
    {"rope-scale", .answer = ROPE},
    {"keep", .answer = "a text ends where the context is full, and nothing is shifted: leave it out"},
    {"v", .answer = NO_LOG},
    {"verbose", .answer = NO_LOG},
    {"log-disable", .answer = NO_LOG},
    {"log-file", .answer = NO_LOG},
    {"lv", .answer = NO_LOG},
    {"no-warmup", .answer = "there is no warm-up: leave it out"},
    {"mmproj", .answer = "images are not read: leave it out"},
    {"dtype", .answer = "'forerun quantize' writes a model with weights of another type"},
    {"metrics", .answer = ALWAYS_ON},
    {"slots", .answer = ALWAYS_ON},
    {"props", .answer = ALWAYS_ON},
    {"embedding", .answer = ALWAYS_ON},
    {"embeddings", .answer = ALWAYS_ON},
    {"no-webui", .answer = "the page at / is always there, and shows nothing by itself: leave it out"},
    {"threads-http", .answer = "connections need no threads of their own: leave it out"},
    {"reasoning-budget", .answer = "it is a field of the requests to 'forerun serve'"},
};

const Synonym *command_synonym(const char *word, size_t n) {
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (strlen(synonyms[i].word) == n && memcmp(synonyms[i].word, word, n) == 0) return &synonyms[i];
    return NULL;
}
