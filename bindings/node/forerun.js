/* forerun.js - forerun from Node: exact speculative decoding of language models in GGUF files.
 *
 * This is a binding of libforerun by koffi (npm install koffi). The library must be installed (libforerun.so.0), or
 * FORERUN_LIBRARY must name it.
 *
 *     const { Model } = require('forerun');
 *     const model = await Model.open('model.gguf');
 *     console.log((await model.generate('Once upon a time', { maxTokens: 40 })).text);
 *     for await (const piece of model.stream('Once upon a time', { temperature: 0.8, seed: 7 })) process.stdout.write(piece);
 *     const chat = model.chat({ system: 'Answer in one sentence.' });
 *     console.log(await chat.send('Why is the sky blue?'));
 *     await model.close();
 *
 * Drafting changes no text. The default is draft: 'auto'; 'none' is plain decoding, and an array unites several drafts.
 *
 * Calls that take long (loading, a step of the engine) run in a thread of koffi's pool, so that the event loop goes on. An
 * engine takes one call at a time, so these calls wait for each other (Model.#exclusive). The structs below are those of
 * forerun.h; tests/bindings compares each offset with the C compiler's. Structs that can grow begin with struct_size, so
 * that this module also works with later libraries.
 *
 * Values are checked before they reach C: a wrong type is a TypeError, and a number that does not fit is a RangeError. */
'use strict';

const koffi = require('koffi');
const { promisify } = require('util');

const TOKENIZE_SPECIAL = 4, TOKENIZE_PROMPT = 8, MAX_DEPTH = 64, MAX_COUNTERS = 24;
const KV_TYPES = { f16: 0, f32: 1, q8: 2 };
const string = (n) => koffi.array('char', n, 'String');

const types = {}, members = {};
const struct = (name, of) => {
    members[name] = of;
    types[name] = koffi.struct(name, of);
};

koffi.opaque('fr_model');
koffi.opaque('fr_engine');
koffi.opaque('fr_request');
struct('fr_error', { code: 'int', message: string(508) });
struct('fr_model_options', {
    struct_size: 'size_t', backend: 'const char *', kernels: 'const char *', activations: 'const char *',
    packed_file: 'const char *', n_threads: 'int', progress: 'void *', progress_user: 'void *',
    n_ranks: 'int64_t',
});
struct('fr_model_info', {
    struct_size: 'size_t', name: 'const char *', architecture: 'const char *', backend: 'const char *',
    kernels: 'const char *', activations: 'const char *', chat_family: 'const char *',
    chat_template_error: 'const char *', chat_reasons: 'int', n_vocab: 'int32_t', n_layer: 'int32_t',
    n_embd: 'int32_t', n_ctx_train: 'int32_t', weight_bytes: 'size_t', packed_error: 'const char *',
});
struct('fr_chat_message', { role: 'const char *', content: 'const char *' });
struct('fr_chat_options', {
    struct_size: 'size_t', no_generation_prompt: 'int', chat_template: 'const char *', messages: 'const char *',
    tools: 'const char *', variables: 'const char *',
});
struct('fr_chat_result', {
    struct_size: 'size_t', text: 'void *', n_bytes: 'size_t', tokens: 'void *', n_tokens: 'int64_t',
    warning: string(256),
});
struct('fr_engine_options', {
    struct_size: 'size_t', n_threads: 'int', pin_threads: 'int', n_ctx: 'int', kv_type: 'int', kv_page_size: 'int',
    max_requests: 'int', max_queued: 'int', prefill_chunk: 'int', prefix_cache: 'int', n_drafts: 'int',
    drafts: 'const char **', kv_tokens: 'int64_t', cost_cache: 'const char *', max_gap_s: 'double',
});
struct('fr_engine_stats', {
    struct_size: 'size_t', n_running: 'int', n_queued: 'int', kv_tokens: 'int64_t', kv_tokens_running: 'int64_t',
    kv_tokens_prefixes: 'int64_t', kv_window_tokens: 'int64_t', kv_window_tokens_held: 'int64_t', kv_bytes: 'int64_t',
    n_ranks: 'int', n_exchanges: 'int64_t', exchanged_bytes: 'int64_t', exchange_s: 'double', exchange_latency_s: 'double',
    exchange_bytes_per_s: 'double', n_divided_drafts: 'int', draft_whole_s: 'double', draft_divided_s: 'double',
    draft_divided_is_measured: 'int',
});
struct('fr_sampling', {
    temperature: 'float', top_k: 'int32_t', top_p: 'float', min_p: 'float', repeat_penalty: 'float',
    frequency_penalty: 'float', presence_penalty: 'float', penalty_last_n: 'int32_t', seed: 'uint64_t',
});
struct('fr_tree_node', { token: 'int32_t', parent: 'int32_t', source: 'int32_t', p_accept: 'float' });
struct('fr_logit_bias', { token: 'int32_t', bias: 'float' });
struct('fr_top_logprob', { token: 'int32_t', logprob: 'double' });
struct('fr_token_event', {
    struct_size: 'size_t', token: 'int32_t', source: 'int32_t', text: 'void *', n_bytes: 'size_t', logprob: 'double',
    n_top_logprobs: 'int', top_logprobs: 'fr_top_logprob *',
});
koffi.proto('int fr_on_token(void *user, const fr_token_event *event)');
struct('fr_request_options', {
    struct_size: 'size_t', prompt: 'int32_t *', n_prompt: 'int64_t', max_tokens: 'int64_t', sampling: 'fr_sampling',
    logit_bias: 'fr_logit_bias *', stops: 'const char **', drafts: 'const char **', n_logit_bias: 'int',
    n_stops: 'int', n_drafts: 'int', tree_budget: 'int', verify: 'const char *', allow_lossy: 'int',
    ignore_eos: 'int', prediction: 'const int32_t *', n_prediction: 'int64_t', grammar: 'void *',
    grammar_after: 'const char *', grammar_opening: 'const char *', want_logprobs: 'int', n_top_logprobs: 'int',
    want_embedding: 'int', on_token: 'fr_on_token *', user: 'void *', reasoning_end: 'const char *',
    reasoning_opening: 'const char *', max_reasoning: 'int64_t', no_logits_hash: 'int64_t',
});
struct('fr_counter', { name: string(48), drafted: 'int64_t', accepted: 'int64_t' });
struct('fr_stats', {
    struct_size: 'size_t', n_prompt: 'int64_t', n_generated: 'int64_t', n_prompt_shared: 'int64_t',
    n_preempted: 'int64_t', n_recomputed: 'int64_t', n_steps: 'int64_t', drafted: 'int64_t', accepted: 'int64_t',
    acceptance_length: 'double', tokens_per_s: 'double', queue_s: 'double', prefill_s: 'double', decode_s: 'double',
    draft_s: 'double', forward_s: 'double', verify_s: 'double', is_lossy: 'int', logits_hash: 'uint64_t',
    plain_s: 'double', n_prompt_read: 'int64_t',
});
struct('fr_draft_stats', {
    struct_size: 'size_t', n_proposals: 'int64_t', n_undrafted_steps: 'int64_t',
    accept_histogram: koffi.array('int64_t', MAX_DEPTH + 1), offered_at: koffi.array('int64_t', MAX_DEPTH + 1),
    accepted_at: koffi.array('int64_t', MAX_DEPTH + 1), n_counters: 'int64_t',
    counters: koffi.array('fr_counter', MAX_COUNTERS), shared_vocab: 'double',
});

const declarations = [
    'const char *fr_version()',
    'void fr_free(void *p)',
    'int fr_model_open(_Out_ fr_model **out, const char *path, const fr_model_options *options, _Out_ fr_error *err)',
    'void fr_model_close(fr_model *model)',
    'int fr_model_get_info(const fr_model *model, _Inout_ fr_model_info *out)',
    'int fr_tokenize(const fr_model *model, const void *text, size_t n_bytes, unsigned int flags, _Out_ void **tokens, ' +
        '_Out_ int64_t *n_tokens, _Out_ fr_error *err)',
    'int fr_detokenize(const fr_model *model, const int32_t *tokens, int64_t n_tokens, _Out_ void **text, ' +
        '_Out_ size_t *n_bytes, _Out_ fr_error *err)',
    'int fr_chat_apply(const fr_model *model, const fr_chat_message *messages, int n_messages, ' +
        'const fr_chat_options *options, _Inout_ fr_chat_result *out, _Out_ fr_error *err)',
    'int fr_engine_open(_Out_ fr_engine **out, const fr_model *model, const fr_engine_options *options, _Out_ fr_error *err)',
    'void fr_engine_close(fr_engine *engine)',
    'int fr_engine_open_draft(fr_engine *engine, const char *spec, _Out_ fr_error *err)',
    'int fr_engine_step(fr_engine *engine, _Out_ fr_error *err)',
    'fr_sampling fr_sampling_default()',
    'int fr_request_open(_Out_ fr_request **out, fr_engine *engine, const fr_request_options *options, _Out_ fr_error *err)',
    'void fr_request_close(fr_request *request)',
    'int fr_request_finish_reason(const fr_request *request)',
    'const char *fr_finish_name(int finish)',
    'const fr_error *fr_request_error(const fr_request *request)',
    'void *fr_request_tokens(const fr_request *request, _Out_ int64_t *n)',
    'void *fr_request_text(const fr_request *request, _Out_ size_t *n_bytes)',
    'int fr_request_get_stats(const fr_request *request, _Inout_ fr_stats *out)',
    'int fr_request_get_draft_stats(const fr_request *request, _Inout_ fr_draft_stats *out)',
    'const char *fr_request_draft_error(const fr_request *request)',
];

let loaded = null;

/* The functions of the library, which is loaded at the first use. */
function fr() {
    if (loaded) return loaded;
    const library = koffi.load(process.env.FORERUN_LIBRARY || 'libforerun.so.0');
    loaded = {};
    for (const text of declarations) loaded[/(fr_\w+)\(/.exec(text)[1].replace(/^fr_/, '')] = library.func(text);
    return loaded;
}

/* A call that failed: `code` is a negative fr_code of forerun.h, and the message says what to do. */
class ForerunError extends Error {
    constructor(err) {
        super(err.message);
        this.name = 'ForerunError';
        this.code = err.code;
    }
}

function check(status, err) {
    if (status < 0) throw new ForerunError(err);
    return status;
}

/* Calls a function, whose last parameter is an fr_error, in another thread. */
async function background(f, ...args) {
    const err = {};
    return check(await promisify(f.async)(...args, err), err);
}

const snake = (name) => name.replace(/[A-Z]/g, (c) => '_' + c.toLowerCase());
const textAt = (pointer, n) => (n ? Buffer.from(koffi.decode(pointer, koffi.array('uint8_t', Number(n), 'Typed'))).toString() : '');
const tokensAt = (pointer, n) => (n ? Array.from(koffi.decode(pointer, koffi.array('int32_t', Number(n), 'Typed'))) : []);

/* ---- checking values -------------------------------------------------------------------------------------- */

const typeOf = (value) => (value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value);

const INTEGERS = {
    int: [-(2n ** 31n), 2n ** 31n - 1n], int32_t: [-(2n ** 31n), 2n ** 31n - 1n],
    int64_t: [-(2n ** 63n), 2n ** 63n - 1n], uint64_t: [0n, 2n ** 64n - 1n],
};
const FLOAT_MAX = 3.4028234663852886e38;

/* Returns an integer that fits into a C type. koffi would cut off the upper bits. */
function integer(name, value, type) {
    if (typeof value !== 'bigint' && (typeof value !== 'number' || !Number.isInteger(value)))
        throw new TypeError(`${name} must be an integer, not ${typeof value === 'number' ? value : typeOf(value)}`);
    if (typeof value === 'number' && !Number.isSafeInteger(value))
        throw new RangeError(`${name} is ${value}, which a number does not hold exactly; use a BigInt`);
    const [low, high] = INTEGERS[type];
    if (value < low || value > high) throw new RangeError(`${name} must be from ${low} to ${high}, not ${value}`);
    return value;
}

/* Returns a number that a C float can hold. */
function real(name, value) {
    if (typeof value !== 'number') throw new TypeError(`${name} must be a number, not ${typeOf(value)}`);
    if (Number.isFinite(value) && Math.abs(value) > FLOAT_MAX)
        throw new RangeError(`${name} must be at most ${FLOAT_MAX} in magnitude, not ${value}`);
    return value;
}

/* Returns a string without zeros, which would end it in C. */
function text(name, value) {
    if (typeof value !== 'string') throw new TypeError(`${name} must be a string, not ${typeOf(value)}`);
    if (value.includes('\0')) throw new RangeError(`${name} contains a zero byte`);
    return value;
}

const optional = (name, value) => (value === undefined || value === null ? null : text(name, value));

/* Returns an array of strings; a single string is an array of one. */
function strings(name, value) {
    if (value === undefined || value === null) return [];
    if (typeof value === 'string') return [text(name, value)];
    if (!Array.isArray(value)) throw new TypeError(`${name} must be a string or an array of strings, not ${typeOf(value)}`);
    return value.map((each) => text(name, each));
}

function ids(name, value) {
    if (!Array.isArray(value)) throw new TypeError(`${name} must be an array of tokens, not ${typeOf(value)}`);
    return value.map((id, i) => Number(integer(`${name}[${i}]`, id, 'int32_t')));
}

/* Returns a Map or an object of biases by token as an array of structs. */
function biases(value) {
    if (typeof value !== 'object' || Array.isArray(value))
        throw new TypeError(`logitBias must be an object of biases by token, not ${typeOf(value)}`);
    return [...(value instanceof Map ? value : Object.entries(value))].map(([token, bias]) => ({
        token: Number(integer('a token of logitBias', Number(token), 'int32_t')), bias: real('a bias of logitBias', bias),
    }));
}

function checkedMessages(messages) {
    for (const message of messages) {
        if (typeof message !== 'object' || message === null)
            throw new TypeError(`a message must be an object with role and content, not ${typeOf(message)}`);
        text('the role of a message', message.role);
        text('the content of a message', message.content);
    }
    return messages;
}

/* The options that a generation takes by name: numbers and strings of fr_sampling and fr_request_options. */
const OPTIONS = {};
for (const [struct_, own] of [['fr_sampling', []], ['fr_request_options', ['struct_size', 'n_prompt', 'n_stops', 'n_drafts',
    'n_logit_bias', 'n_prediction', 'max_tokens', 'grammar_after', 'grammar_opening', 'reasoning_end', 'reasoning_opening', 'max_reasoning']]])
    for (const [name, type] of Object.entries(members[struct_]))
        if (!own.includes(name) && (type in INTEGERS || type === 'float' || type === 'const char *')) OPTIONS[name] = type;

function checkedOption(key, value) {
    const type = OPTIONS[snake(key)];
    if (!type) throw new TypeError(`'${key}' is not an option of a generation`);
    if (type === 'const char *') return text(key, value);
    if (type === 'float') return real(key, value);
    return integer(key, typeof value === 'boolean' ? Number(value) : value, type);
}

/* The struct_size of a struct that can grow tells the library how much of it this module knows. */
const sized = (name, values = {}) => ({ ...values, struct_size: koffi.sizeof(types[name]) });

/* Returns a struct whose fields are all 0, which koffi can pass on and fill in. */
const result = (name) => sized(name, koffi.decode(Buffer.alloc(koffi.sizeof(types[name])), types[name]));

/* ---- generating ------------------------------------------------------------------------------------------- */

/* An answer while it is generated: an async iterable of pieces of text, each of whole characters. These can be read at any
 * time: text and tokens so far, finish ('running', 'eos', 'stop', 'length', 'context', 'cancelled') and stats. close() ends
 * the generation early. */
class Stream {
    #model; #prompt; #options; #request = null; #callback = null; #pieces = []; #isChat; #wantsStart;
    #final = { text: '', tokens: [], finish: 'running', stats: null };

    constructor(model, prompt, options) {
        this.#model = model;
        this.#prompt = prompt;
        this.#options = options;
        this.#isChat = this.#wantsStart = Array.isArray(prompt) && typeof prompt[0] === 'object';
    }

    #keep(event) {
        const e = koffi.decode(event, 'fr_token_event');
        let text = textAt(e.text, e.n_bytes);
        if (text && this.#wantsStart) {
            if (text[0] === ' ') text = text.slice(1); /* the space that the chat format puts before an answer */
            this.#wantsStart = false;
        }
        if (text) this.#pieces.push(text);
        return 0;
    }

    #requestOptions() {
        const { maxTokens = 256, draft = 'auto', stop, prediction, logitBias, ...others } = this.#options;
        const tokens = this.#model._promptTokens(this.#prompt), sampling = fr().sampling_default();
        const stops = strings('stop', stop), drafts = strings('draft', draft).filter((d) => d !== 'none');
        const expected = ids('prediction', prediction ?? []), bias = biases(logitBias ?? {});
        const o = sized('fr_request_options', {
            prompt: tokens, n_prompt: tokens.length, max_tokens: integer('maxTokens', maxTokens, 'int64_t'), sampling,
            stops: stops.length ? stops : null, n_stops: stops.length,
            drafts: drafts.length ? drafts : null, n_drafts: drafts.length,
            prediction: expected.length ? expected : null, n_prediction: expected.length,
            logit_bias: bias.length ? bias : null, n_logit_bias: bias.length,
        });
        for (const [key, value] of Object.entries(others)) {
            if (!(snake(key) in OPTIONS)) throw new TypeError(`'${key}' is not an option of a generation`);
            if (value === undefined || value === null) continue;
            (snake(key) in sampling ? sampling : o)[snake(key)] = checkedOption(key, value);
        }
        return o;
    }

    async #open() {
        const o = this.#requestOptions(), out = [null], err = {};
        for (const spec of o.drafts || []) await this.#model._openDraft(spec);
        this.#callback = koffi.register((_, event) => this.#keep(event), 'fr_on_token *');
        o.on_token = this.#callback;
        await this.#model._exclusive((engine) => check(fr().request_open(out, engine, o, err), err));
        this.#request = out[0];
    }

    async *[Symbol.asyncIterator]() {
        try {
            await this.#open();
            for (;;) {
                while (this.#pieces.length) yield this.#pieces.shift();
                if (!this.#request || fr().request_finish_reason(this.#request)) break;
                await this.#model._step();
            }
            if (this.finish === 'error') throw new ForerunError(koffi.decode(fr().request_error(this.#request), 'fr_error'));
        } finally {
            await this.close();
        }
    }

    #results() {
        if (!this.#request) return this.#final;
        const n = [0], nBytes = [0], counts = result('fr_stats'), drafts = result('fr_draft_stats');
        const text = textAt(fr().request_text(this.#request, nBytes), nBytes[0]);
        const tokens = tokensAt(fr().request_tokens(this.#request, n), n[0]);
        fr().request_get_stats(this.#request, counts);
        fr().request_get_draft_stats(this.#request, drafts);
        const stats = { ...counts, ...drafts, draft_error: fr().request_draft_error(this.#request) };
        delete stats.struct_size;
        stats.counters = stats.counters.slice(0, Number(stats.n_counters));
        return {
            text: this.#isChat && text[0] === ' ' ? text.slice(1) : text, tokens, stats,
            finish: fr().finish_name(fr().request_finish_reason(this.#request)),
        };
    }

    get text() { return this.#results().text; }
    get tokens() { return this.#results().tokens; }
    get finish() { return this.#results().finish; }
    get stats() { return this.#results().stats; }

    /* Ends the generation. What has been generated so far can still be read. */
    async close() {
        await this.#model._exclusive(() => {
            if (this.#request) {
                this.#final = this.#results();
                if (this.#final.finish === 'running') this.#final.finish = 'cancelled';
                fr().request_close(this.#request);
            }
            if (this.#callback) koffi.unregister(this.#callback);
            this.#request = this.#callback = null;
        });
    }
}

/* A conversation: `messages` is its history, which may be edited. Options are those of Model.stream, and `system`. */
class Chat {
    constructor(model, { system, ...options } = {}) {
        this.model = model;
        this.options = options;
        this.messages = system ? [{ role: 'system', content: system }] : [];
    }

    /* Yields the answer piece by piece. If the iteration ends early, the pieces so far are the answer. */
    async *stream(text, options = {}) {
        this.messages = [...this.messages, { role: 'user', content: text }];
        let said = '';
        try {
            for await (const piece of this.model.stream(this.messages, { ...this.options, ...options })) {
                said += piece;
                yield piece;
            }
        } finally {
            this.messages = [...this.messages, { role: 'assistant', content: said }];
        }
    }

    /* Returns the whole answer. */
    async send(text, options = {}) {
        let said = '';
        for await (const piece of this.stream(text, options)) said += piece;
        return said;
    }
}

class Model {
    #model = null; #engine = null; #last = Promise.resolve(); #drafts = new Set(); #chatTemplate = null;

    /* Options: draft (opened at once, so that the first generation need not wait), nCtx (0: the model's, at most 4096),
     * threads (0: one per core), requests (streams that may be open at once), kv ('f16', 'f32', 'q8'), activations ('q16',
     * 'q8'), backend, chatTemplate (a built-in format, or the text of a template). */
    static async open(path, o = {}) {
        const self = new Model(), out = [null], threads = integer('threads', o.threads ?? 0, 'int');
        const kv = o.kv ?? 'f16', drafts = strings('draft', o.draft);
        if (!Object.hasOwn(KV_TYPES, kv)) throw new RangeError(`kv must be one of ${Object.keys(KV_TYPES).join(', ')}, not ${kv}`);
        self.#chatTemplate = optional('chatTemplate', o.chatTemplate);
        const modelOptions = sized('fr_model_options', {
            backend: optional('backend', o.backend), activations: optional('activations', o.activations), n_threads: threads,
        });
        const engineOptions = sized('fr_engine_options', {
            n_threads: threads, n_ctx: integer('nCtx', o.nCtx ?? 0, 'int'), kv_type: KV_TYPES[kv],
            max_requests: integer('requests', o.requests ?? 1, 'int'),
        });
        await background(fr().model_open, out, text('the path', path), modelOptions);
        self.#model = out[0];
        try {
            await background(fr().engine_open, out, self.#model, engineOptions);
            self.#engine = out[0];
            for (const spec of drafts) await self._openDraft(spec);
        } catch (why) {
            await self.close();
            throw why;
        }
        return self;
    }

    /* Runs f(engine) when all earlier calls have ended. */
    _exclusive(f) {
        const run = this.#last.then(() => f(this.#engine));
        this.#last = run.catch(() => {});
        return run;
    }

    _step() { return this._exclusive((engine) => background(fr().engine_step, engine)); }

    async _openDraft(spec) {
        if (this.#drafts.has(spec)) return;
        await this._exclusive((engine) => background(fr().engine_open_draft, engine, spec));
        this.#drafts.add(spec);
    }

    #opened() {
        if (!this.#engine) throw new Error('the model is closed');
        return this.#model;
    }

    /* The fields of fr_model_info as an object. */
    get info() {
        const info = result('fr_model_info');
        fr().model_get_info(this.#opened(), info);
        delete info.struct_size;
        return info;
    }

    /* Returns the tokens of a prompt. special: names such as "</s>" become the special tokens. */
    tokenize(text, { special = false } = {}) {
        if (typeof text !== 'string') throw new TypeError(`the text must be a string, not ${typeOf(text)}`);
        const data = Buffer.from(text), out = [null], n = [0], err = {};
        const flags = TOKENIZE_PROMPT | (special ? TOKENIZE_SPECIAL : 0);
        check(fr().tokenize(this.#opened(), data, data.length, flags, out, n, err), err);
        const tokens = tokensAt(out[0], n[0]);
        fr().free(out[0]);
        return tokens;
    }

    /* Returns the text of tokens. */
    detokenize(tokens) {
        const out = [null], n = [0], err = {}, checked = ids('the tokens', tokens);
        check(fr().detokenize(this.#opened(), checked, checked.length, out, n, err), err);
        const text = textAt(out[0], n[0]);
        fr().free(out[0]);
        return text;
    }

    /* Returns the tokens of a conversation, [{ role, content }, ...], up to where the answer begins. */
    chatTokens(messages) {
        const prompt = result('fr_chat_result'), err = {}, options = sized('fr_chat_options', { chat_template: this.#chatTemplate });
        check(fr().chat_apply(this.#opened(), checkedMessages(messages), messages.length, options, prompt, err), err);
        const tokens = tokensAt(prompt.tokens, prompt.n_tokens);
        fr().free(prompt.tokens);
        fr().free(prompt.text);
        return tokens;
    }

    _promptTokens(prompt) {
        if (typeof prompt === 'string') return this.tokenize(prompt);
        if (!Array.isArray(prompt)) throw new TypeError(`the prompt must be a text, or an array of tokens or messages, not ${typeOf(prompt)}`);
        return typeof prompt[0] === 'object' ? this.chatTokens(prompt) : ids('the prompt', prompt);
    }

    /* Generates, as an async iterable (Stream). prompt: a text, an array of tokens, or an array of messages { role,
     * content }. Options: maxTokens (256; 0: until the context is full), draft ('auto'), stop (strings), and the fields
     * of fr_sampling and fr_request_options: temperature, topK, topP, minP, seed, repeatPenalty, treeBudget, verify,
     * ignoreEos, ..., logitBias (an object of biases by token) and prediction (an array of tokens). */
    stream(prompt, options = {}) { return new Stream(this, prompt, options); }

    /* Generates to the end, and returns { text, tokens, finish, stats }. Options are those of stream. */
    async generate(prompt, options = {}) {
        const stream = this.stream(prompt, options);
        for await (const _ of stream);
        return { text: stream.text, tokens: stream.tokens, finish: stream.finish, stats: stream.stats };
    }

    /* Begins a conversation with this model. */
    chat(options = {}) { return new Chat(this, options); }

    /* Closes the model when the calls that run have ended. */
    close() {
        return this._exclusive(() => {
            if (this.#engine) fr().engine_close(this.#engine);
            if (this.#model) fr().model_close(this.#model);
            this.#engine = this.#model = null;
        });
    }
}

const libraryVersion = () => fr().version();

module.exports = { Model, Stream, Chat, ForerunError, libraryVersion, types };
