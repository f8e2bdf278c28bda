/* forerun.h - the public C API of libforerun: exact speculative decoding of language models in GGUF files.
 *
 * The library never exits, never prints and never reads the environment.
 *
 * Errors. Every function that can fail returns FR_OK (0) or a negative fr_code. If the caller passes an fr_error, a
 * call that fails fills it in with one sentence that says what went wrong, where, and how to fix it. The parameter err
 * may always be NULL. A function that opens an object sets *out to NULL when it fails. A NULL pointer for a required
 * argument and a negative count are refused with FR_ERR_ARGUMENT; a function that returns nothing then does nothing.
 * The library does not detect pointers to objects that have been closed.
 *
 * Versions. A program that was compiled against an older version of this header runs with a newer library of the same
 * major version, and the other way round. Every struct that can grow begins with struct_size, which the caller sets to
 * the size of the struct as the program knows it:
 *
 *     fr_engine_options options = {.struct_size = sizeof options, .n_ctx = 4096};
 *
 * A call with a struct_size of 0 is refused with FR_ERR_ARGUMENT. The library reads and writes only the fields that the
 * struct has: options beyond its end have their default, which is 0 for every field, and results beyond its end are not
 * written. A struct may also be larger than the library's own. Options that the library does not know must then be 0,
 * or the call is refused with FR_ERR_UNSUPPORTED; results that it does not know are set to 0. The structs without
 * struct_size never change: fr_error, fr_chat_message, fr_sampling, fr_logit_bias, fr_top_logprob, fr_tree_node and
 * fr_counter. New fields and functions come with a new minor version.
 *
 * Lifetimes. Everything that a caller passes to a function is copied, unless the comment says until when it is
 * borrowed. Everything that a function returns is borrowed from the library until the moment that the comment names,
 * except what is marked "malloc'ed", which the caller frees with fr_free.
 *
 * Shapes and units. [n] after a pointer means that it points to n items. Times are in seconds (_s), sizes in bytes
 * (_bytes), and a token is a number from 0 to n_vocab - 1. Texts are UTF-8.
 *
 * Threads and callbacks. This table says which threads may use an object, and what may be called within the callback
 * on_token of a request:
 *
 *   object       threads                               within on_token of a request of the same engine
 *   fr_model     any number at once; it is closed      everything
 *                once
 *   fr_engine    one at a time, which need not always  fr_engine_close takes effect when fr_engine_step returns, with
 *                be the same (but see pin_threads)     FR_ERR_CANCELLED. Refused with FR_ERR_ARGUMENT: fr_engine_step,
 *                                                      fr_engine_open_draft, fr_engine_measure_costs, fr_request_open,
 *                                                      fr_engine_save_prefix, fr_engine_restore_prefix,
 *                                                      fr_engine_forget_prefix
 *   fr_grammar   any number at once; it is closed      everything
 *                once
 *   fr_request   that of its engine                    everything; after fr_request_close the request has no further
 *                                                      callback
 *   (no object)  any number at once                    everything
 *
 * Within a callback, other engines may be used as anywhere else. The callback fr_model_options.progress runs in the
 * thread that called fr_model_open, and may call everything.
 *
 * The floating-point environment of the calling thread (rounding, subnormal numbers) has no influence on results. It is
 * restored before a function returns, and during a callback. */
#ifndef FORERUN_H
#define FORERUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FR_API __attribute__((visibility("default")))

/* The version of this header; fr_version() is that of the library. */
#define FR_VERSION_MAJOR 0
#define FR_VERSION_MINOR 1
#define FR_VERSION_PATCH 0

typedef enum fr_code {
    FR_OK = 0,
    FR_ERR_ARGUMENT = -1,    /* an option or an argument is out of range, or contradicts another one */
    FR_ERR_IO = -2,          /* a file could not be opened, read or written */
    FR_ERR_FORMAT = -3,      /* a file is damaged */
    FR_ERR_UNSUPPORTED = -4, /* forerun does not support what a file, a template or an option asks for */
    FR_ERR_MEMORY = -5,      /* memory, KV pages or places for requests ran out */
    FR_ERR_CONTEXT = -6,     /* the prompt is longer than the context */
    FR_ERR_MISMATCH = -7,    /* two objects do not belong together, such as a drafter and another target */
    FR_ERR_CANCELLED = -8,   /* a callback cancelled the call */
    FR_ERR_INTERNAL = -9,    /* an invariant is broken: this is a bug in forerun */
} fr_code;

/* A call that fails fills it; a call that succeeds leaves it as it is. */
typedef struct fr_error {
    fr_code code;
    char message[508];
} fr_error;

/* "major.minor.patch" of the library; the string is static. */
FR_API const char *fr_version(void);
/* Frees memory that a function of this header returned as malloc'ed. NULL is allowed. */
FR_API void fr_free(void *p);

/* ---- model: immutable, shared by any number of engines and threads ------------------------------- */

typedef struct fr_model fr_model;

#define FR_RANKS_NUMA (-1)
#define FR_RANKS_MPI (-2)

typedef struct fr_model_options {
    size_t struct_size;
    const char *backend; /* NULL or "cpu"; "reference" computes in double precision on one thread, as an oracle */
    const char *kernels; /* NULL or "auto": the best kernels that this CPU runs; or "ref", "avx2", "neon", ... */
    /* The precision to which the inputs of quantised weights are rounded. NULL or "q16": 16-bit integers. "q8": 8-bit
     * integers, which are faster when many rows are computed at once, and change logits by 1.6 to 2.7 % (rms). Drafting
     * is exact with either. */
    const char *activations;
    /* A file of weights in the CPU's own layout, as `forerun repack` writes it, or NULL. It is mapped, and processes
     * share it. It is used if it exists and belongs to the model. Replace it only by renaming another file to its
     * name: it must not be written to while the model is open. */
    const char *packed_file;
    int n_threads;                             /* used while loading; 0: all physical cores */
    void (*progress)(void *user, double part); /* called while loading, with part rising from 0 to 1; may be NULL */
    void *progress_user;                       /* passed to progress */
    /* Divides the weights among this many processes of this machine, which compute each forward together with the same
     * results as one process. fr_model_open starts the others, and fr_model_close ends them. Until then each process,
     * including this one, uses a share of the cores. FR_RANKS_NUMA: one process for each NUMA node. 0 or 1: one
     * process.
     *
     * FR_RANKS_MPI: the processes that mpirun has started, on one machine or several; it needs libforerun-mpi.so. All
     * of them call fr_model_open, once. In that of rank 0 it opens the model as usual. In the others it does what rank
     * 0 asks for, with the path and the options of rank 0, until that closes the model, and then returns
     * FR_ERR_CANCELLED, or the error for which the ranks have ended. */
    int64_t n_ranks;
} fr_model_options;

/* The strings are borrowed until fr_model_close. */
typedef struct fr_model_info {
    size_t struct_size;
    const char *name;         /* general.name of the file, or its path */
    const char *architecture; /* general.architecture of the file: "llama", "qwen3moe", ... */
    const char *backend;      /* "cpu" or "reference" */
    const char *kernels;      /* the kernel table in use */
    const char *activations;  /* "q16" or "q8"; "exact" in the reference backend */
    /* The family of the file's chat template, such as "llama3". "jinja": the template is of no known family. "none":
     * there is no template that forerun can run. */
    const char *chat_family;
    const char *chat_template_error; /* why the file's chat template cannot be run; NULL: it can, or there is none */
    int chat_reasons; /* not 0: the chat template mentions <think>...</think>, so answers may begin with reasoning */
    int32_t n_vocab, n_layer, n_embd, n_ctx_train;
    size_t weight_bytes;      /* how many bytes of weights one forward reads */
    const char *packed_error; /* why packed_file, which exists, was not used; NULL otherwise */
} fr_model_info;

/* Maps a GGUF file and prepares its weights for the backend, which takes seconds for a large model. options may be
 * NULL. A file that is written to meanwhile is refused with FR_ERR_IO. A file that is cut short meanwhile raises
 * SIGBUS, like every mapping, and the library leaves that signal to the program (docs/ARCHITECTURE.md, "Input
 * files"). */
FR_API int fr_model_open(fr_model **out, const char *path, const fr_model_options *options, fr_error *err);
/* The model must not be used afterwards. Its memory is freed when its last engine and its last grammar are closed. NULL
 * is allowed. */
FR_API void fr_model_close(fr_model *model);
/* Fills *out, and returns FR_OK or FR_ERR_ARGUMENT. */
FR_API int fr_model_get_info(const fr_model *model, fr_model_info *out);
/* Sets *out to a number that identifies the weights, by which drafter files name their target. This reads a part of the
 * model's file again, and fails with FR_ERR_IO if the file has changed since the model was opened. */
FR_API int fr_model_fingerprint(const fr_model *model, uint64_t *out, fr_error *err);
/* Sets *out to a number that identifies the vocabulary: token ids mean the same in two models with the same number.
 * Takes milliseconds. */
FR_API int fr_vocab_fingerprint(const fr_model *model, uint64_t *out, fr_error *err);

enum {
    FR_TOKENIZE_BOS = 1,     /* begin with BOS, if the vocabulary has one */
    FR_TOKENIZE_EOS = 2,     /* end with EOS, if the vocabulary has one */
    FR_TOKENIZE_SPECIAL = 4, /* text such as "</s>" becomes the special token */
    FR_TOKENIZE_PROMPT = 8,  /* add BOS and EOS as the model file asks for prompts */
};

/* Converts a text [n_bytes], which may contain zeros, to tokens. flags is a combination of FR_TOKENIZE_*. *tokens
 * [*n_tokens] is malloc'ed; it is NULL if there are none. */
FR_API int fr_tokenize(const fr_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                       int64_t *n_tokens, fr_error *err);
/* Converts tokens [n_tokens] to text. *text is malloc'ed, [*n_bytes] and a '\0'; bytes that are not UTF-8 become
 * U+FFFD. */
FR_API int fr_detokenize(const fr_model *model, const int32_t *tokens, int64_t n_tokens, char **text, size_t *n_bytes,
                         fr_error *err);
/* Returns the bytes [*n_bytes] of one token within a text, which may be a part of a character. They are borrowed until
 * fr_model_close. n_bytes may be NULL. A special token has no bytes, unless with_control is not 0: then it has those of
 * its name, such as "</s>". A token outside the vocabulary has none. */
FR_API const char *fr_token_piece(const fr_model *model, int32_t token, int with_control, size_t *n_bytes);
/* 1 if the token is special, so that it has no text of its own, and 0 otherwise. */
FR_API int fr_token_is_special(const fr_model *model, int32_t token);

typedef struct fr_chat_message {
    const char *role, *content; /* role: "system", "user" or "assistant" */
} fr_chat_message;

typedef struct fr_chat_options {
    size_t struct_size;
    int no_generation_prompt; /* not 0: the prompt ends after the last message, without the beginning of an answer */
    /* NULL: the template of the model's file, or the file's template for tools if tools are given and it has one.
     * Otherwise this is the name of a template that comes with forerun, such as "llama3.1", or the text of a Jinja
     * template, which contains "{{" or "{%". */
    const char *chat_template;
    /* JSON for what fr_chat_message cannot express; it needs a Jinja template. messages: an array in the form of
     * Hugging Face's transformers, which replaces the messages of the call. tools: an array of function
     * descriptions. variables: an object with further variables for the template, such as {"enable_thinking":
     * false}. */
    const char *messages, *tools, *variables;
} fr_chat_options;

typedef struct fr_chat_result {
    size_t struct_size;
    char *text; /* [n_bytes] and a '\0': the prompt, without the BOS that the tokenizer adds */
    size_t n_bytes;
    int32_t *tokens; /* [n_tokens] the tokens of the prompt */
    int64_t n_tokens;
    char warning[256]; /* why a built-in format replaced the model's template; usually "" */
} fr_chat_result;

/* Runs a chat template over the messages [n_messages] of a conversation, which gives a prompt as text and as tokens;
 * fr_chat_result_free frees both. options may be NULL. The names of special tokens in messages and tools remain text:
 * only the template makes special tokens. FR_ERR_ARGUMENT: the template refuses the messages. FR_ERR_UNSUPPORTED: no
 * template can be run, and no built-in format resembles it. */
FR_API int fr_chat_apply(const fr_model *model, const fr_chat_message *messages, int n_messages,
                         const fr_chat_options *options, fr_chat_result *out, fr_error *err);
/* Frees the text and the tokens of a result, and sets its fields to 0. NULL is allowed, and so is a result without
 * them. */
FR_API void fr_chat_result_free(fr_chat_result *result);

/* ---- grammar: which texts may be generated -------------------------------------------------------- */

/* A grammar is immutable, and any number of requests may use it at once. docs/CONSTRAINED.md lists what is
 * supported. */
typedef struct fr_grammar fr_grammar;

typedef enum fr_grammar_kind {
    FR_GRAMMAR_JSON_SCHEMA = 0, /* a JSON schema; {"type": "object"} allows any JSON object */
    FR_GRAMMAR_GBNF = 1,        /* rules in the form of llama.cpp; the text begins with the rule "root" */
    FR_GRAMMAR_REGEX = 2,       /* a regular expression for the whole text */
} fr_grammar_kind;

/* Compiles a text [n_bytes]. The first grammar of a model also makes an index of the vocabulary. Most texts take less
 * than a millisecond; the work is limited to 20 million steps, which take about a second. FR_ERR_ARGUMENT: the text is
 * malformed, or uses what is not supported; the error names it. FR_ERR_MEMORY: the text needs more steps or more memory
 * than the limits allow (docs/CONSTRAINED.md, "Limits and cost"). */
FR_API int fr_grammar_open(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text,
                           size_t n_bytes, fr_error *err);
/* Does the same, but can be stopped: the calling thread calls should_stop(user) once every 65,536 steps, and if that
 * returns anything but 0, the call ends with FR_ERR_CANCELLED. should_stop may be NULL. */
FR_API int fr_grammar_open_stoppable(fr_grammar **out, const fr_model *model, fr_grammar_kind kind, const char *text,
                                     size_t n_bytes, int (*should_stop)(void *user), void *user, fr_error *err);
/* Closes the grammar; requests that use it go on. NULL is allowed. */
FR_API void fr_grammar_close(fr_grammar *grammar);
/* Returns a sentence on how the allowed texts differ from those of the schema, for example because oneOf is treated as
 * anyOf; "" if they do not differ. Borrowed until fr_grammar_close. */
FR_API const char *fr_grammar_notice(const fr_grammar *grammar);
/* Returns how many bytes of memory the grammar takes now. It grows while texts are generated (docs/CONSTRAINED.md,
 * "Limits and cost"). */
FR_API size_t fr_grammar_bytes(const fr_grammar *grammar);

/* ---- engine: the KV cache, threads and drafters over one model ----------------------------------- */

typedef struct fr_engine fr_engine;

/* The number format of the KV cache. Q8 stores blocks of 32 signed bytes with one half-precision scale each; it
 * takes about half the memory of F16 and is a little less accurate. */
typedef enum fr_kv_type { FR_KV_F16 = 0, FR_KV_F32 = 1, FR_KV_Q8 = 2 } fr_kv_type;

typedef struct fr_engine_options {
    size_t struct_size;
    int n_threads; /* 0: all physical cores */
    /* Not 0: each thread is pinned to a core of its own, including the thread that opens the engine, which must then
     * also close it. Refused if the process may use fewer cores than n_threads. */
    int pin_threads;
    int n_ctx; /* the longest context of a request; 0: what the model was trained for, but at most 4096 */
    fr_kv_type kv_type;
    int kv_page_size; /* tokens in a page of the KV cache; 0: 16 */
    int max_requests; /* how many requests run at once; 0: 1 */
    /* How many further requests may be open. They wait, and run in the order in which they were opened, as soon as
     * others end. 0: none. */
    int max_queued;
    int prefill_chunk; /* how many prompt tokens one step of the engine reads at most; 0: 256 */
    /* How many finished requests keep their KV, while there is room, for later requests that begin with the same
     * tokens. 0: 8. Below 0: no KV is shared, not even between running requests. Sharing changes times (prefill_s) and
     * no token. */
    int prefix_cache;
    int n_drafts;
    const char *const *drafts; /* [n_drafts] opened as by fr_engine_open_draft, so that requests may name them */
    /* How many tokens the KV cache holds in total, at least n_ctx; 0: n_ctx for each of max_requests. When they run
     * out, the youngest requests give their pages back, wait, and compute their context again: they finish later,
     * with the same tokens. */
    int64_t kv_tokens;
    /* An existing folder that keeps measured costs (fr_engine_measure_costs), so that the next engine with such a model
     * on this machine need not measure them. NULL: they are not kept. Costs change no token. */
    const char *cost_cache;
    /* The time in seconds that may pass between two steps of a decoding request while prompts are read: the engine
     * reads fewer tokens of them in each step, but at least 1. Trees with automatic budgets keep it, too. 0: twice what
     * a step takes without prompts. INFINITY: prompts are always read in pieces of prefill_chunk. It needs known costs
     * (fr_engine_measure_costs), and changes no token. */
    double max_gap_s;
} fr_engine_options;

/* Opens an engine over a model; options may be NULL. Everything that is slow happens here and in the two functions
 * below: memory is allocated, drafter files are read, and costs are measured for the draft "auto". */
FR_API int fr_engine_open(fr_engine **out, const fr_model *model, const fr_engine_options *options, fr_error *err);
/* Closes the engine and its requests: pointers to these become invalid. NULL is allowed. */
FR_API void fr_engine_close(fr_engine *engine);
/* Fills *out with the options in force, in which every 0 is replaced by its default, and returns FR_OK or
 * FR_ERR_ARGUMENT. drafts is NULL. cost_cache is borrowed until fr_engine_close. */
FR_API int fr_engine_get_options(const fr_engine *engine, fr_engine_options *out);

/* Opens a draft, "method:key=value,...", which requests may then name. This reads the draft's files and allocates its
 * memory. "a+b" opens both; "auto" opens the drafts that it stands for and calls fr_engine_measure_costs. "none" opens
 * nothing, and a draft that is open remains open. A draft stays open until the engine is closed, and what it learned
 * from one request serves the next. An engine holds 32 drafts: a further one replaces a draft that no open request
 * uses, or is refused with FR_ERR_MEMORY if there is none. */
FR_API int fr_engine_open_draft(fr_engine *engine, const char *spec, fr_error *err);
/* Returns a sentence on why an open draft may have fewer tokens accepted than its makers measured, because it was
 * published for 16-bit weights and the model is quantised, and on what helps; "" if nothing is known. For "a+b", it is
 * the first such sentence. Borrowed until the draft is closed. */
FR_API const char *fr_engine_draft_notice(const fr_engine *engine, const char *spec);
/* Measures what forwards of different numbers of tokens cost on this machine, which automatic tree budgets
 * (FR_TREE_BUDGET_AUTO, "auto") depend on. This takes about 150 ms, up to 2 s for a large model, or no time if the
 * costs are known or cost_cache has them. It is best called before requests are opened, because it needs free pages
 * of the KV cache: it fails with FR_ERR_MEMORY if running requests hold them all. */
FR_API int fr_engine_measure_costs(fr_engine *engine, fr_error *err);
/* Returns the seconds that a forward of n_rows tokens takes after a context of n_context tokens, as
 * fr_engine_measure_costs found and all forwards since have corrected it. With one row this is the cost of a token of
 * plain decoding, without its sampling. 0 if the costs are not known. */
FR_API double fr_engine_forward_s(const fr_engine *engine, int n_rows, int64_t n_context);

/* Runs one step of all running requests: drafts, one forward, verification, output. Before that, waiting requests take
 * the places of those that have ended. Returns the number of requests that still run or wait, or a negative code if the
 * engine as a whole failed. FR_ERR_CANCELLED means that a callback closed the engine, which must not be used any
 * more. A failure of one request ends only that request (fr_request_finish_reason, fr_request_error). A step in
 * which all requests decode allocates and frees no memory, unless a request has a grammar whose states are computed
 * for the first time. */
FR_API int fr_engine_step(fr_engine *engine, fr_error *err);

/* What an engine holds now. Room is counted in tokens, in whole pages. */
typedef struct fr_engine_stats {
    size_t struct_size;
    int n_running, n_queued;    /* how many requests run, and how many wait */
    int64_t kv_tokens;          /* the room of the KV cache */
    int64_t kv_tokens_running;  /* how much of it is in pages of running requests */
    int64_t kv_tokens_prefixes; /* how much of it only the prefix cache holds, which gives it back on demand */
    /* The room of the layers with a sliding window if they have pages of their own, and how much of it is held. 0:
     * there are no such layers, or they use the same pages as the others. */
    int64_t kv_window_tokens, kv_window_tokens_held;
    int64_t kv_bytes; /* the size of the KV cache over all layers; memory is taken only for what has been used */
    /* For a model that is divided among processes (otherwise 0): their number; what they have exchanged since it was
     * opened; how long that took in this process, which includes waiting for the others; and the latency of an exchange
     * and the bytes per second that a process receives, as measured when the model was opened. */
    int n_ranks;
    int64_t n_exchanges, exchanged_bytes;
    double exchange_s, exchange_latency_s, exchange_bytes_per_s;
    /* How many draft models and layers of learned drafters are divided among these processes, too; the others are whole
     * in this process. And the seconds that a forward of the one that was opened last takes if it is whole, and if it
     * is divided, as measured when it was opened. Where the exchanges rule the second out, draft_divided_is_measured is
     * 0, and it is the least that it can be. Either is 0 if it is unknown: both where there is no choice, and the
     * second if a process could not open its part. */
    int n_divided_drafts;
    double draft_whole_s, draft_divided_s;
    int draft_divided_is_measured;
} fr_engine_stats;

/* Fills *out, and returns FR_OK or FR_ERR_ARGUMENT. It may be called within a callback. */
FR_API int fr_engine_get_stats(const fr_engine *engine, fr_engine_stats *out);

/* ---- saved prefixes: what the prefix cache keeps, for another process ----------------------------
 *
 * A request that ends leaves its KV in the prefix cache (fr_engine_options.prefix_cache), with its recurrent state and
 * what its drafters keep. These functions turn such a prefix into bytes and back, so that a later request that begins
 * with its tokens need not read them again: its tokens, logits and drafts are those that it would have had in the
 * engine that saved them. */

/* Gives the tokens [*n_tokens] of prefix i of the cache, counted from the least recently used one on, and returns 1;
 * returns 0 if there are not so many. The tokens are borrowed until the next step, and until another prefix is
 * restored. Both pointers may be NULL. */
FR_API int fr_engine_get_prefix(const fr_engine *engine, int i, const int32_t **tokens, int64_t *n_tokens);
/* Saves the prefix that begins with all tokens [n_tokens], else with all but the last, such as the prompt and the
 * answer of a request that has ended. *data [*n_bytes] is malloc'ed. FR_ERR_ARGUMENT: the cache does not hold them, or
 * not any more. */
FR_API int fr_engine_save_prefix(fr_engine *engine, const int32_t *tokens, int64_t n_tokens, void **data,
                                 size_t *n_bytes, fr_error *err);
/* Puts a saved prefix [n_bytes] into the cache, where it may replace the least recently used ones. *tokens [*n_tokens]
 * are its tokens, as fr_engine_get_prefix gives them; both pointers may be NULL. What a drafter kept is restored if a
 * draft with the same spec and the same weights is open. The bytes are checked before anything changes: FR_ERR_FORMAT:
 * they are damaged. FR_ERR_MISMATCH: they belong to another model, KV type, page size, precision of activations, or
 * version of the library. FR_ERR_CONTEXT: they have more tokens than n_ctx. FR_ERR_MEMORY: running
 * requests need the pages. A checksum finds damage, not intent: bytes from a source that is not trusted can change
 * answers that begin with the prefix. */
FR_API int fr_engine_restore_prefix(fr_engine *engine, const void *data, size_t n_bytes, const int32_t **tokens,
                                    int64_t *n_tokens, fr_error *err);
/* Removes the prefix that fr_engine_save_prefix would save from the cache. There may be none. */
FR_API int fr_engine_forget_prefix(fr_engine *engine, const int32_t *tokens, int64_t n_tokens, fr_error *err);

/* ---- request: one text being generated ----------------------------------------------------------- */

typedef struct fr_request fr_request;

typedef struct fr_sampling {
    float temperature;       /* 0: greedy */
    int32_t top_k;           /* 0: all tokens */
    float top_p;             /* 1: all tokens */
    float min_p;             /* 0: all tokens */
    float repeat_penalty;    /* 1: none */
    float frequency_penalty; /* 0: none */
    float presence_penalty;  /* 0: none */
    int32_t penalty_last_n;  /* how many of the last tokens the penalties apply to; -1: all */
    /* Random numbers are a function of the seed, the tokens of the prompt, the position and the token. So the same
     * request gives the same text, and requests with the same seed but different prompts are independent. */
    uint64_t seed;
} fr_sampling;

/* Greedy decoding without penalties: temperature 0, top_p 1, repeat_penalty 1, penalty_last_n 64, and 0 in all other
 * fields. */
FR_API fr_sampling fr_sampling_default(void);
/* Replaces the fields of *sampling for which the model's file recommends a valid value (general.sampling.*), and
 * leaves the others as they are. Returns how many it replaced. */
FR_API int fr_model_recommended_sampling(const fr_model *model, fr_sampling *sampling);

/* A bias is added to the logit of its token in every step, before fr_sampling applies: so it affects greedy requests
 * too, and drafters that know the target's sampling take it into account. With -INFINITY the token
 * is never generated; if all tokens are banned, token 0 is generated. Other conventions, such as -100 for a ban, are
 * the caller's. */
typedef struct fr_logit_bias {
    int32_t token;
    float bias;
} fr_logit_bias;

typedef struct fr_top_logprob {
    int32_t token;
    double logprob;
} fr_top_logprob;

/* A new token, as on_token receives it. All pointers are borrowed until the callback returns.
 *
 * Log-probabilities are natural logarithms of the model's own distribution, softmax(logits), before logit_bias and
 * fr_sampling apply. So even a banned token has one, and the sampled token need not be among the top ones. With drafts
 * they have the same bits as in plain decoding. */
typedef struct fr_token_event {
    size_t struct_size; /* the library's */
    int32_t token;
    int32_t source;     /* number of the draft that proposed it (fr_request_draft); -1: it is the target's own token */
    const char *text;   /* [n_bytes] and a '\0': whole characters that have become certain with this token */
    size_t n_bytes;     /* often 0: the characters of this token may become certain later */
    double logprob;     /* NaN unless want_logprobs or n_top_logprobs is set */
    int n_top_logprobs; /* as many as the request asks for, but at most the size of the vocabulary */
    /* [n_top_logprobs] The most probable tokens, best first. Ties go to the lower id. */
    const fr_top_logprob *top_logprobs;
} fr_token_event;

typedef struct fr_request_options {
    size_t struct_size;
    const int32_t *prompt; /* [n_prompt] */
    int64_t n_prompt;      /* at least 1, and at most n_ctx */
    int64_t max_tokens;    /* the most tokens to generate; 0: until the context is full */
    fr_sampling sampling;
    const fr_logit_bias *logit_bias; /* [n_logit_bias] several biases of one token are added */
    const char *const *stops;        /* [n_stops] the text ends before the first of these strings */
    /* [n_drafts] Each is a draft "method:key=value,..." that is open in the engine; "a+b" names two. At most 8
     * drafts are united. "auto" chooses in every step which of its drafts propose, and how much. Without drafts, and
     * with "none", this is plain decoding. */
    const char *const *drafts;
    int n_logit_bias, n_stops, n_drafts;
    /* How many nodes are drafted in a step. N: at most N. FR_TREE_BUDGET_AUTO: as many as are expected to save time, by
     * the costs of forwards and the acceptance so far, but at most FR_TREE_BUDGET_AUTO_MAX; this needs
     * fr_engine_measure_costs. 0: FR_TREE_BUDGET_AUTO if the engine knows the costs, and FR_TREE_BUDGET if it does not
     * or if a draft is "space". With the draft "auto", N bounds the automatic budget. The text of a ratio or lossy rule
     * depends on its trees, so a request with such a rule always has a fixed budget. */
    int tree_budget;
    /* The verification rule. NULL or "sampled" gives the same text as plain decoding. A ratio rule gives the same
     * output distribution (`forerun run --help-all` lists them); "typical" is lossy. An option follows the name:
     * "k-seq:gamma=1.5". */
    const char *verify;
    int allow_lossy; /* not 0: permits a lossy rule, which changes the output distribution */
    int ignore_eos;  /* not 0: generate past end-of-text tokens */
    /* [n_prediction] Tokens that the answer will probably resemble, or NULL. The draft "prediction" proposes them if
     * it is among the drafts. */
    const int32_t *prediction;
    int64_t n_prediction;
    /* The text must match this grammar, which was opened for the same model; NULL: there is no grammar. Forbidden
     * tokens get probability 0 before fr_sampling applies; log-probabilities ignore the grammar. The request ends with
     * FR_FINISH_EOS when nothing can follow. The draft "grammar" joins `drafts`, unless "none" is among them. Borrowed
     * until fr_request_open returns. */
    const fr_grammar *grammar;
    /* The grammar may hold for only a part of the text. It begins after the first occurrence of grammar_after, such as
     * "</think>"; until then every token is allowed, except those that end a text. If grammar_opening is given as
     * well, such as "<think>", only a text that begins with it has the free part before the grammar, and the grammar
     * holds for any other text from its beginning. NULL or "": not used. */
    const char *grammar_after, *grammar_opening;
    int want_logprobs;  /* not 0: token events have the log-probability of their token */
    int n_top_logprobs; /* how many most probable tokens a token event has, from 0 to FR_MAX_TOP_LOGPROBS */
    /* Not 0: the embedding of the prompt is computed (fr_request_embedding). The request then reads its whole prompt,
     * and takes nothing over from other requests. */
    int want_embedding;
    /* Called within fr_engine_step for each token, in order; may be NULL. Any result but 0 cancels the request. The
     * comment at the top of this file says which functions it may call. */
    int (*on_token)(void *user, const fr_token_event *event);
    void *user; /* passed to on_token */
    /* If reasoning_end is given, such as "</think>", and does not occur in the first max_reasoning tokens of the text,
     * the tokens after these are those of reasoning_end: they are generated with certainty, by any drafter and rule. If
     * reasoning_opening is given as well, such as "<think>", this holds only for a text that begins with it, and its
     * tokens are not counted. NULL or "": not used. */
    const char *reasoning_end, *reasoning_opening;
    int64_t max_reasoning;
    /* Not 0: the hash of logits is not computed, and fr_stats.logits_hash is 0. If nothing else needs whole rows of
     * logits, which is so for a text without penalties, biases, grammar and log-probabilities that is greedy or drawn
     * without top_k, top_p and min_p, the processes of a divided model then exchange their best tokens only. */
    int64_t no_logits_hash;
} fr_request_options;

enum {
    FR_MAX_TOP_LOGPROBS = 20,
    FR_TREE_BUDGET_AUTO = -1,
    FR_TREE_BUDGET = 8,
    FR_TREE_BUDGET_AUTO_MAX = 32,
    FR_TREE_BUDGET_MAX = 511, /* fr_request_tree gives at most one node more */
    FR_MAX_DEPTH = 64,        /* the greatest depth that fr_draft_stats counts */
    FR_MAX_COUNTERS = 24,
};

typedef enum fr_finish {
    FR_FINISH_NONE = 0,  /* the request runs or waits */
    FR_FINISH_EOS,       /* the model ended the text */
    FR_FINISH_STOP,      /* a stop string was generated */
    FR_FINISH_LENGTH,    /* max_tokens were generated */
    FR_FINISH_CONTEXT,   /* the context is full */
    FR_FINISH_CANCELLED, /* the callback cancelled the request, or the request was closed */
    FR_FINISH_ERROR,     /* fr_request_error says why */
} fr_finish;

/* Opens a request, which the following steps of the engine run. Opening is quick: it reads no file and measures
 * nothing. FR_ERR_ARGUMENT: a draft is not open in the engine, or the request needs costs that are not known
 * (fr_engine_open_draft, fr_engine_measure_costs). FR_ERR_CONTEXT: the prompt does not fit. FR_ERR_MEMORY:
 * max_requests + max_queued requests are open. A request that finds no place waits until another one ends. */
FR_API int fr_request_open(fr_request **out, fr_engine *engine, const fr_request_options *options, fr_error *err);
/* Ends the request at once, whether it waits or runs. When the call returns, its KV pages are free, or in the prefix
 * cache until they are needed. NULL is allowed. */
FR_API void fr_request_close(fr_request *request);
/* Why the request ended; FR_FINISH_NONE if it has not. NULL gives FR_FINISH_ERROR. */
FR_API fr_finish fr_request_finish_reason(const fr_request *request);
/* "running", "eos", "stop", "length", "context", "cancelled" or "error", and "unknown" for any other number. The
 * string is static. */
FR_API const char *fr_finish_name(fr_finish finish);
/* Returns the error that ended the request with FR_FINISH_ERROR. Borrowed until fr_request_close. */
FR_API const fr_error *fr_request_error(const fr_request *request);
/* These return what has been generated so far: tokens [*n], and text, [*n_bytes] and a '\0'. Both are borrowed until
 * the next step or fr_request_close. n and n_bytes may be NULL. */
FR_API const int32_t *fr_request_tokens(const fr_request *request, int64_t *n);
FR_API const char *fr_request_text(const fr_request *request, size_t *n_bytes);

/* The counts and times of a request, with a summary of its drafting. */
typedef struct fr_stats {
    size_t struct_size;
    int64_t n_prompt, n_generated;
    int64_t n_prompt_shared;             /* prompt tokens taken over from another request that began with them */
    int64_t n_preempted;                 /* how often an older request took KV pages from it */
    int64_t n_recomputed;                /* tokens computed again because of that */
    int64_t n_steps;                     /* target forwards during decoding */
    int64_t drafted, accepted;           /* drafted tree nodes, and those of them that became part of the text */
    double acceptance_length;            /* n_generated / n_steps: 1 for plain decoding */
    double tokens_per_s;                 /* n_generated / decode_s */
    double queue_s;                      /* wall time from opening until it began to run; not a part of prefill_s */
    double prefill_s, decode_s;          /* wall time, including waiting for pages and computing tokens again */
    double draft_s, forward_s, verify_s; /* parts of decode_s */
    int is_lossy;                        /* 1: the verification rule changed the output distribution */
    uint64_t logits_hash;                /* hash of the logits of all generated tokens, in order */
    /* An estimate of decode_s without drafts: the measured time of each forward, scaled by what the costs say about the
     * same forward without drafted tokens (fr_engine_forward_s), once for each token that it added, and the time
     * outside forwards and drafting. A busy machine makes both slower. 0: nothing was drafted, or the costs are not
     * known. */
    double plain_s;
    int64_t n_prompt_read; /* prompt tokens that have been read or taken over so far */
} fr_stats;

/* Fills *out, and returns FR_OK or FR_ERR_ARGUMENT. It may be called while the request runs. */
FR_API int fr_request_get_stats(const fr_request *request, fr_stats *out);

/* Drafted nodes of one kind. The drafter names it "method.kind": "lyanna.resampled" are the nodes that Lyanna found
 * again in an earlier proposal. */
typedef struct fr_counter {
    char name[48];
    int64_t drafted, accepted; /* nodes of this kind, counted as in fr_stats */
} fr_counter;

/* What drafting did in detail. */
typedef struct fr_draft_stats {
    size_t struct_size;
    int64_t n_proposals;                        /* how often a drafter was called for a proposal */
    int64_t n_undrafted_steps;                  /* steps without a drafted node */
    int64_t accept_histogram[FR_MAX_DEPTH + 1]; /* [i] steps with i accepted nodes; the last one also counts more */
    /* For each depth d from 1 on, offered_at[d] counts the steps whose accepted path reached a node at depth d - 1 that
     * has children, and accepted_at[d] those of them in which one of these children was accepted. */
    int64_t offered_at[FR_MAX_DEPTH + 1], accepted_at[FR_MAX_DEPTH + 1];
    int64_t n_counters;
    fr_counter counters[FR_MAX_COUNTERS]; /* [n_counters] nodes of the kinds that drafters name */
    /* The share of the target's tokens that the drafters can propose, if a draft model has another vocabulary; the
     * smallest one, if several have. 0: none has. */
    double shared_vocab;
} fr_draft_stats;

/* Fills *out, and returns FR_OK or FR_ERR_ARGUMENT. It may be called while the request runs. */
FR_API int fr_request_get_draft_stats(const fr_request *request, fr_draft_stats *out);
/* Returns a sentence on why a drafter was switched off for this request, which changes no text; "" if none was.
 * Borrowed until the next step or fr_request_close. */
FR_API const char *fr_request_draft_error(const fr_request *request);

/* Closes the reasoning of a request with reasoning_end from its next token on, as if max_reasoning were reached. If its
 * text does not reason, nothing changes. Call it between steps. FR_ERR_ARGUMENT: the request has no reasoning_end. */
FR_API int fr_request_end_reasoning(fr_request *request, fr_error *err);

/* Writes the embedding of the prompt to out [n_embd] (fr_model_info): the mean of the hidden states after the model's
 * final norm over all tokens of the prompt, scaled to length 1. It depends only on the prompt. The request has
 * want_embedding, and has generated its first token; otherwise the call fails with FR_ERR_ARGUMENT. */
FR_API int fr_request_embedding(const fr_request *request, float *out, fr_error *err);

/* A node of the tree of one step: a token that a draft proposed, or node 0. Siblings have different tokens, except
 * under a ratio rule. The tokens that the step added to the text lead from node 0 to the last accepted node, and the
 * target's own token follows. */
typedef struct fr_tree_node {
    int32_t token;
    int32_t parent; /* index of an earlier node; -1 for node 0, the last token of the text before the step */
    int32_t source; /* as in fr_token_event; -1 for node 0 */
    float p_accept; /* the estimated probability that the node and all its ancestors are accepted */
} fr_tree_node;

/* Copies at most max_nodes nodes of the tree of the request's last decoding step to nodes [max_nodes], parents first,
 * and returns how many nodes the tree has; 0 before the first such step. nodes may be NULL. */
FR_API int fr_request_tree(const fr_request *request, fr_tree_node *nodes, int max_nodes);
/* Returns the spec of the request's draft with that number (fr_token_event.source). Each part of "auto" or "a+b" has a
 * number of its own. NULL: there is no such draft. Borrowed until fr_request_close. */
FR_API const char *fr_request_draft(const fr_request *request, int source);

#ifdef __cplusplus
}
#endif
#endif
