// check_openai.mjs - npm's client of OpenAI against `forerun serve`: chat, stream, abort, errors, completions, models.
//
//     node check_openai.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const { OpenAI } = require('openai');
const url = process.argv[2];
const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'system', content: 'You tell stories.' }, { role: 'user', content: 'Tell me about a dog.' }];
const slots = async () => (await (await fetch(url + '/slots')).json()).filter((slot) => slot.state !== 'idle').length;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const checks = {
  async 'models are listed'() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ['target']);
    assert.equal((await client.models.retrieve('target')).id, 'target');
  },
  async 'embeddings'() { // the client requests base64 by default
    const input = ['The dog ran.', 'A dog was running.', 'Add 2 and 3.'];
    const { data } = await client.embeddings.create({ model: 'target', input });
    const plain = await client.embeddings.create({ model: 'target', input, encoding_format: 'float' });
    const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
    data.forEach((d, i) => assert.deepEqual(d.embedding, Array.from(Float32Array.from(plain.data[i].embedding))));
    assert.ok(Math.abs(dot(data[0].embedding, data[0].embedding) - 1) < 1e-5);
    assert.ok(dot(data[0].embedding, data[1].embedding) > dot(data[0].embedding, data[2].embedding));
  },
  async 'a chat completion'() {
    const answer = await client.chat.completions.create({ model: 'gpt-4o', messages, max_completion_tokens: 30, seed: 1 });
    assert.equal(answer.choices[0].message.role, 'assistant');
    assert.ok(answer.choices[0].message.content.length > 10);
    assert.equal(answer.usage.completion_tokens, 30);
    assert.equal(answer.choices[0].finish_reason, 'length');
  },
  async 'a stream has the same text'() {
    const options = { model: 'target', messages, max_tokens: 60, seed: 2, temperature: 0.8 };
    const whole = await client.chat.completions.create(options);
    const stream = await client.chat.completions.create({ ...options, stream: true, stream_options: { include_usage: true } });
    let text = '', usage, finish;
    for await (const event of stream) {
      text += event.choices[0]?.delta?.content ?? '';
      finish ??= event.choices[0]?.finish_reason;
      usage = event.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, 60);
    assert.equal(finish, 'length');
  },
  async 'the stream helper of the client'() {
    const runner = client.chat.completions.stream({ model: 'target', messages, max_tokens: 20, seed: 3 });
    let deltas = '';
    runner.on('content', (delta) => (deltas += delta));
    assert.equal((await runner.finalMessage()).content, deltas);
  },
  async 'an aborted stream frees its place'() {
    const stream = await client.chat.completions.create({ model: 'target', messages, stream: true, max_tokens: 900, ignore_eos: true });
    for await (const event of stream) {
      if (event.choices[0]?.delta?.content) break;
    }
    stream.controller.abort();
    for (let i = 0; i < 600 && (await slots()) > 0; i++) await pause(20);
    assert.equal(await slots(), 0);
  },
  async 'an aborted request frees its place'() {
    const abort = new AbortController();
    const answer = client.chat.completions.create({ model: 'target', messages, max_tokens: 900, ignore_eos: true }, { signal: abort.signal });
    answer.catch(() => {});
    while ((await slots()) === 0) await pause(2);
    abort.abort();
    await assert.rejects(answer, OpenAI.APIUserAbortError);
    for (let i = 0; i < 600 && (await slots()) > 0; i++) await pause(20);
    assert.equal(await slots(), 0);
  },
  async 'a wrong request is a BadRequestError that names the field'() {
    await assert.rejects(client.chat.completions.create({ model: 'target', messages, temperature: -1 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, 'temperature');
      return true;
    });
  },
  async 'completions of several prompts'() {
    const answer = await client.completions.create({ model: 'target', prompt: ['One', 'Two'], n: 2, max_tokens: 5 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  },
  async 'a prediction is accepted'() {
    const options = { model: 'target', messages, max_tokens: 60, seed: 4, temperature: 0.5, draft: 'none', tree_budget: 16 };
    const first = await client.chat.completions.create(options);
    const content = first.choices[0].message.content;
    const again = await client.chat.completions.create({ ...options, prediction: { type: 'content', content } });
    assert.equal(again.choices[0].message.content, content);
    assert.ok(again.usage.completion_tokens_details.accepted_prediction_tokens > 30);
  },
  async 'sixteen at once'() {
    const one = async (seed) => (await client.chat.completions.create({ model: 'target', messages, max_tokens: 40, seed })).choices[0].message.content;
    const seeds = Array.from({ length: 16 }, (_, i) => i);
    const together = await Promise.all(seeds.map(one));
    for (const seed of seeds) assert.equal(together[seed], await one(seed));
  },
};

await runChecks(checks);
