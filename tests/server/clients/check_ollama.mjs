// check_ollama.mjs - npm's client of Ollama against `forerun serve`: models, chats, texts, tools, schemas, embeddings.
//
//     node check_ollama.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const { Ollama } = require('ollama');
const url = process.argv[2];
const ollama = new Ollama({ host: url });
const messages = [{ role: 'user', content: 'Tell me about a dog.' }];
const options = { temperature: 0, repeat_penalty: 1, num_predict: 30, num_ctx: 4096 };
const busy = async () => (await (await fetch(url + '/slots')).json()).filter((slot) => slot.state !== 'idle').length;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const checks = {
  async 'models and versions'() {
    const { models } = await ollama.list();
    assert.deepEqual(models.map((model) => model.name), ['target', 'toolbox']);
    assert.equal(models[0].details.format, 'gguf');
    assert.match(models[0].digest, /^[0-9a-f]{64}$/);
    const shown = await ollama.show({ model: 'target' });
    assert.match(shown.template, /ASSISTANT/);
    assert.ok(shown.capabilities.includes('completion'));
    assert.equal(shown.model_info['general.architecture'], 'llama');
    assert.equal((await ollama.ps()).models.length, 2);
    if (ollama.version) assert.match((await ollama.version()).version, /^\d+\.\d+/); // since 0.6
  },
  async 'a chat, whole and streamed'() {
    const whole = await ollama.chat({ model: 'target:latest', messages, options });
    assert.equal(whole.message.role, 'assistant');
    assert.ok(whole.message.content.length > 10);
    assert.equal(whole.done_reason, 'length');
    assert.equal(whole.eval_count, 30);
    assert.ok(whole.total_duration > 0 && whole.prompt_eval_count > 0);
    let text = '', last;
    for await (const part of await ollama.chat({ model: 'target', messages, options, stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, whole.message.content);
    assert.ok(last.done);
    assert.equal(last.eval_count, 30);
  },
  async 'a text, templated, raw and streamed'() {
    const whole = await ollama.generate({ model: 'target', prompt: 'Tell me about a dog.', options });
    const chat = await ollama.chat({ model: 'target', messages, options });
    assert.equal(whole.response, chat.message.content);
    const raw = await ollama.generate({ model: 'target', prompt: 'Once upon a time', raw: true, options });
    assert.match(raw.response, /^, there was/);
    let text = '';
    for await (const part of await ollama.generate({ model: 'target', prompt: 'Once upon a time', raw: true, options, stream: true })) {
      text += part.response;
    }
    assert.equal(text, raw.response);
    const loaded = await ollama.generate({ model: 'target', prompt: '', keep_alive: '5m' });
    assert.equal(loaded.done_reason, 'load');
  },
  async 'an answer in the format of a schema'() {
    const schema = { type: 'object', properties: { dog: { enum: ['Rex', 'Bella'] } }, required: ['dog'], additionalProperties: false };
    const answer = await ollama.chat({ model: 'target', messages, format: schema, options: { num_predict: 100 } });
    assert.match(JSON.parse(answer.message.content).dog, /^(Rex|Bella)$/);
    const json = await ollama.generate({ model: 'target', prompt: 'A dog', format: 'json', options: { temperature: 0, num_predict: 200, seed: 1 } });
    if (json.done_reason === 'stop') JSON.parse(json.response);
  },
  async 'tools'() {
    const tools = [{ type: 'function', function: { name: 'weather', description: 'The weather', parameters: {
      type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'] } } }];
    const earlier = [...messages, { role: 'assistant', content: '', tool_calls: [{ function: { name: 'weather', arguments: { city: 'Rome' } } }] },
      { role: 'tool', tool_name: 'weather', content: 'sunny' }];
    const answer = await ollama.chat({ model: 'toolbox', messages: earlier, tools, options });
    assert.equal(typeof answer.message.content, 'string');
  },
  async 'embeddings'() {
    const { embeddings } = await ollama.embed({ model: 'target', input: ['a dog', 'a cat'] });
    assert.equal(embeddings.length, 2);
    assert.ok(Math.abs(embeddings[0].reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);
    const { embedding } = await ollama.embeddings({ model: 'target', prompt: 'a dog' });
    assert.deepEqual(embedding, embeddings[0]);
  },
  async 'an aborted stream frees its place'() {
    const stream = await ollama.chat({ model: 'target', messages, options: { num_predict: -1, ignore_eos: true }, stream: true });
    let n = 0;
    await assert.rejects(async () => {
      for await (const part of stream) if (part.message.content && ++n === 2) stream.abort();
    });
    for (let i = 0; i < 600 && (await busy()) > 0; i++) await pause(20);
    assert.equal(await busy(), 0);
  },
  async 'errors have a message'() {
    await assert.rejects(ollama.chat({ model: 'target', messages, options: { temperature: -1 } }), /temperature/);
    await assert.rejects(ollama.chat({ model: 'nobody', messages }), /nobody/);
  },
};

await runChecks(checks);
