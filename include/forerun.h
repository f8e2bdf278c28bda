/* forerun.h - the public C API of libforerun: run language models from GGUF files faster than one
 * token at a time, with not one token changed.
 *
 * The library never exits, never prints and never reads the environment. Every fallible function
 * returns FR_OK (0) or a negative fr_code and, where the caller passes one, fills an fr_error with one
 * sentence that names what went wrong, where, and the remedy.
 */
#ifndef FORERUN_H
#define FORERUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FR_API __attribute__((visibility("default")))

typedef enum fr_code {
    FR_OK = 0,
    FR_ERR_ARGUMENT = -1,    /* the caller asked for something that makes no sense */
    FR_ERR_IO = -2,          /* a file could not be opened, read or written */
    FR_ERR_FORMAT = -3,      /* a file is damaged or hostile */
    FR_ERR_UNSUPPORTED = -4, /* a file is sound but of a kind forerun does not run */
    FR_ERR_MEMORY = -5,      /* memory or KV pages ran out */
    FR_ERR_CONTEXT = -6,     /* the text is longer than the context */
    FR_ERR_MISMATCH = -7,    /* two files do not belong together (a drafter for another target) */
    FR_ERR_CANCELLED = -8,   /* the caller's callback asked to stop */
    FR_ERR_INTERNAL = -9,    /* a broken invariant: a bug in forerun */
} fr_code;

/* Filled by a failing call; untouched by a succeeding one. The caller owns it (usually on its stack). */
typedef struct fr_error {
    fr_code code;
    char message[508];
} fr_error;

FR_API const char *fr_version(void);
/* Frees what a function of this header handed out as "malloc'ed". NULL is fine. */
FR_API void fr_free(void *p);

/* ---- model: immutable, shared by any number of engines and threads ------------------------------- */

typedef struct fr_model fr_model;

typedef struct fr_model_options {
    const char *backend; /* NULL or "cpu"; "reference": double precision on one thread, slow, to compare with */
    const char *kernels; /* NULL or "auto": the best this CPU has; else "ref", "avx2", "neon", ... */
    const char *activations; /* what inputs of quantised weights are rounded to: NULL or "q16": 16-bit integers;
                              * "q8": 8 bits, faster with many rows; logits are then 1.6-2.7 % (rms) off. Either way
                              * drafting changes nothing */
    int n_threads;       /* for loading; 0: all cores */
    void (*progress)(void *user, double part); /* optional; part goes from 0 to 1 */
    void *progress_user;
} fr_model_options;

typedef struct fr_model_info {
    const char *name;         /* general.name of the file, or its path */
    const char *architecture; /* "llama", "qwen2", "qwen3" */
    const char *backend;      /* "cpu" or "reference" */
    const char *kernels;      /* name of the kernel table in use */
    const char *activations;  /* "q16" or "q8", for its quantised weights */
    const char *chat_family;  /* "none" where the file's template is not recognised */
    int32_t n_vocab, n_layer, n_embd, n_ctx_train;
    size_t weight_bytes;      /* what one forward reads */
} fr_model_info;

/* Maps and repacks a GGUF file. options may be NULL. */
FR_API int fr_model_open(fr_model **out, const char *path, const fr_model_options *options, fr_error *err);
/* After every engine over it is closed. NULL is fine. */
FR_API void fr_model_close(fr_model *model);
/* Strings belong to the model. */
FR_API void fr_model_get_info(const fr_model *model, fr_model_info *out);

enum {
    FR_TOKENIZE_BOS = 1,     /* begin with BOS, where the vocabulary has one */
    FR_TOKENIZE_EOS = 2,
    FR_TOKENIZE_SPECIAL = 4, /* spellings of special tokens become these tokens */
    FR_TOKENIZE_PROMPT = 8,  /* add BOS and EOS as the file asks for prompts */
};

/* *tokens is malloc'ed (NULL for none). */
FR_API int fr_tokenize(const fr_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                       int64_t *n_tokens, fr_error *err);
/* *text is malloc'ed and ends with '\0'; broken characters become U+FFFD. */
FR_API int fr_detokenize(const fr_model *model, const int32_t *tokens, int64_t n_tokens, char **text,
                         size_t *n_bytes, fr_error *err);

typedef struct fr_chat_message {
    const char *role, *content; /* role: "system", "user" or "assistant" */
} fr_chat_message;

/* The prompt of a conversation in the format of the model's chat template, or of the family named (NULL:
 * the model's). *text is malloc'ed; tokenize it with FR_TOKENIZE_SPECIAL | FR_TOKENIZE_PROMPT. */
FR_API int fr_chat_prompt(const fr_model *model, const char *family, const fr_chat_message *messages,
                          int n_messages, char **text, fr_error *err);

/* ---- engine: the timeline over one model; used by one thread at a time --------------------------- */

typedef struct fr_engine fr_engine;

/* Q8: blocks of 32 signed bytes with one half-precision scale, about half of F16's memory, a little less exact. */
typedef enum fr_kv_type { FR_KV_F16 = 0, FR_KV_F32 = 1, FR_KV_Q8 = 2 } fr_kv_type;

typedef struct fr_engine_options {
    int n_threads;        /* 0: all cores */
    int n_ctx;            /* longest context of a request; 0: what the model was trained for, 4096 at most */
    fr_kv_type kv_type;
    int kv_page_size;     /* tokens in a page of the KV cache; 0: 16 */
    int max_requests;     /* open at once; 0: 1 */
    int prefill_chunk;    /* prompt tokens run in one step; 0: 256 */
    /* Tokens that the KV cache holds in all, n_ctx at least; 0: n_ctx for each of max_requests. Where they do not suffice
     * the youngest requests give their pages back, wait, and read their context again: later, but the same tokens. */
    int64_t kv_tokens;
    /* Finished requests whose KV is kept while there is room, for requests that begin alike; 0: 8. Below 0: nothing is
     * shared, with running requests neither. It changes times (prefill_s) and no token. */
    int prefix_cache;
    /* An existing folder where the measured costs of forwards are kept, so that the next engine on this machine with such a model need
     * not measure them again; borrowed until the engine is closed. NULL: they are measured when first needed. They change no token. */
    const char *cost_cache;
    /* Not 0: each thread stays on a core of its own, the one that opens the engine too (which then closes it). Refused where the
     * process may use fewer cores than n_threads. */
    int pin_threads;
} fr_engine_options;

/* The model must outlive the engine; options may be NULL. */
FR_API int fr_engine_open(fr_engine **out, const fr_model *model, const fr_engine_options *options, fr_error *err);
/* After every request of it is closed. NULL is fine. */
FR_API void fr_engine_close(fr_engine *engine);
/* One step for all running requests: drafts, one forward, verification, output. Returns the number of
 * requests still running, or a negative code when the engine as a whole failed. What goes wrong with one
 * request ends that request only (fr_request_finish, fr_request_error). */
FR_API int fr_engine_step(fr_engine *engine, fr_error *err);

/* ---- request: one text being generated ----------------------------------------------------------- */

typedef struct fr_request fr_request;

typedef struct fr_sampling {
    float temperature;       /* 0: greedy */
    int32_t top_k;           /* 0: all */
    float top_p;             /* 1: all */
    float min_p;             /* 0: all */
    float repeat_penalty;    /* 1: none */
    float frequency_penalty; /* 0: none */
    float presence_penalty;  /* 0: none */
    int32_t penalty_last_n;  /* last tokens that penalties look at; -1: all */
    uint64_t seed;
} fr_sampling;

/* Greedy, no penalties. */
FR_API fr_sampling fr_sampling_default(void);

/* What the callback learns about each new token. Pointers live until it returns. */
typedef struct fr_token_event {
    int32_t token;
    int32_t source;     /* index of the draft that proposed it ("auto" counts as the drafts it stands for), or -1: the
                         * target's own token */
    const char *text;   /* text that became certain with this token: whole characters, '\0'-terminated */
    size_t n_bytes;
    double logprob;     /* NaN unless want_logprobs */
} fr_token_event;

typedef struct fr_request_options {
    const int32_t *prompt;     /* copied */
    int64_t n_prompt;          /* at least 1 */
    int64_t max_tokens;        /* to generate; 0: until the context is full */
    fr_sampling sampling;
    const char *const *stops;  /* generation ends before the first of these strings; copied */
    int n_stops;
    const char *const *drafts; /* "method:key=value,..." each; several are united; none: plain decoding; "auto": forerun
                                * chooses who drafts, and how much, step by step */
    int n_drafts;
    int tree_budget;           /* drafted nodes in a step. N: at most N. FR_TREE_BUDGET_AUTO: as many as pay, by what forwards
                                * cost here and how often drafts are right, at most FR_TREE_BUDGET_AUTO_MAX. 0:
                                * FR_TREE_BUDGET_AUTO with the draft "auto", else FR_TREE_BUDGET. "auto" always plans, a
                                * ratio or lossy rule never does: its text depends on its trees */
    const char *verify;        /* rule of acceptance: NULL or "sampled" (the text is plain decoding's), or a ratio
                                * rule (the output distribution is plain decoding's; see `forerun run --help`),
                                * with its option if it has one: "k-seq:gamma=1.5"; "typical" is lossy */
    int allow_lossy;           /* without it a lossy rule, which changes the output distribution, is refused */
    int ignore_eos;            /* generate past end-of-text tokens */
    int want_logprobs;
    /* Optional; called within fr_engine_step for each token, in order. Not 0: cancel the request. */
    int (*on_token)(void *user, const fr_token_event *event);
    void *user;
} fr_request_options;

enum { FR_TREE_BUDGET_AUTO = -1, FR_TREE_BUDGET = 8, FR_TREE_BUDGET_AUTO_MAX = 32, FR_TREE_BUDGET_MAX = 511, FR_MAX_DEPTH = 64 };

typedef enum fr_finish {
    FR_FINISH_NONE = 0, /* still running */
    FR_FINISH_EOS,      /* the model ended the text */
    FR_FINISH_STOP,     /* a stop string */
    FR_FINISH_LENGTH,   /* max_tokens */
    FR_FINISH_CONTEXT,  /* the context is full */
    FR_FINISH_CANCELLED,
    FR_FINISH_ERROR,    /* see fr_request_error */
} fr_finish;

typedef struct fr_stats {
    int64_t n_prompt, n_generated;
    int64_t n_prompt_shared;    /* prompt tokens not computed, for another request with the same beginning had been */
    int64_t n_preempted;        /* how often it gave KV pages back to an older request */
    int64_t n_recomputed;       /* tokens computed again for that */
    int64_t n_steps;            /* target forwards in decoding */
    double acceptance_length;   /* n_generated / n_steps: 1 for plain decoding */
    int64_t drafted, accepted;  /* tree nodes offered; accepted and emitted */
    int64_t accept_histogram[FR_MAX_DEPTH + 1]; /* steps by number of accepted nodes (last: that or more) */
    /* By depth d = 1..: how often a path reached depth d-1 and the tree had a child there; and how often
     * one of the children was what the target said. */
    int64_t offered_at[FR_MAX_DEPTH + 1], accepted_at[FR_MAX_DEPTH + 1];
    double prefill_s, decode_s; /* wall time, waiting for pages and computing again included */
    double draft_s, forward_s, verify_s; /* parts of decode_s */
    double tokens_per_s;        /* n_generated / decode_s */
    uint64_t logits_hash;       /* of the logits of every generated token, in order */
    int64_t asked;              /* proposals that drafters were asked for */
    int64_t undrafted_steps;    /* of n_steps: without a drafted node */
    int64_t resampled, resampled_accepted; /* of drafted and accepted: nodes that `lyanna` found by re-sampling alone */
    int is_lossy;               /* the rule of acceptance changed the output distribution */
    char draft_error[256];      /* why a drafter was switched off for this request; "" usually */
} fr_stats;

FR_API int fr_request_open(fr_request **out, fr_engine *engine, const fr_request_options *options, fr_error *err);
FR_API void fr_request_close(fr_request *request); /* ends it if still running; NULL is fine */
FR_API fr_finish fr_request_finish(const fr_request *request);
FR_API const char *fr_finish_name(fr_finish finish);
/* The error that ended the request with FR_FINISH_ERROR. */
FR_API const fr_error *fr_request_error(const fr_request *request);
/* What was generated so far; pointers belong to the request and live until the next step or its close. */
FR_API const int32_t *fr_request_tokens(const fr_request *request, int64_t *n);
FR_API const char *fr_request_text(const fr_request *request, size_t *n_bytes);
FR_API void fr_request_get_stats(const fr_request *request, fr_stats *out);

#ifdef __cplusplus
}
#endif
#endif
