// check_ai.mjs - the AI SDK (npm's `ai` with @ai-sdk/openai-compatible) against `forerun serve`: texts, streams, tools, abort.
//
//     node check_ai.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
// Both modules may support only `import`.
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, tool, jsonSchema } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const url = process.argv[2];
const provider = createOpenAICompatible({ name: 'forerun', baseURL: url + '/v1', includeUsage: true });
const prompt = 'Tell me about a dog.';
const slots = async () => (await (await fetch(url + '/slots')).json()).filter((slot) => slot.state !== 'idle').length;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const weather = tool({
  description: 'the weather of a city',
  inputSchema: jsonSchema({ type: 'object', properties: { city: { enum: ['Oslo', 'Rome'] } }, required: ['city'] }),
  execute: async ({ city }) => 'rain in ' + city,
});

const checks = {
  async 'generateText'() {
    const result = await generateText({ model: provider('target'), prompt, maxOutputTokens: 40, seed: 1 });
    assert.ok(result.text.length > 10);
    assert.equal(result.usage.outputTokens, 40);
    assert.equal(result.finishReason, 'length');
  },
  async 'streamText has the same text'() {
    const options = { model: provider('target'), system: 'You tell stories.', prompt, maxOutputTokens: 60, temperature: 0.8, seed: 2 };
    const whole = await generateText(options);
    const stream = streamText(options);
    let text = '', n = 0;
    for await (const piece of stream.textStream) text += piece, n++;
    assert.equal(text, whole.text);
    assert.ok(n > 1);
    assert.equal((await stream.usage).outputTokens, 60);
  },
  async 'stop sequences'() {
    const whole = await generateText({ model: provider('target'), prompt, maxOutputTokens: 60, temperature: 0 });
    const stop = whole.text.trim().split(' ')[4];
    const result = await generateText({ model: provider('target'), prompt, maxOutputTokens: 60, temperature: 0, stopSequences: [stop] });
    assert.equal(result.finishReason, 'stop');
    assert.equal(result.text, whole.text.slice(0, whole.text.indexOf(stop)));
  },
  async 'tools reach the template'() {
    const options = { model: provider('toolbox'), prompt, maxOutputTokens: 20, temperature: 0 };
    const without = await generateText(options);
    const result = await generateText({ ...options, tools: { weather } });
    assert.ok(result.usage.inputTokens > without.usage.inputTokens);
    assert.deepEqual(result.toolCalls, []); // the model writes a story unless it must call a tool
    assert.ok(result.text.length > 10);
  },
  async 'a tool is called, and its result is there'() {
    const options = { model: provider('toolbox'), prompt, maxOutputTokens: 250, temperature: 0.8, seed: 3, tools: { weather }, toolChoice: { type: 'tool', toolName: 'weather' } };
    const result = await generateText(options);
    assert.equal(result.finishReason, 'tool-calls');
    assert.equal(result.toolCalls[0].toolName, 'weather');
    assert.match(result.toolResults[0].output, /^rain in (Oslo|Rome)$/);
    const stream = streamText(options);
    await stream.consumeStream();
    assert.deepEqual((await stream.toolCalls)[0].input, result.toolCalls[0].input);
  },
  async 'tools that the template has no place for are refused'() {
    await assert.rejects(generateText({ model: provider('target'), prompt, maxRetries: 0, tools: { weather } }), (error) => {
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /tools/);
      return true;
    });
  },
  async 'an aborted stream frees its place'() {
    const abort = new AbortController();
    const stream = streamText({ model: provider('target'), prompt, maxOutputTokens: 100000, abortSignal: abort.signal, onError() {},
                                providerOptions: { forerun: { ignore_eos: true } } });
    for await (const piece of stream.textStream) {
      if (piece) break;
    }
    abort.abort();
    for (let i = 0; i < 600 && (await slots()) > 0; i++) await pause(20);
    assert.equal(await slots(), 0);
  },
};

await runChecks(checks);
