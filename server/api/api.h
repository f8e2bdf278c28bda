/* api.h - what lies between a request by HTTP and the generations that answer it.
 *
 *     event loop     api_receive         finds the endpoint, checks key, origin and method
 *     worker         endpoint->prepare   reads the JSON body into a Plan, or makes the whole reply
 *     event loop     api_call.c          submits the plan's generations, collects their tokens ...
 *                    endpoint->format    ... and has each piece written in the form of the API
 *
 * A new API is a file with its endpoints: `prepare` turns a body into a Plan (plan.h has what most of them share), and an
 * ApiFormat writes answers, events and errors. Nothing else knows what an API looks like. */
#ifndef SERVER_API_API_H
#define SERVER_API_API_H

#include "server/api/metrics.h"
#include "server/engine/engine_thread.h"
#include "server/engine/grammar_cache.h"
#include "server/engine/served_model.h"
#include "server/http/http_server.h"
#include "server/http/json_out.h"

#include <jansson.h>

enum { API_MAX_STOPS = 16, API_MAX_CHOICES = 128, API_MAX_DRAFTS = 9, API_MAX_WARNINGS = 8 };

typedef struct ApiCall ApiCall;

/* What all calls share. */
typedef struct Service {
    ServedModel *models; /* [n_models], the first is the default */
    int n_models;
    EngineThread engine;
    Worker worker;
    Mailbox mailbox;
    Access access;
    Metrics metrics;
    GrammarCache grammars;
    HttpServer *http;
    size_t max_json_bytes; /* of the values of one body */
    bool drains;           /* new requests are refused */
    bool logs;
    ApiCall *calls; /* being answered */
    int n_calls;
    void (*on_idle)(void *user); /* the last call was answered while the service drains */
    void *idle_user;
} Service;

/* Why a request is refused. status 0: it is not. */
typedef struct ApiError {
    int status;
    const char *code;  /* static; NULL: none */
    char param[64];    /* the field of the body; "" none */
    char message[600]; /* a sentence */
} ApiError;

/* Fills *e and returns -1. param may be NULL. */
__attribute__((format(printf, 5, 6))) int api_refuse(ApiError *e, int status, const char *code, const char *param,
                                                     const char *format, ...);
/* The error of a function of forerun.h, as one of the API. */
int api_refuse_error(ApiError *e, const char *param, const fr_error *why);

#ifdef __clang_analyzer__ /* it does not see that they never return 0 */
#define api_refuse(e, ...) (api_refuse(e, __VA_ARGS__), -1)
#define api_refuse_error(e, param, why) (api_refuse_error(e, param, why), -1)
#endif

typedef struct Prompt {
    int32_t *tokens;
    int64_t n;
    char *text; /* for `echo`; NULL: not needed */
} Prompt;

/* What is to be generated: n choices for each prompt. Owns what it points to, except drafts and model. */
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
    int32_t *prediction; /* [n_prediction] the client expects these tokens as the answer */
    int64_t n_prediction;
    fr_logit_bias *bias; /* [n_bias] */
    int n_bias;
    CachedGrammar *grammar; /* which the text matches; NULL: none */
    GrammarCache *grammars; /* that it is given back to */
    CompileWatch watch;     /* over all that is compiled for this request */
    bool is_format;         /* the grammar is a schema for what is no call: `response_format` and its kin */
    /* The grammar begins behind the first text, and where there is a second one, only if the answer begins with that; NULL: at
     * once; static */
    const char *grammar_after, *grammar_opening;
    int n_top_logprobs;               /* of each token, where wants_logprobs */
    char *warnings[API_MAX_WARNINGS]; /* [n_warnings] sentences for the client, besides that of the grammar */
    int n_warnings;
    bool wants_logprobs; /* log-probabilities of the tokens are part of the answer */
    bool ignore_eos;
    bool wants_embeddings;     /* of the prompts, instead of text */
    bool wants_base64;         /* ... written so */
    bool streams, wants_usage; /* wants_usage: stream_options.include_usage */
    bool has_seed;             /* given by the client */
    bool tells_stop;           /* which stop string ended a text is part of the answer: tokens are kept for it */
    bool returns_tokens;       /* ids of the generated tokens are part of the answer */
    bool shows_sources;        /* forerun.tokens: which drafter proposed each token of a stream */
    bool shows_trees;          /* forerun.trees: what each step proposed */
} Plan;

typedef struct Choice {
    ApiCall *call;
    Generation *generation; /* NULL once it has ended */
    int index;
    Buf text;                 /* all of it */
    TokenBatch tokens;        /* records of all tokens; its text is empty */
    GenerationResult *result; /* taken over from the generation; NULL until it has ended */
    double last_token_s;
    int64_t n_tokens;
    SourceNames sources; /* if plan.shows_sources */
} Choice;

/* Why the choice ended: FR_FINISH_NONE while it is still being generated, when an event may already be written. */
static inline fr_finish choice_finish(const Choice *c) { return c->result ? c->result->finish : FR_FINISH_NONE; }

/* How an API writes what was generated. Each function appends to *out; running out of memory shows in the buffer's limit.
 * NULL: the API has none. */
typedef struct ApiFormat {
    void (*write_error)(JsonOut *out, const ApiError *e);
    void (*write_answer)(JsonOut *out, const ApiCall *call); /* all choices have ended */
    /* Keeps fresh text for write_answer; NULL: in Choice.text. False: memory ran out. */
    bool (*keep)(const Choice *choice, const TokenBatch *fresh);
    /* Server-sent events, whole with their empty lines: before the first token; fresh text of a choice (perhaps empty, then
     * with tokens); its end; after the last choice; an error after the first event. */
    void (*begin_stream)(Buf *out, const ApiCall *call);
    void (*stream_text)(Buf *out, const ApiCall *call, const Choice *choice, const TokenBatch *fresh);
    void (*end_choice)(Buf *out, const ApiCall *call, const Choice *choice);
    void (*end_stream)(Buf *out, const ApiCall *call);
    void (*stream_error)(Buf *out, const ApiError *e);
    const char *event_object; /* for openai_end_stream */
    /* Of all choices, tokens that are reasoning; NULL: there are none. */
    int64_t (*count_reasoning)(const ApiCall *call);
} ApiFormat;

typedef struct Endpoint {
    const char *method, *path;
    const ApiFormat *format;
    /* One of these two. answer: at once, in the event loop: fills call->reply. prepare: in the worker; `body` is an
     * object; fills call->reply or call->plan, or call->error and returns -1. */
    int (*answer)(ApiCall *call);
    int (*prepare)(ApiCall *call, const json_t *body);
    const char *type; /* of the reply; NULL: application/json */
    bool is_open;     /* needs no key */
    bool may_drain;   /* answered also while the service drains */
    bool has_name;    /* the path goes on with a name */
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
    Plan plan;
    Choice *choices; /* [n_choices] */
    int n_choices, n_running;
    bool is_in_worker, has_begun, is_cancelled;
    char id[40]; /* "chatcmpl-..."; its beginning is set by `prepare` */
    int64_t created_s;
    double started_s;
    char peer[64], method[16], path[128]; /* for the log */
    void *own;                            /* the API's, freed by free_own */
    void (*free_own)(void *own);
};

/* The endpoints of all families, which api_call.c lists; each ends with a NULL path. */
extern const Endpoint chat_completions_endpoints[], text_completions_endpoints[], native_completion_endpoints[],
    token_endpoints[], status_endpoints[], messages_endpoints[], responses_endpoints[], page_endpoints[],
    embeddings_endpoints[];

/* For HttpServerOptions. */
void api_receive(void *service, HttpExchange *x);
bool api_write_refusal(void *service, Buf *out, const char *path, int status, const char *why);

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Begins a call whose endpoint is known and allowed. */
void api_call_begin(Service *s, HttpExchange *x, const Endpoint *endpoint);
/* Ends all calls at once, after the engine thread has stopped. */
void api_call_free_all(Service *s);
/* "<prefix>" and 24 random characters as the id of the call. */
void api_call_name(ApiCall *call, const char *prefix);

/* One line on standard error for each request. No prompt and no text of a client is part of it. */

void request_log_write(const ApiCall *call, int status);
/* Logs a request that was refused before it became a call. */
void request_log_refusal(const Service *s, const char *peer, const char *method, const char *path, int status);

#endif
