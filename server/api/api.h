/* api.h - the calls of the API: from a request by HTTP to the generations that answer it.
 *
 *     event loop     api_receive         finds the endpoint, checks key, origin and method
 *     worker         endpoint->prepare   reads the JSON body into a Plan, or writes the whole reply
 *     event loop     api_call.c          submits the plan's generations, collects their tokens ...
 *                    endpoint->format    ... and writes each piece in the form of the API
 *
 * A new API is a file with its endpoints: `prepare` turns a body into a Plan (plan.h has what most of them share), and
 * an ApiFormat writes answers, events and errors. Nothing else depends on the form of an API. */
#ifndef SERVER_API_API_H
#define SERVER_API_API_H

#include "server/engine/engine_thread.h"
#include "server/engine/grammar_cache.h"
#include "server/engine/generation.h"
#include "server/engine/kv_events.h"
#include "server/http/http_server.h"
#include "server/http/json_out.h"

#include <jansson.h>

enum { API_MAX_STOPS = 64, API_MAX_CHOICES = 128, API_MAX_DRAFTS = 9, API_MAX_WARNINGS = 8 };

typedef struct ApiCall ApiCall;

/* ---- counters and histograms (metrics.c), in the vocabulary of vLLM with the prefix "forerun_" ----------------- */

enum { METRICS_MAX_BUCKETS = 20, METRICS_DEPTHS = 16 };

typedef struct Histogram {
    int64_t counts[METRICS_MAX_BUCKETS + 1]; /* the last one counts values above all bounds */
    double sum;
} Histogram;

/* The metrics of one model. Only the event loop uses them. */
typedef struct ModelMetrics {
    int64_t finished[7]; /* by fr_finish */
    int64_t prompt_tokens, generation_tokens, cached_tokens, preemptions;
    int64_t constrained; /* requests with a grammar */
    int64_t drafts, draft_tokens, accepted_tokens, accepted_at[METRICS_DEPTHS];
    Histogram first_token_s, between_tokens_s, queue_s, prefill_s, decode_s, whole_s, n_prompt, n_generated;
} ModelMetrics;

typedef struct Metrics {
    ModelMetrics models[SERVED_MAX_MODELS];
    int64_t responses[6]; /* by the first digit of the status */
    int64_t refused_full, hung_up;
} Metrics;

/* Counts a generation that has ended. is_constrained: it had a grammar. */
void metrics_add_generation(ModelMetrics *m, const GenerationResult *g, bool is_constrained);
/* Counts n new tokens. since_last_s is the time since the tokens before them; below 0: they are the first. */
void metrics_add_tokens(ModelMetrics *m, int64_t n, double since_last_s);

typedef struct MetricsGauges {
    int n_running[SERVED_MAX_MODELS], n_waiting[SERVED_MAX_MODELS], n_connections;
    double kv_usage[SERVED_MAX_MODELS]; /* from 0 to 1 */
    int64_t n_ranks[SERVED_MAX_MODELS], n_divided_drafts[SERVED_MAX_MODELS], n_exchanges[SERVED_MAX_MODELS],
        exchanged_bytes[SERVED_MAX_MODELS];
    double exchange_s[SERVED_MAX_MODELS];
    GrammarCacheStats grammars;
} MetricsGauges;
/* The names of the metrics that vLLM has: forerun_NAME, vllm:NAME, or both. */
typedef enum MetricsNames { METRICS_FORERUN, METRICS_VLLM, METRICS_BOTH } MetricsNames;
/* Appends the metrics in the text format of Prometheus. False: memory ran out. */
bool metrics_write(const Metrics *m, const ServedModel *models, int n_models, const MetricsGauges *gauges,
                   MetricsNames names, Buf *out);

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* What all calls share. */
typedef struct Service {
    ServedModel *models; /* [n_models]; the first one is the default */
    int n_models;
    EngineThread engine;
    Worker worker;
    Mailbox mailbox;
    Access access;
    Metrics metrics;
    MetricsNames metrics_names;
    GrammarCache grammars;
    HttpServer *http;
    size_t max_json_bytes; /* the most memory that the values of one body may take */
    bool loads;            /* the models are being loaded: all requests are refused with status 503 */
    bool drains;           /* the server shuts down: new requests are refused */
    bool logs;
    const KvEvents *events;  /* NULL: none are published */
    const char *slot_folder; /* where slots are saved; NULL: they are not */
    bool ignores_unknown;    /* unknown fields are ignored, with a warning in the answer, instead of refused */
    ApiCall *calls;          /* the calls that are not answered yet */
    int n_calls;
    void (*on_idle)(void *user); /* called when the last call is answered while the service drains */
    void *idle_user;
} Service;

/* Why a request is refused. status is 0: it is not refused. */
typedef struct ApiError {
    int status;
    const char *code;               /* static; NULL: none */
    char param[64];                 /* the field of the body that is wrong; "": none */
    char message[600];              /* a sentence */
    int64_t n_prompt_tokens, n_ctx; /* of a prompt that is too long; n_ctx is 0: that is not the reason */
} ApiError;

/* Fills in *e and returns -1. param may be NULL. */
__attribute__((format(printf, 5, 6))) int api_refuse(ApiError *e, int status, const char *code, const char *param,
                                                     const char *format, ...);
/* The same for an error of a function of forerun.h. */
int api_refuse_error(ApiError *e, const char *param, const fr_error *why);

#ifdef __clang_analyzer__ /* the analyser does not see that they never return 0 */
#define api_refuse(e, ...) (api_refuse(e, __VA_ARGS__), -1)
#define api_refuse_error(e, param, why) (api_refuse_error(e, param, why), -1)
#endif

typedef struct Prompt {
    int32_t *tokens;
    int64_t n;
    char *text; /* the prompt as text, for `echo`; NULL: not needed */
} Prompt;

/* What a call generates: n choices for each prompt. It owns what it points to, except the drafts and the model. */
typedef struct Plan {
    ServedModel *model;
    Prompt prompts[API_MAX_CHOICES];
    int n_prompts, n; /* choice i continues prompt i / n */
    int64_t max_tokens;
    fr_sampling sampling; /* choice i of a prompt has the seed sampling.seed + i */
    char *stops[API_MAX_STOPS];
    int n_stops;
    const char *drafts[API_MAX_DRAFTS];
    int n_drafts, tree_budget;
    int32_t *prediction; /* [n_prediction] the answer that the client expects */
    int64_t n_prediction;
    fr_logit_bias *bias; /* [n_bias] */
    int n_bias;
    CachedGrammar *grammar; /* the grammar of the text; NULL: none */
    GrammarCache *grammars; /* the cache that the grammar is given back to */
    CompileWatch watch;     /* limits all compilations of this request */
    bool is_format;         /* the grammar is a schema for text outside calls, as from `response_format` */
    /* As in fr_request_options; static strings. */
    const char *grammar_after, *grammar_opening, *reasoning_end, *reasoning_opening;
    int64_t max_reasoning;
    int n_top_logprobs;               /* for each token, if wants_logprobs is set */
    char *warnings[API_MAX_WARNINGS]; /* [n_warnings] sentences for the client, besides the notice of the grammar */
    int n_warnings;
    bool wants_logprobs; /* the answer includes the log-probabilities of the tokens */
    bool ignore_eos;
    bool wants_embeddings;     /* the answer is embeddings of the prompts instead of text ... */
    bool wants_base64;         /* ... in base64 */
    bool streams, wants_usage; /* wants_usage: stream_options.include_usage */
    bool shows_usage;          /* continuous_usage_stats: each event of a stream has the usage so far */
    bool hides_reasoning;      /* /v1/messages: the text of reasoning is left out */
    bool has_seed;             /* the client has given the seed */
    bool tells_stop;           /* the answer includes the stop string that ended a text, for which tokens are kept */
    bool renders;              /* the answer is the prompts as tokens, and nothing is generated */
    bool controls_reasoning;   /* reasoning_control: the client may end the reasoning while it is written */
    bool is_verbose;           /* the answer includes its prompt and settings */
    bool only_reads;           /* the prompts are read into the prefix cache, and the one token after them is dropped */
    bool returns_tokens;       /* the answer includes the ids of the generated tokens */
    bool shows_sources;        /* forerun.tokens: a stream includes which drafter proposed each token */
    bool shows_trees;          /* forerun.trees: a stream includes what each step proposed */
    bool shows_timings;        /* timings_per_token: each event of a stream has the timings so far */
    bool shows_progress;       /* return_progress: events of a stream report how much of the prompt has been read */
    int slot_from_1;           /* 1 + the slot that the client asks for; 0: any */
    double max_predict_s;      /* a choice ends with the first line that ends so long after its first token; 0: never */
    int n_indent;              /* a choice ends before a line, except the first, with fewer blanks at its beginning */
    int ping_s;                /* a stream that has been silent for so many seconds gets a comment; 0: never */
} Plan;

/* What line_limits.c knows of the text of a choice. */
typedef struct LineLimits {
    double first_token_s; /* 0: there is no token yet */
    int n_blanks;         /* at the beginning of the current line, which has had nothing else */
    bool is_within_line;  /* the current line has had something else, or is the first one */
    bool has_new_line;    /* a line has ended */
    bool is_over;         /* the choice has reached a limit, and further tokens are dropped */
} LineLimits;

typedef struct Choice {
    ApiCall *call;
    Generation *generation; /* NULL once it has ended */
    int index;
    Buf text;                 /* all text so far */
    TokenBatch tokens;        /* the records of all tokens, without their text */
    GenerationResult *result; /* taken over from the generation; NULL until that has ended */
    fr_stats stats;           /* so far, if the plan shows timings or progress */
    int64_t n_prompt_told;    /* how much of the prompt the client knows to have been read */
    double last_token_s;
    int64_t n_tokens;
    LineLimits lines;
    SourceNames sources; /* if plan.shows_sources */
    int slot;            /* -1: it has not begun */
} Choice;

/* Why the choice ended; FR_FINISH_NONE: it is still being generated. */
static inline fr_finish choice_finish(const Choice *c) { return c->result ? c->result->finish : FR_FINISH_NONE; }

/* How an API writes what was generated. Each function appends to *out; a JsonOut notes that memory ran out. Functions
 * that an API does not need are NULL. */
typedef struct ApiFormat {
    void (*write_error)(JsonOut *out, const ApiError *e);
    void (*write_answer)(JsonOut *out, const ApiCall *call); /* all choices have ended */
    /* Keeps fresh text for write_answer; NULL: the text is kept in Choice.text. False: memory ran out. */
    bool (*keep)(const Choice *choice, const TokenBatch *fresh);
    /* These write whole server-sent events, each with its empty line: before the first token; for fresh text of a
     * choice, which may be empty if there are tokens; at the end of a choice; after the last choice; and for an error
     * after the first event. */
    void (*begin_stream)(Buf *out, const ApiCall *call);
    void (*stream_text)(Buf *out, const ApiCall *call, const Choice *choice, const TokenBatch *fresh);
    /* For more of the prompt that has been read; NULL: it is not reported. */
    void (*stream_progress)(Buf *out, const ApiCall *call, const Choice *choice);
    void (*end_choice)(Buf *out, const ApiCall *call, const Choice *choice);
    void (*end_stream)(Buf *out, const ApiCall *call);
    void (*stream_error)(Buf *out, const ApiError *e);
    const char *event_object; /* for openai_end_stream */
    const char *stream_type;  /* the media type of a stream; NULL: server-sent events */
    /* Counts the tokens of all choices that are reasoning; NULL: there are none. */
    int64_t (*count_reasoning)(const ApiCall *call);
} ApiFormat;

typedef struct Endpoint {
    const char *method, *path;
    const ApiFormat *format;
    /* An endpoint has one of these two functions, which return 0, or -1 with call->error set. `answer` runs in the
     * event loop and writes call->reply at once. `prepare` runs in the worker and writes call->reply or call->plan;
     * `body` is an object. */
    int (*answer)(ApiCall *call);
    int (*prepare)(ApiCall *call, const json_t *body);
    /* May follow `prepare`: it runs in the event loop, where the calls of other clients can be found. */
    int (*finish)(ApiCall *call);
    const char *type; /* the media type of the reply; NULL: application/json */
    bool is_open;     /* it needs no key */
    bool may_drain;   /* it is answered even while the service drains */
    bool has_name;    /* the path is followed by a name */
    bool needs_no_body;
    bool takes_array; /* `body` may be an array, too */
} Endpoint;

struct ApiCall {
    Job job; /* first */
    Service *service;
    HttpExchange *exchange; /* NULL: the client is gone */
    const Endpoint *endpoint;
    ApiCall *next, *previous;
    char *body;
    size_t n_body;
    ApiError error;
    Buf reply;
    int reply_status; /* 0: 200 */
    Plan plan;
    Choice *choices; /* [n_choices] */
    int n_choices, n_running;
    bool is_in_worker, has_begun, is_cancelled;
    char id[40]; /* "chatcmpl-..."; `prepare` sets it */
    int64_t created_s;
    double started_s, sent_s;             /* sent_s: when the last part of a stream was sent */
    char peer[64], method[16], path[128]; /* for the log */
    char name[64], query[128];            /* what follows the path of an endpoint with has_name, and the '?' */
    void *own;                            /* data of the API, which free_own frees */
    void (*free_own)(void *own);
};

/* The endpoints of all families, which api_receive.c lists; each ends with a NULL path. */
extern const Endpoint chat_completions_endpoints[], text_completions_endpoints[], native_completions_endpoints[],
    token_endpoints[], status_endpoints[], slot_endpoints[], messages_endpoints[], responses_endpoints[],
    ollama_endpoints[], ollama_model_endpoints[], draft_endpoints[], llama_endpoints[];

/* HttpServerOptions.on_request and write_error (api_receive.c). */
void api_receive(void *service, HttpExchange *x);
bool api_write_refusal(void *service, Buf *out, const char *path, int status, const char *why);

/* Sends comments to silent streams whose clients ask for them. It is called every second. */
void api_ping(Service *s, double now_s);

/* Ends all calls at once, after the engine thread has stopped. */
void api_call_free_all(Service *s);
/* Counts the lines of fresh text and cuts it at a limit of the plan (line_limits.c). Returns whether the choice is over
 * from now on. */
bool line_limits_apply(LineLimits *l, const Plan *plan, TokenBatch *fresh);
/* Ends `answer` or `prepare` of an endpoint that writes its own reply. has_failed: memory for the reply ran out. */
int api_end_reply(ApiCall *call, bool has_failed);
/* Begins a call whose endpoint is known and allowed. */
void api_call_begin(Service *s, HttpExchange *x, const Endpoint *endpoint);
/* Writes the prefix and 24 random characters. */
void api_random_id(const char *prefix, char id[40]);
/* Sets the id of the call to such an id. */
void api_call_name(ApiCall *call, const char *prefix);

/* Write a line of the log (request_log.c) for a call that has ended, and for a request that was refused before it
 * became a call. */
void request_log_write(const ApiCall *call, int status);
void request_log_refusal(const Service *s, const char *peer, const char *method, const char *path, int status);

#endif
