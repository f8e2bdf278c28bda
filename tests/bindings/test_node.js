/* test_node.js - the Node binding, with the library of this build: FORERUN_LIBRARY, or build/release/libforerun.so.
 *
 * It runs in the root of the project and reports as cmocka does, for tests/support/run_tests.c. koffi is looked for beside
 * the binding (npm install --prefix bindings/node) and in FORERUN_NODE_MODULES; without it the test is skipped. */
'use strict';

const assert = require('assert');
const { execFileSync } = require('child_process');
const fs = require('fs');
const Module = require('module');
const os = require('os');
const path = require('path');

const MODEL = 'models/target.gguf', PROGRAM = 'build/release/forerun', PROMPT = 'Once upon a time';
process.env.FORERUN_LIBRARY ||= path.resolve('build/release/libforerun.so');
if (process.env.FORERUN_NODE_MODULES) {
    process.env.NODE_PATH = path.resolve(process.env.FORERUN_NODE_MODULES, 'node_modules');
    Module._initPaths();
}
let forerun, koffi;
try {
    forerun = require(path.resolve('bindings/node/forerun.js'));
    koffi = Module.createRequire(path.resolve('bindings/node/forerun.js'))('koffi');
} catch (why) {
    if (why.code !== 'MODULE_NOT_FOUND') throw why;
    console.log('skipped: koffi is not installed; run npm install --prefix bindings/node, or set FORERUN_NODE_MODULES');
    console.log('[  SKIPPED ] 1 test(s)');
    process.exit(0);
}
const { Model } = forerun;

/* What `forerun run` prints, without the newline that it adds. */
const program = (...options) => execFileSync(PROGRAM, ['run', '-m', MODEL, ...options], { encoding: 'utf8', stdio: 'pipe' }).slice(0, -1);

async function withModel(options, f) {
    const model = await Model.open(MODEL, options);
    try { await f(model); } finally { await model.close(); }
}

async function collect(stream) {
    const pieces = [];
    for await (const piece of stream) pieces.push(piece);
    return pieces;
}

const tests = {
    async structs_have_the_layout_of_the_c_compiler() {
        const bound = {};
        for (const [name, type] of Object.entries(forerun.types)) {
            const fields = {};
            for (const [field, member] of Object.entries((koffi.type || koffi.introspect)(type).members))
                fields[field] = [member.offset, koffi.sizeof(member.type)];
            bound[name] = { size: koffi.sizeof(type), fields };
        }
        const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'forerun-')), 'bound.json');
        fs.writeFileSync(file, JSON.stringify(bound));
        const found = execFileSync('python3', ['-B', 'tests/bindings/layout.py', file, 'bindings/node/forerun.js'], { encoding: 'utf8' });
        fs.rmSync(path.dirname(file), { recursive: true });
        assert.strictEqual(found.trim(), '');
    },

    /* C would read them as pointers, cut their upper bits off, or end them at a zero. */
    async wrong_values_do_not_reach_c() {
        await withModel({}, async (model) => {
            const cases = [
                [TypeError, /'grammar'/, { grammar: 5 }],
                [TypeError, /'user'/, { user: 5 }],
                [TypeError, /'nPrompt'/, { nPrompt: 5 }],
                [TypeError, /'structSize'/, { structSize: 5 }],
                [RangeError, /maxTokens must be from -9223372036854775808/, { maxTokens: 2n ** 64n + 3n }],
                [RangeError, /maxTokens is 1e\+300/, { maxTokens: 1e300 }],
                [TypeError, /maxTokens must be an integer, not 3.5/, { maxTokens: 3.5 }],
                [TypeError, /maxTokens must be an integer, not string/, { maxTokens: '3' }],
                [TypeError, /maxTokens must be an integer, not null/, { maxTokens: null }],
                [RangeError, /topK must be from -2147483648 to 2147483647/, { topK: 2 ** 32 + 1 }],
                [RangeError, /treeBudget must be from/, { treeBudget: -(2 ** 31) - 1 }],
                [RangeError, /seed must be from 0 to 18446744073709551615/, { seed: -1 }],
                [RangeError, /seed must be from 0/, { seed: 2n ** 64n }],
                [TypeError, /temperature must be a number, not string/, { temperature: 'hot' }],
                [RangeError, /temperature must be at most/, { temperature: 1e300 }],
                [TypeError, /verify must be a string, not number/, { verify: 5 }],
                [RangeError, /stop contains a zero byte/, { stop: 'a\0b' }],
                [TypeError, /stop must be a string or an array/, { stop: 5 }],
                [TypeError, /draft must be a string, not number/, { draft: [5] }],
                [TypeError, /logitBias must be an object/, { logitBias: [1] }],
                [RangeError, /a token of logitBias/, { logitBias: { [2 ** 32]: 1 } }],
                [TypeError, /a bias of logitBias/, { logitBias: { 1: 'x' } }],
                [RangeError, /prediction\[1\] must be from/, { prediction: [1, 2 ** 40] }],
            ];
            for (const [kind, message, options] of cases)
                await assert.rejects(model.generate(PROMPT, options), (why) => why instanceof kind && message.test(why.message), message);
            for (const [prompt, kind, message] of [
                [[1, 2 ** 32 + 1], RangeError, /the prompt\[1\] must be from/],
                [[1, 'x'], TypeError, /the prompt\[1\] must be an integer/],
                [5, TypeError, /the prompt must be a text/],
                [[{ role: 'user' }], TypeError, /the content of a message must be a string/],
                [[{ role: 'user', content: 'a\0b' }], RangeError, /zero byte/],
            ])
                await assert.rejects(model.generate(prompt), (why) => why instanceof kind && message.test(why.message), message);
            assert.throws(() => model.detokenize([2 ** 32 + 5]), RangeError);
            assert.throws(() => model.tokenize(5), TypeError);
            const o = { maxTokens: 3, ignoreEos: true, seed: 2n ** 64n - 1n, topK: 2 ** 31 - 1, prediction: model.tokenize(PROMPT) };
            assert.strictEqual((await model.generate(PROMPT, { ...o, draft: 'prediction' })).finish, 'length');
            const token = (await model.generate(PROMPT, { maxTokens: 1 })).tokens[0];
            const banned = await model.generate(PROMPT, { maxTokens: 1, logitBias: { [token]: -Infinity } });
            assert.notStrictEqual(banned.tokens[0], token);
        });
        for (const [options, kind] of [[{ nCtx: 2 ** 32 + 64 }, RangeError], [{ threads: 2 ** 40 }, RangeError],
            [{ requests: '2' }, TypeError], [{ kv: 'f8' }, RangeError], [{ backend: 5 }, TypeError], [{ draft: 5 }, TypeError]])
            await assert.rejects(Model.open(MODEL, options), kind);
    },

    async versions_agree() {
        const { version } = JSON.parse(fs.readFileSync('bindings/node/package.json', 'utf8'));
        assert.strictEqual(forerun.libraryVersion(), version);
    },

    async generates_what_the_program_generates() {
        await withModel({}, async (model) => {
            const greedy = await model.generate(PROMPT, { maxTokens: 40 });
            assert.strictEqual(greedy.text, program('-p', PROMPT, '-n', '40', '--temp', '0'));
            assert.strictEqual(greedy.finish, 'length');
            assert.strictEqual(greedy.tokens.length, 40);
            const sampled = await model.generate(PROMPT, { maxTokens: 40, temperature: 0.8, topP: 0.9, seed: 7 });
            assert.strictEqual(sampled.text, program('-p', PROMPT, '-n', '40', '--temp', '0.8', '--top-p', '0.9', '--seed', '7'));
        });
    },

    async drafting_changes_no_text() {
        await withModel({ draft: 'suffix' }, async (model) => {
            const o = { maxTokens: 60, temperature: 0.7, seed: 3 };
            const plain = await model.generate(PROMPT, { ...o, draft: 'none' });
            assert.strictEqual(plain.stats.n_steps, 60);
            for (const draft of ['auto', 'suffix', ['ngram-trie', 'pld']]) {
                const drafted = await model.generate(PROMPT, { ...o, draft });
                assert.strictEqual(drafted.text, plain.text);
                assert.strictEqual(drafted.stats.logits_hash, plain.stats.logits_hash);
            }
            // a budget of its own, because an automatic one may find that nothing pays on a busy machine
            const fixed = await model.generate(PROMPT, { ...o, draft: ['ngram-trie', 'pld'], treeBudget: 8 });
            assert.strictEqual(fixed.text, plain.text);
            assert(fixed.stats.drafted > 0);
        });
    },

    async a_stream_is_the_text_in_pieces_and_the_event_loop_goes_on() {
        await withModel({ requests: 2 }, async (model) => {
            const whole = (await model.generate(PROMPT, { maxTokens: 100 })).text;
            let ticks = 0;
            const timer = setInterval(() => ticks++, 1);
            const [a, b] = await Promise.all([1, 2].map(() => collect(model.stream(PROMPT, { maxTokens: 100 }))));
            clearInterval(timer);
            assert(a.length > 5 && ticks > 0);
            assert.strictEqual(a.join(''), whole);
            assert.strictEqual(b.join(''), whole);
            const early = model.stream(PROMPT);
            let first;
            for await (first of early) break;
            assert.strictEqual(early.finish, 'cancelled');
            assert(early.text.startsWith(first));
        });
    },

    async text_ends_before_a_stop_string() {
        await withModel({}, async (model) => {
            const whole = (await model.generate(PROMPT, { maxTokens: 60 })).text, stop = whole.slice(40, 46);
            const stopped = await model.generate(PROMPT, { maxTokens: 60, stop });
            assert.strictEqual(stopped.finish, 'stop');
            assert.strictEqual(stopped.text, whole.slice(0, whole.indexOf(stop)));
        });
    },

    async a_chat_has_a_history() {
        await withModel({}, async (model) => {
            const chat = model.chat({ system: 'You are kind.', maxTokens: 20 });
            const answer = await chat.send('Who are you?');
            const alone = program('--chat', '--system', 'You are kind.', '-p', 'Who are you?', '-n', '20', '--temp', '0');
            assert.strictEqual(answer, alone.replace(/^ /, ''));
            const second = (await collect(chat.stream('Why?'))).join('');
            assert.deepStrictEqual(chat.messages.map((m) => m.role), ['system', 'user', 'assistant', 'user', 'assistant']);
            assert.strictEqual(second, (await model.generate(chat.messages.slice(0, -1), { maxTokens: 20 })).text);
        });
    },

    async tokens_and_back() {
        await withModel({}, async (model) => {
            assert(model.detokenize(model.tokenize('Größe 😀 </s>')).endsWith('Größe 😀 </s>'));
            assert(model.tokenize('</s>', { special: true }).length < model.tokenize('</s>').length);
            assert.strictEqual(model.info.architecture, 'llama');
            assert.strictEqual(model.info.n_vocab, 4096);
        });
    },

    async errors_are_exceptions() {
        await assert.rejects(Model.open('/nonexistent.gguf'), { code: -2, message: /nonexistent/ });
        await assert.rejects(Model.open(MODEL, { draft: 'magic' }), { code: -1, message: /magic/ });
        const model = await Model.open(MODEL, { nCtx: 64 });
        await assert.rejects(model.generate('a '.repeat(100)), { code: -6, message: /longer than the context/ });
        await assert.rejects(model.generate(PROMPT, { topp: 1 }), TypeError);
        await assert.rejects(model.generate(PROMPT, { temperature: 'hot' }), TypeError);
        await model.generate(PROMPT, { maxTokens: 1, seed: null });
        assert.match((await model.generate(PROMPT, { maxTokens: 0 })).finish, /context|eos/);
        await model.close();
        await assert.rejects(model.generate(PROMPT), /closed/);
    },
};

(async () => {
    const names = Object.keys(tests), failed = [];
    for (const name of names) {
        try {
            await tests[name]();
        } catch (why) {
            failed.push(name);
            console.log(name, why);
        }
    }
    console.log(`[  PASSED  ] ${names.length - failed.length} test(s).`);
    if (failed.length) console.log(`[  FAILED  ] ${failed.length} test(s): ${failed.join(', ')}`);
    process.exit(failed.length ? 1 : 0);
})();
