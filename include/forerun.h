/* forerun.h - the public C API of libforerun: exact speculative decoding of language models in GGUF files.
 *
 * The library never exits, never prints and never reads the environment. Every function that can fail returns FR_OK (0)
 * or a negative fr_code. Where the caller passes an fr_error, a failing call fills it with one sentence that names what
 * went wrong, where, and the remedy; err may be NULL everywhere. A function that opens something sets *out to NULL
 * where it fails.
 *
 * Mistakes of the caller. A pointer that must be given and is NULL, and a negative count, are refused with
 * FR_ERR_ARGUMENT; a void function then does nothing or fills *out with zeros. Pointers to what has been closed are not
 * detected.
 *
 * Threads and callbacks: what may be called when.
 *
 *   object       by threads                            within on_token of a request of the same engine
 *   fr_model     any number at once; it is closed      everything
 *                once
 *   fr_engine    one at a time, which need not always  fr_engine_close: takes effect when fr_engine_step returns, with
 *                be the same (but see pin_threads)     FR_ERR_CANCELLED. Refused with FR_ERR_ARGUMENT: fr_engine_step,
 *                                                      fr_engine_open_draft, fr_engine_measure_costs, fr_request_open
 *   fr_grammar   any number at once; it is closed      everything
 *                once
 *   fr_request   that of its engine                    everything; fr_request_close: the request ends at once and
 *                                                      has no further callback, as if it had been closed
 *   no object    any number at once                    everything
 *
 * Other engines may be used within a callback like anywhere else. The callback fr_model_options.progress runs in a
 * thread that is in fr_model_open, and may call everything.
 *
 * The floating-point environment of a calling thread (rounding, subnormal numbers) has no influence on results, and is
 * restored before a function returns and for the time of a callback.
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
    FR_ERR_ARGUMENT = -1,    /* an option or argument is out of range or contradictory */
    FR_ERR_IO = -2,          /* a file could not be opened, read or written */
    FR_ERR_FORMAT = -3,      /* a file is damaged */
    FR_ERR_UNSUPPORTED = -4, /* a file is sound, but forerun does not run its kind */
    FR_ERR_MEMORY = -5,      /* memory or KV pages ran out */
    FR_ERR_CONTEXT = -6,     /* the prompt is longer than the context */
    FR_ERR_MISMATCH = -7,    /* two files do not fit together (a drafter for another target) */
    FR_ERR_CANCELLED = -8,   /* the caller's callback cancelled the call */
    FR_ERR_INTERNAL = -9,    /* a broken invariant: a bug in forerun */
} fr_code;

/* Filled by a call that fails; untouched by one that succeeds. Belongs to the caller. */
typedef struct fr_error {
    fr_code code;
    char message[508];
} fr_error;

/* "major.minor.patch"; static. */
FR_API const char *fr_version(void);
/* Frees memory that a function of this header returned as "malloc'ed". NULL is fine. */
FR_API void fr_free(void *p);

/* ---- model: immutable, shared by any number of engines and threads ------------------------------- */

typedef struct fr_model fr_model;

typedef struct fr_model_options {
    const char *backend;     /* NULL or "cpu"; "reference": double precision on one thread, slow, to compare with */
    const char *kernels;     /* NULL or "auto": the best that this CPU runs; else "ref", "avx2", "neon", ... */
    const char *activations; /* what the inputs of quantised weights are rounded to. NULL or "q16": 16-bit integers.
                              * "q8": 8-bit integers, faster with many rows; logits are then 1.6-2.7 % (rms) off.
                              * Drafting is exact with either */
    const char *packed_file; /* optional: weights in the form that the CPU reads, as 'forerun repack' writes them; they
                              * are mapped, and shared by processes. Used if it exists and belongs to the model; must
                              * not be written to while the model is open (replace it by renaming) */
    int n_threads;           /* for loading; 0: all cores */
    void (*progress)(void *user, double part); /* optional; called while loading, part goes from 0 to 1 */
    void *progress_user;
} fr_model_options;

typedef struct fr_model_info {
    const char *name;         /* general.name of the file, or its path */
    const char *architecture; /* "llama", "qwen3moe", ...: general.architecture of the file */
    const char *backend;      /* "cpu" or "reference" */
    const char *kernels;      /* the kernel table in use */
    const char *activations;  /* "q16" or "q8"; "exact" in the reference backend */
    const char *chat_family; /* the family of the file's chat template, such as "llama3"; "jinja": a template of another
                               * family; "none": there is no template that forerun can use */
    int32_t n_vocab, n_layer, n_embd, n_ctx_train;
    size_t weight_bytes;             /* read by one forward */
    const char *packed_error;        /* why packed_file exists and was not used; NULL otherwise */
    const char *chat_template_error; /* why the file's chat template cannot be run; NULL: it can, or there is none */
    int chat_reasons; /* not 0: the chat template has a mark of <think>...</think>, so that answers may begin with reasoning */
} fr_model_info;

/* Maps a GGUF file and prepares its weights for the CPU, which takes seconds for a large model. The path is copied;
 * options may be NULL. A file that is written to meanwhile is refused with FR_ERR_IO; one that is cut short meanwhile raises
 * SIGBUS, as with every mapping, which the library leaves to its program (docs/ARCHITECTURE.md, "Input files"). */
FR_API int fr_model_open(fr_model **out, const char *path, const fr_model_options *options, fr_error *err);
/* The model must not be used any more. Its memory is freed when the last engine over it is closed. NULL is fine. */
FR_API void fr_model_close(fr_model *model);
/* Fills *out; its strings belong to the model, and are valid until fr_model_close. */
FR_API void fr_model_get_info(const fr_model *model, fr_model_info *out);

enum {
    FR_TOKENIZE_BOS = 1,     /* begin with BOS, if the vocabulary has one */
    FR_TOKENIZE_EOS = 2,     /* end with EOS, likewise */
    FR_TOKENIZE_SPECIAL = 4, /* text such as "</s>" becomes the special token */
    FR_TOKENIZE_PROMPT = 8,  /* add BOS and EOS as the model file says for prompts */
};

/* The tokens of n_bytes of text, which may contain zeros; flags: FR_TOKENIZE_* combined. *tokens is [*n_tokens] and
 * malloc'ed, NULL where there are none. */
FR_API int fr_tokenize(const fr_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                       int64_t *n_tokens, fr_error *err);
/* The text of n_tokens tokens. *text is malloc'ed, [*n_bytes] and a '\0'; bytes that are not UTF-8 become U+FFFD. */
FR_API int fr_detokenize(const fr_model *model, const int32_t *tokens, int64_t n_tokens, char **text, size_t *n_bytes,
                         fr_error *err);
/* The bytes that a token stands for within a text, perhaps part of a character; [*n_bytes], they belong to the model. A
 * control token has none, unless with_control is not 0: then its name, such as "</s>". */
FR_API const char *fr_token_piece(const fr_model *model, int32_t token, int with_control, size_t *n_bytes);

typedef struct fr_chat_message {
    const char *role, *content; /* role: "system", "user" or "assistant" */
} fr_chat_message;

/* 0 in every field is a sensible default. */
typedef struct fr_chat_options {
    /* NULL: the template of the model's file (with tools its template for tools, where it has one). Otherwise the name of a
     * template that comes with forerun, such as "llama3.1", or the text of a Jinja template, which contains "{{" or "{%". */
    const char *chat_template;
    /* JSON, for what fr_chat_message cannot express; they need a Jinja template. messages: an array as
     * Hugging Face's transformers take it, in place of the messages of the call. tools: an array of function
     * descriptions. variables: an object of further variables for the template, such as {"enable_thinking": false}. */
    const char *messages, *tools, *variables;
    int no_generation_prompt; /* not 0: the text ends after the last message, not where an answer begins */
} fr_chat_options;

typedef struct fr_chat_result {
    char *text; /* [n_bytes] and a '\0'; without BOS where the vocabulary adds one */
    size_t n_bytes;
    int32_t *tokens; /* [n_tokens] of the text, as a prompt */
    int64_t n_tokens;
    char warning[256]; /* "" usually; why a built-in format took the place of the model's template */
} fr_chat_result;

/* The prompt of a conversation, [n_messages], as text and tokens; options may be NULL. The template of the model is
 * run. Spellings of special tokens in messages and tools stay text: special tokens come from the template alone.
 * FR_ERR_ARGUMENT: the template refuses the messages. FR_ERR_UNSUPPORTED: there is no template that can be run and no
 * built-in format that resembles it. */
FR_API int fr_chat_apply(const fr_model *model, const fr_chat_message *messages, int n_messages,
                         const fr_chat_options *options, fr_chat_result *out, fr_error *err);
/* Frees what fr_chat_apply put into it. A zeroed one, and NULL, are fine. */
FR_API void fr_chat_result_free(fr_chat_result *result);

/* The text of fr_chat_apply alone, malloc'ed; `chat_template` as in fr_chat_options. Special tokens in it cannot be told
 * from their spellings in messages any more: where messages come from others, use fr_chat_apply. */
FR_API int fr_chat_prompt(const fr_model *model, const char *chat_template, const fr_chat_message *messages,
                          int n_messages, char **text, fr_error *err);

/* ---- grammar: which texts may be generated -------------------------------------------------------- */

/* Immutable; used by any number of requests and threads at once. docs/CONSTRAINED.md says what is supported. */
typedef struct fr_grammar fr_grammar;

typedef enum fr_grammar_kind {
    FR_GRAMMAR_JSON_SCHEMA = 0, /* a JSON schema; {"type": "object"} allows any JSON object */
    FR_GRAMMAR_GBNF = 1,        /* rules as in llama.cpp; the text begins with the rule "root" */
    FR_GRAMMAR_REGEX = 2,       /* a regular expression for the whole text */
} fr_grammar_kind;

/* Compiles n_bytes of text, and makes an index of the model's vocabulary when that is done for the first time. Most texts take
 * less than a millisecond; the work is limited to 20 million steps, which take about a second. FR_ERR_ARGUMENT: the text is
 * malformed, or asks for what is not supported; the error names it. FR_ERR_MEMORY: it needs more steps or memory than the
 * limits allow (docs/CONSTRAINED.md, "Limits and cost"). */
FR_API int fr_grammar_open(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text,
                           size_t n_bytes, fr_error *err);
/* Does the same and can be stopped: should_stop is called with `user` by the calling thread, once every 65,536 steps. Where
 * it returns anything but 0, the call ends with FR_ERR_CANCELLED. NULL: it is not called. */
FR_API int fr_grammar_open_stoppable(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text,
                                     size_t n_bytes, int (*should_stop)(void *user), void *user, fr_error *err);
/* Requests that were opened with it go on. NULL is fine. */
FR_API void fr_grammar_close(fr_grammar *grammar);
/* Where valid texts are not quite those of the schema (oneOf that is read as anyOf): a sentence about it; else "". It
 * belongs to the grammar. */
FR_API const char *fr_grammar_notice(const fr_grammar *grammar);
/* Memory that it takes now. It grows while texts are generated (docs/CONSTRAINED.md, "Limits and cost"). */
FR_API size_t fr_grammar_bytes(const fr_grammar *grammar);

/* ---- engine: the KV cache, threads and drafters over one model ----------------------------------- */

typedef struct fr_engine fr_engine;

/* Number format of the KV cache. Q8: blocks of 32 signed bytes with one half-precision scale; about half the memory of
 * F16, a little less accurate. */
typedef enum fr_kv_type { FR_KV_F16 = 0, FR_KV_F32 = 1, FR_KV_Q8 = 2 } fr_kv_type;

/* 0 in every field is a sensible default. */
typedef struct fr_engine_options {
    int n_threads; /* 0: all cores */
    int n_ctx;     /* longest context of a request; 0: what the model was trained for, 4096 at most */
    fr_kv_type kv_type;
    int kv_page_size;  /* tokens in a page of the KV cache; 0: 16 */
    int max_requests;  /* that run at once; 0: 1 */
    int prefill_chunk; /* prompt tokens in one step of the engine; 0: 256 */
    /* Tokens that the KV cache holds in total, at least n_ctx; 0: n_ctx for each of max_requests. Where they do not
     * suffice, the youngest requests give their pages back, wait, and compute their context again: they finish later,
     * with the same tokens. */
    int64_t kv_tokens;
    /* Finished requests whose KV is kept while there is room, for later requests that begin with the same tokens; 0: 8.
     * Below 0: no KV is shared, not even between running requests. Sharing changes times (prefill_s) and no token. */
    int prefix_cache;
    /* An existing folder in which measured costs (fr_engine_measure_costs) are kept, so that the next engine on this
     * machine with such a model need not measure them again; borrowed until the engine is closed. NULL: none. They
     * change no token. */
    const char *cost_cache;
    /* Not 0: each thread is pinned to a core of its own. That includes the thread that opens the engine, which must
     * also close it. Refused where the process may use fewer cores than n_threads. */
    int pin_threads;
    /* Drafts that requests of this engine may name: each is opened as by fr_engine_open_draft. Borrowed until
     * fr_engine_open returns. */
    const char *const *drafts;
    int n_drafts;
    /* Requests that may be open besides max_requests: they wait, and run in the order in which they were opened as soon
     * as others end. 0: none. */
    int max_queued;
} fr_engine_options;

/* Opens an engine over a model; options may be NULL. All that is slow happens here (and in the
 * two functions below): memory is taken, drafter files are read, costs are measured where a draft is "auto". */
FR_API int fr_engine_open(fr_engine **out, const fr_model *model, const fr_engine_options *options, fr_error *err);
/* Closes its requests, too: pointers to them are invalid then. NULL is fine. */
FR_API void fr_engine_close(fr_engine *engine);

/* Opens a draft, "method:key=value,...", for requests to name: reads its files and takes its memory. "a+b" opens both;
 * "auto" opens the drafts that it stands for and calls fr_engine_measure_costs. "none", and a draft that is open already, are
 * fine. A draft stays open until the engine is closed, and what it learned from one request serves the next. An engine holds 32
 * drafts: one more takes the place of a draft that no open request uses, or is refused with FR_ERR_MEMORY where there
 * is none. */
FR_API int fr_engine_open_draft(fr_engine *engine, const char *spec, fr_error *err);
/* Measures what forwards of different numbers of tokens cost on this machine, which automatic tree budgets
 * (FR_TREE_BUDGET_AUTO, "auto") need: about 150 ms, up to 2 s for a large model, or nothing where cost_cache knows them
 * or they have been measured. Best called before requests are opened: it needs free pages of the KV cache, and fails
 * with FR_ERR_MEMORY where running requests hold them all. */
FR_API int fr_engine_measure_costs(fr_engine *engine, fr_error *err);

/* One step of all running requests: drafts, one forward, verification, output. Before it, waiting requests take the
 * places of those that have ended. Returns the number of requests that are still running or waiting, or a negative code
 * where the engine as a whole failed (FR_ERR_CANCELLED: a callback closed it, and it must not be used any more). A failure of one request ends that request only (fr_request_finish, fr_request_error). A
 * decoding step allocates no memory. */
FR_API int fr_engine_step(fr_engine *engine, fr_error *err);

/* What an engine holds now. */
typedef struct fr_engine_stats {
    int n_running, n_queued;                       /* requests */
    int64_t kv_tokens;                             /* room of the KV cache, in whole pages */
    int64_t kv_tokens_running, kv_tokens_prefixes; /* of it: pages of running requests; pages that only the prefix
                                                     * cache holds, which gives them back where they are wanted */
    /* Room, in whole pages, of the layers that see a sliding window only, where their pages are given back as soon as windows
     * have passed; and what is held of it. Room 0: there are no such layers, or they hold what the others hold. */
    int64_t kv_window_tokens, kv_window_tokens_held;
    int64_t kv_bytes; /* memory of the KV cache, all layers together; only what was used has become real memory */
} fr_engine_stats;

/* Fills *out; also within a callback. */
FR_API void fr_engine_get_stats(const fr_engine *engine, fr_engine_stats *out);

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
    int32_t penalty_last_n;  /* number of last tokens that penalties look at; -1: all */
    uint64_t seed; /* random numbers are keyed by it, the tokens of the prompt, the position and the token: the same
                    * request gives the same text, and requests with other prompts are independent of it */
} fr_sampling;

/* Greedy, without penalties: temperature 0, top_p 1, repeat_penalty 1, penalty_last_n 64. */
FR_API fr_sampling fr_sampling_default(void);

/* `bias` is added to the logit of a token in every step, before everything that fr_sampling does: so it holds for greedy
 * requests too, and for drafters that know the target's sampling. -INFINITY: the token is never generated (if all are
 * banned, token 0 is). The ranges and conventions of servers (-100 for a ban) are the caller's. */
typedef struct fr_logit_bias {
    int32_t token;
    float bias;
} fr_logit_bias;

typedef struct fr_top_logprob {
    int32_t token;
    double logprob;
} fr_top_logprob;

/* A new token, as the callback gets it. Pointers are valid until the callback returns.
 *
 * Log-probabilities are the model's own: of softmax(logits), before logit_bias and all that fr_sampling does. So a banned
 * token has one, too, and the sampled token need not be among the top ones. With drafts they have the bits that plain
 * decoding gives them. */
typedef struct fr_token_event {
    int32_t token;
    int32_t source;   /* index of the draft that proposed it ("auto" counts as the drafts it stands for); -1: the
                         * target's own token */
    const char *text; /* text that is certain since this token: whole characters, '\0'-terminated, perhaps empty */
    size_t n_bytes;
    double logprob; /* natural logarithm of its probability before sampling options; NaN unless want_logprobs or
                     * n_top_logprobs */
    const fr_top_logprob *top_logprobs; /* [n_top_logprobs] the most probable tokens, best first; of equally probable
                                         * ones the lowest ids first */
    int n_top_logprobs;                 /* as the request wants it, at most the size of the vocabulary */
} fr_token_event;

typedef struct fr_request_options {
    const int32_t *prompt; /* [n_prompt]; copied */
    int64_t n_prompt;      /* at least 1, at most n_ctx */
    int64_t max_tokens;    /* to generate; 0: until the context is full */
    fr_sampling sampling;
    const char *const *stops; /* [n_stops] the text ends before the first of these strings; copied */
    int n_stops;
    const char *const *drafts; /* "method:key=value,..." each, open in the engine (fr_engine_options.drafts,
                                * fr_engine_open_draft); at most 8, which are united, as are the two of "a+b"; none: plain decoding; "auto":
                                * forerun chooses in every step which of its drafts propose, and how much. Not kept */
    int n_drafts;
    int tree_budget;    /* drafted nodes in a step. N: at most N. FR_TREE_BUDGET_AUTO: as many as are expected to save
                                * time, by the costs of forwards and the acceptance so far, at most
                                * FR_TREE_BUDGET_AUTO_MAX; needs fr_engine_measure_costs. 0: FR_TREE_BUDGET_AUTO where
                                * the engine knows these costs, which is advisable as soon as several requests run at
                                * once; else, and with the draft "space", FR_TREE_BUDGET. With "auto" N bounds the
                                * automatic budget; a ratio or lossy rule always has a fixed budget, because its text
                                * depends on its trees */
    const char *verify; /* verification rule: NULL or "sampled" (the same text as plain decoding), or a ratio
                                * rule (the same output distribution; see `forerun run --help`), with its option if it
                                * has one: "k-seq:gamma=1.5"; "typical" is lossy. Not kept */
    int allow_lossy;    /* not 0: permits a lossy rule, which changes the output distribution */
    int ignore_eos;     /* generate past end-of-text tokens */
    int want_logprobs;
    /* Optional; called within fr_engine_step for each token, in order. Returning anything but 0 cancels the request.
     * The head of this file says which functions it may call. */
    int (*on_token)(void *user, const fr_token_event *event);
    void *user;
    const fr_logit_bias *logit_bias; /* [n_logit_bias] several for one token add up; copied */
    int n_logit_bias;
    int n_top_logprobs; /* of each token event; 0 .. FR_MAX_TOP_LOGPROBS */
    /* The text must match this grammar, of the same model; NULL: none. Tokens that it forbids have no probability, before all
     * sampling options but the logprobs; the request ends (FR_FINISH_EOS) where nothing can follow. The draft "grammar" is
     * used besides `drafts`, and alone without any; the draft "none" keeps it out. Borrowed until fr_request_open returns. */
    const fr_grammar *grammar;
    /* Where the grammar begins: behind the first occurrence of this text in what is generated, such as "</think>"; until
     * then every token may come but those that end a text. NULL or "": with the first token. Not kept. */
    const char *grammar_after;
    /* [n_prediction] tokens that the answer will probably follow; the draft "prediction" proposes them, where it is among
     * the drafts. NULL: none. Copied */
    const int32_t *prediction;
    int64_t n_prediction;
    /* not 0: the mean of the final hidden states over the prompt is kept (fr_request_embedding). The whole prompt is then read
     * for this request, and none of it taken over from others. */
    int want_embedding;
    /* With grammar_after: the text that begins the part before the grammar, such as "<think>". A text that begins otherwise is held
     * to the grammar at once. NULL or "": every text has that part. Not kept. */
    const char *grammar_opening;
} fr_request_options;

enum {
    FR_MAX_TOP_LOGPROBS = 20,
    FR_TREE_BUDGET_AUTO = -1,
    FR_TREE_BUDGET = 8,
    FR_TREE_BUDGET_AUTO_MAX = 32,
    FR_TREE_BUDGET_MAX = 511, /* fr_request_tree gives at most one more */
    FR_MAX_DEPTH = 64,        /* of the depths that fr_stats counts */
};

typedef enum fr_finish {
    FR_FINISH_NONE = 0,  /* still running, or waiting */
    FR_FINISH_EOS,       /* the model ended the text */
    FR_FINISH_STOP,      /* a stop string */
    FR_FINISH_LENGTH,    /* max_tokens */
    FR_FINISH_CONTEXT,   /* the context is full */
    FR_FINISH_CANCELLED, /* by the callback, or by closing it */
    FR_FINISH_ERROR,     /* see fr_request_error */
} fr_finish;

enum { FR_MAX_COUNTERS = 24 };

/* Drafted nodes of one kind, named "method.kind" by the drafter: "lyanna.resampled" are the nodes that Lyanna found in
 * an earlier proposal again. */
typedef struct fr_counter {
    char name[48];
    int64_t drafted, accepted; /* of fr_stats.drafted and accepted */
} fr_counter;

typedef struct fr_stats {
    int64_t n_prompt, n_generated;
    int64_t n_prompt_shared;                    /* prompt tokens taken over from another request that began with them */
    int64_t n_preempted;                        /* how often an older request took KV pages from it */
    int64_t n_recomputed;                       /* tokens computed again because of that */
    int64_t n_steps;                            /* target forwards in decoding */
    double acceptance_length;                   /* n_generated / n_steps: 1 for plain decoding */
    int64_t drafted, accepted;                  /* drafted tree nodes; those that became part of the text */
    int64_t accept_histogram[FR_MAX_DEPTH + 1]; /* steps by number of accepted nodes (last: that or more) */
    /* By depth d = 1..: steps whose accepted path reached depth d - 1, where the tree offered a child; and steps in
     * which one of these children was accepted. */
    int64_t offered_at[FR_MAX_DEPTH + 1], accepted_at[FR_MAX_DEPTH + 1];
    double prefill_s, decode_s;          /* wall time; includes waiting for pages and computing tokens again */
    double draft_s, forward_s, verify_s; /* parts of decode_s */
    double tokens_per_s;                 /* n_generated / decode_s */
    uint64_t logits_hash;                /* of the logits of every generated token, in order */
    int64_t n_proposals;                 /* calls of drafters for a proposal */
    int64_t undrafted_steps;             /* of n_steps: without a drafted node */
    int n_counters;                      /* nodes that drafters count separately, by name */
    fr_counter counters[FR_MAX_COUNTERS];
    int is_lossy;          /* the verification rule changed the output distribution */
    char draft_error[256]; /* why a drafter was switched off for this request; "" usually */
    double queue_s;        /* wall time from opening until it began to run; no part of prefill_s */
} fr_stats;

/* Opens a request, which the following steps of the engine run. Opening is quick: it reads no file and measures
 * nothing. Refused with FR_ERR_ARGUMENT where a draft is not open in the engine, or costs that it needs are not known
 * (fr_engine_open_draft, fr_engine_measure_costs); with FR_ERR_CONTEXT where the prompt does not fit; with
 * FR_ERR_MEMORY where max_requests + max_queued are open. A request that finds no place waits until one ends
 * (fr_engine_options.max_queued). */
FR_API int fr_request_open(fr_request **out, fr_engine *engine, const fr_request_options *options, fr_error *err);
/* Ends it at once if it waits or runs, in whichever state: its KV pages are free, or in the prefix cache until they are
 * wanted, when the call returns. NULL is fine. */
FR_API void fr_request_close(fr_request *request);
FR_API fr_finish fr_request_finish(const fr_request *request); /* of NULL: FR_FINISH_ERROR */
/* "running", "eos", "stop", "length", "context", "cancelled" or "error"; of other numbers "unknown"; static. */
FR_API const char *fr_finish_name(fr_finish finish);
/* The error that ended the request with FR_FINISH_ERROR. */
FR_API const fr_error *fr_request_error(const fr_request *request);
/* What was generated so far: [*n] tokens, and [*n_bytes] of text and a '\0'. Pointers belong to the request and are
 * valid until the next step, or until it is closed. */
FR_API const int32_t *fr_request_tokens(const fr_request *request, int64_t *n);
FR_API const char *fr_request_text(const fr_request *request, size_t *n_bytes);
/* Fills *out; also while the request is running. */
FR_API void fr_request_get_stats(const fr_request *request, fr_stats *out);

/* Of a request with want_embedding, from its first token on: the mean, over the tokens of the prompt, of the hidden states
 * behind the model's final norm, scaled to length 1, into out [n_embd] (fr_model_info). It depends on the prompt alone. */
FR_API int fr_request_embedding(const fr_request *request, float *out, fr_error *err);

/* A token that a draft proposed for one step. Siblings differ, except under a ratio rule: the tokens that the step added to
 * the text lead from node 0 to the last node that was accepted, and beyond it stands the target's own. */
typedef struct fr_tree_node {
    int32_t token;
    int32_t parent; /* index of an earlier node; -1: node 0, the last token of the text before the step */
    int32_t source; /* as in fr_token_event; -1 for node 0 */
    float p_accept; /* the estimate of the probability that the node and all above it are accepted */
} fr_tree_node;

/* The tree of the request's last decoding step: copies at most max_nodes of its nodes, parents first, and returns how
 * many there are; 0 before that step. */
FR_API int fr_request_tree(const fr_request *request, fr_tree_node *nodes, int max_nodes);
/* What draft number `source` (fr_token_event.source) of the request is: its spec, such as "suffix" where "auto" stands for it.
 * Valid until the request is closed. NULL: there is none of that number. */
FR_API const char *fr_request_draft(const fr_request *request, int source);
/* T(n): seconds of a forward of n_rows tokens behind n_context others, as fr_engine_measure_costs found it and all
 * forwards since have corrected it. With one row it is what a token of plain decoding costs, besides its sampling. 0 where
 * costs are not known. */
FR_API double fr_engine_forward_s(const fr_engine *engine, int n_rows, int64_t n_context);

#ifdef __cplusplus
}
#endif
#endif
