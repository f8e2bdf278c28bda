/* draft_remote.c - the drafter `remote`: a small model on another machine drafts.
 *
 * The problem: a small model that drafts takes memory, its bandwidth and cores from the target beside it. Another
 * machine has all of these, and what a draft model needs and gives are token ids, a few bytes. The idea: a step sends
 * the context to a `forerun serve` that has a model with the target's vocabulary (POST /draft, server/api/draft.c), and
 * the answer, the tokens that this model generates greedily, is the chain that is proposed. The text does not depend on
 * drafts, so nothing that the network does can change it: it decides only how many tokens a step yields.
 *
 *     target  tokens [1 450 4799] n 3 vocabulary 5a..  ───►  small model: generates 3 tokens after its cached prefix
 *     chain   2217 338 263                             ◄───  {"tokens":[2217,338,263]}
 *
 * The server's prefix cache holds most of the context from the step before, so that it reads only what is new.
 *
 * Waiting. A step waits for the answers of all its sequences together, at most `timeout`. A late answer is not lost
 * work: the call goes on in the background, as at the beginning of a text, when the small model reads the prompt, and
 * the next question finds its cache warm. But after a step that has waited in vain, no question is asked for a pause,
 * which doubles from FIRST_PAUSE_S to LAST_PAUSE_S each time and ends with the first answer in time. So a host that is
 * dead or too slow costs one timeout in each of ever rarer steps, and one that refuses connections costs nothing. It is
 * asked again when it is back.
 *
 * What a host answers is not trusted. Questions carry a hash of the vocabulary, and a server with another one refuses
 * them; an answer that is no list of ids of the vocabulary, or has more than were asked for, is an error. Refusals and
 * errors switch the drafter off for the request, with a sentence; when the drafter is opened, a refusal is the error of
 * that.
 *
 * Because trees depend on time, the engine refuses this drafter under rules whose text depends on trees (is_timed).
 * p_accept falls by CHANCE with each token; calibration corrects it. Invariants: a draft is a chain of at most
 * min(length, budget) tokens; sequences share the host and nothing else; a tree that is asked for again is the same.
 * Memory: the tokens of each sequence, its question and its answer. Cost: the round trip and `length` forwards of the
 * small model; the question has some 6 bytes for each token of the context. When it loses: where a step of the target
 * takes no longer than the answer. At a temperature the chain is still greedy, where a local small model draws with the
 * target's noise. Proof: tests/draft/test_draft_remote.c, hosts that hang, die and lie; tests/server/test_draft_api.c,
 * texts with a real server. */
#include "draft/drafter.h"

#include "base/system.h"
#include "draft/models/remote_host.h"
#include "text/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LENGTH = 64, MAX_BODY = 64 << 20 };
#define FIRST_PAUSE_S 0.25
#define LAST_PAUSE_S 60.0
#define LATE_S 30.0 /* an answer that is later than this is not waited for, even in the background */
#define CHANCE 0.75f

typedef struct RemoteText {
    Buf tokens; /* int32_t [n] the context */
    int32_t n;
    RemoteCall call;
    int32_t asked_n; /* the context of the call had so many tokens */
    double asked_s;
    bool is_awaited;           /* the proposal that is being made waits for the answer */
    int32_t chain[MAX_LENGTH]; /* [n_chain] follows the first chain_at tokens; chain_at is 0: there is none */
    int32_t n_chain, chain_at;
} RemoteText;

typedef struct Remote {
    Drafter base;
    RemoteHost host;
    int32_t n_vocab, n_ctx, max_sequences, length;
    double timeout_s;
    uint64_t vocabulary;
    double pause_s, paused_until_s;
    char notice[256];
    RemoteText *texts;  /* [max_sequences] */
    RemoteCall **asked; /* [max_sequences] the calls that a proposal waits for */
    Buf question;
    Arena arena;
} Remote;

typedef struct RemoteOptions {
    const char *server, *key_file;
    int32_t length, timeout_ms;
} RemoteOptions;

static const Option option_table[] = {
    {.key = "server",
     OPT_TEXT(RemoteOptions, server),
     .required = "server",
     .metavar = "HOST:PORT",
     .help = "a `forerun serve` whose model drafts; it must have the target's vocabulary"},
    {.key = "key-file",
     OPT_FILE(RemoteOptions, key_file),
     .metavar = "FILE",
     .default_help = "no key",
     .help = "file whose first line is the server's API key"},
    {.key = "length",
     OPT_INT(RemoteOptions, length, 1, MAX_LENGTH),
     .default_value = "5",
     .help = "tokens in the chain"},
    {.key = "timeout",
     OPT_INT(RemoteOptions, timeout_ms, 1, 60000),
     .default_value = "100",
     .help = "milliseconds after which a step goes on without a draft"},
    {.key = NULL},
};

/* ---- questions and answers ---------------------------------------------------------------------------------- */

static bool put_number(Buf *out, int32_t number, bool is_first) {
    char text[16], *at = text + sizeof text;
    do *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    if (!is_first) *--at = ',';
    return buf_append(out, at, (size_t)(text + sizeof text - at));
}

/* Writes {"tokens":[...],"n":N,"vocabulary":"..."}. */
static bool write_question(Remote *d, const int32_t *tokens, int32_t n_tokens, int32_t n) {
    static const char begin[] = "{\"tokens\":[";
    char end[64];
    Buf *q = &d->question;
    int n_end = snprintf(end, sizeof end, "],\"n\":%d,\"vocabulary\":\"%016" PRIx64 "\"}", n, d->vocabulary);
    buf_clear(q);
    q->max_bytes = MAX_BODY;
    bool fits = buf_append(q, begin, sizeof begin - 1);
    for (int32_t i = 0; i < n_tokens && fits; i++) fits = put_number(q, tokens[i], i == 0);
    return fits && buf_append(q, end, (size_t)n_end);
}

/* Reads {"tokens":[1,2,3]}, which is followed by a '\0', into out [most]. Returns their number; -1: it is something
 * else, has more of them, or one that is outside the vocabulary. */
static int32_t read_chain(const char *text, size_t n_text, int32_t *out, int32_t most, int32_t n_vocab) {
    static const char begin[] = "{\"tokens\":[";
    const char *at = text + sizeof begin - 1;
    int32_t n = 0;
    if (strncmp(text, begin, sizeof begin - 1) != 0) return -1;
    while (*at >= '0' && *at <= '9') {
        int64_t token = 0;
        for (; *at >= '0' && *at <= '9' && token < n_vocab; at++) token = 10 * token + (*at - '0');
        if (token >= n_vocab || n == most) return -1;
        out[n++] = (int32_t)token;
        if (*at == ',' && at[1] >= '0' && at[1] <= '9') at++;
        else break;
    }
    return strcmp(at, "]}") == 0 && (size_t)(at + 2 - text) == n_text ? n : -1;
}

/* No questions are asked for a while. */
static void pause_host(Remote *d) {
    d->pause_s = d->pause_s > 0 ? 2 * d->pause_s : FIRST_PAUSE_S;
    if (d->pause_s > LAST_PAUSE_S) d->pause_s = LAST_PAUSE_S;
    d->paused_until_s = clock_s() + d->pause_s;
}

/* An error of the host's answer, with its beginning; what may not be written to a terminal is replaced. */
static int refuse_answer(const Remote *d, const RemoteCall *c, const char *what, fr_error *err) {
    char shown[121];
    size_t n = c->body_bytes < sizeof shown - 1 ? c->body_bytes : sizeof shown - 1;
    for (size_t i = 0; i < n; i++) shown[i] = c->body[i] >= ' ' && c->body[i] <= '~' ? c->body[i] : '?';
    shown[n] = '\0';
    return error_set(err, FR_ERR_MISMATCH, "remote: %s %s (status %d): %s", d->host.name, what, c->status, shown);
}

/* Takes what has become of the call of a text that no longer runs. Answers of other contexts are dropped. */
static int take_answer(Remote *d, RemoteText *t, fr_error *err) {
    RemoteCall *c = &t->call;
    RemoteState state = c->state;
    c->state = REMOTE_IDLE;
    t->chain_at = 0;
    if (state == REMOTE_IDLE) return FR_OK;
    if (state == REMOTE_FAILED || c->status >= 500) {
        pause_host(d);
        return FR_OK;
    }
    if (c->status != 200) return refuse_answer(d, c, "refuses to draft", err);
    t->n_chain = read_chain(c->body, c->body_bytes, t->chain, d->length, d->n_vocab);
    if (t->n_chain < 0) return refuse_answer(d, c, "gives an answer that is no draft", err);
    if (t->asked_n == t->n) t->chain_at = t->n;
    return FR_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static RemoteText *text_of(const Remote *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->texts[sequence];
}

static void close_remote(Drafter *drafter) {
    Remote *d = (Remote *)drafter;
    for (int32_t i = 0; d->texts && i < d->max_sequences; i++) {
        remote_call_free(&d->texts[i].call);
        buf_free(&d->texts[i].tokens);
    }
    buf_free(&d->question);
    arena_free(&d->arena);
    mem_free(d);
}

/* Asks for nothing, so that another vocabulary is an error at once. A host that does not answer is not one. */
static int try_host(Remote *d, fr_error *err) {
    RemoteCall call = {.fd = -1}, *calls = &call;
    int status = FR_OK;
    if (!write_question(d, NULL, 0, 1)) return error_memory(err, "remote", MAX_LENGTH);
    remote_call_begin(&call, &d->host, "/draft", &d->question);
    remote_calls_wait(&calls, 1, clock_s() + 2);
    if (call.state == REMOTE_ANSWERED && call.status < 500) {
        if (call.status != 200) status = refuse_answer(d, &call, "refuses to draft", err);
    } else {
        const char *why = call.state == REMOTE_FAILED ? call.why : call.status ? "an error of its own" : "no answer";
        snprintf(d->notice, sizeof d->notice, "remote: %s does not draft yet (%s); it is asked again from time to time",
                 d->host.name, why);
        pause_host(d);
    }
    remote_call_free(&call);
    return status;
}

static int open_memory(Remote *d, fr_error *err) {
    const ArenaItem items[] = {ARENA_ITEM(&d->texts, d->max_sequences), ARENA_ITEM(&d->asked, d->max_sequences)};
    int status = arena_take(&d->arena, items, ARENA_COUNT(items), "remote", err);
    for (int32_t i = 0; i < d->max_sequences && !status; i++) d->texts[i].call.fd = -1;
    return status;
}

static int open_remote(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RemoteOptions *o = options;
    if (!env->vocab) return error_set(err, FR_ERR_UNSUPPORTED, "remote: the target has no vocabulary to compare");
    Remote *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "remote", sizeof *d);
    *out = &d->base;
    d->n_vocab = env->n_vocab, d->n_ctx = env->n_ctx, d->max_sequences = env->max_sequences;
    d->length = o->length, d->timeout_s = 1e-3 * o->timeout_ms;
    int status = remote_host_find(&d->host, o->server, err);
    if (!status && o->key_file) status = remote_host_read_key(&d->host, o->key_file, err);
    if (!status) status = vocab_fingerprint(env->vocab, &d->vocabulary, err);
    if (!status) status = open_memory(d, err);
    if (!status) status = try_host(d, err);
    if (status) close_remote(*out);
    return status;
}

static const char *notice(const Drafter *drafter) { return ((const Remote *)drafter)->notice; }

/* ---- texts --------------------------------------------------------------------------------------------------- */

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    RemoteText *t = text_of((Remote *)drafter, sequence);
    size_t bytes = (size_t)n * sizeof *tokens;
    if (!buf_append(&t->tokens, tokens, bytes)) return error_memory(err, "remote", t->tokens.n + bytes);
    t->n += (int32_t)n;
    t->chain_at = 0;
    return FR_OK;
}

static void end(Drafter *drafter, int32_t sequence) {
    RemoteText *t = text_of((Remote *)drafter, sequence);
    if (t->call.state == REMOTE_RUNS) remote_call_cancel(&t->call);
    t->call.state = REMOTE_IDLE;
    t->n = t->chain_at = 0;
    buf_clear(&t->tokens);
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Remote *d = (const Remote *)drafter;
    Buf *text = &text_of(d, sequence)->tokens;
    size_t bytes = ((size_t)d->n_ctx + TREE_MAX_NODES) * sizeof *tokens;
    end(drafter, sequence);
    text->max_bytes = MAX_BODY;
    if (!buf_reserve(text, bytes)) return error_memory(err, "remote", bytes);
    return observe(drafter, sequence, tokens, n, err);
}

/* ---- a proposal ------------------------------------------------------------------------------------------------ */

/* Asks for the tokens after a text, unless they are known, an earlier question is open, or the host is paused. Returns
 * whether an answer can be waited for. */
static bool ask(Remote *d, RemoteText *t, double now_s) {
    if (t->call.state == REMOTE_RUNS && now_s > t->asked_s + LATE_S) remote_call_cancel(&t->call);
    if (t->chain_at > 0 || t->call.state == REMOTE_RUNS || now_s < d->paused_until_s) return false;
    if (!write_question(d, (const int32_t *)(const void *)t->tokens.data, t->n, d->length)) return false;
    t->asked_n = t->n, t->asked_s = now_s;
    remote_call_begin(&t->call, &d->host, "/draft", &d->question);
    return true;
}

static void add_chain(const Remote *d, const RemoteText *t, int32_t budget, Tree *tree) {
    float p_accept = 1;
    for (int32_t i = 0, node = 0; i < t->n_chain && i < budget && node >= 0; i++) {
        p_accept *= CHANCE;
        node = tree_add(tree, node, t->chain[i], p_accept, d->base.source);
    }
}

/* Asks for the tokens after the texts. An answer that was late in an earlier step may have come meanwhile. Returns the
 * number of calls in d->asked. */
static int ask_all(Remote *d, const int32_t *sequences, const int32_t *budgets, int n, double now_s, int *status,
                   fr_error *err) {
    int n_asked = 0;
    for (int i = 0; i < n; i++) {
        RemoteText *t = text_of(d, sequences[i]);
        RemoteCall *c = &t->call;
        if (c->state == REMOTE_RUNS) {
            remote_calls_wait(&c, 1, now_s);
            int taken = c->state == REMOTE_RUNS ? FR_OK : take_answer(d, t, err);
            if (taken) *status = taken;
        }
        t->is_awaited = budgets[i] > 0 && ask(d, t, now_s);
        if (t->is_awaited) d->asked[n_asked++] = c;
    }
    return n_asked;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    Remote *d = (Remote *)drafter;
    int status = FR_OK;
    double now_s = clock_s();
    bool is_late = false;
    int n_asked = ask_all(d, sequences, budgets, n, now_s, &status, err);
    remote_calls_wait(d->asked, n_asked, now_s + d->timeout_s);
    for (int i = 0; i < n; i++) {
        RemoteText *t = text_of(d, sequences[i]);
        if (t->is_awaited && t->call.state == REMOTE_RUNS) is_late = true;
        else if (t->is_awaited) {
            if (t->call.state == REMOTE_ANSWERED) d->pause_s = 0;
            int taken = take_answer(d, t, err);
            if (taken) status = taken;
        }
        if (t->chain_at > 0) add_chain(d, t, budgets[i], trees[i]);
    }
    if (is_late) pause_host(d);
    return status;
}

extern const DrafterClass draft_remote_class;
const DrafterClass draft_remote_class = {
    .name = "remote",
    .summary = "a small model on another machine, in a `forerun serve`, continues the text: a chain of its tokens",
    .option_table = option_table,
    .options_size = sizeof(RemoteOptions),
    .is_timed = true,
    .open = open_remote,
    .close = close_remote,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
    .notice = notice,
};
