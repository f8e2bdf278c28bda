// check_anthropic.mjs - npm's client of Anthropic against `forerun serve`: messages, stream, abort, errors, count_tokens.
//
//     node check_anthropic.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const { Anthropic } = require('@anthropic-ai/sdk');
const url = process.argv[2];
const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const prompt = { model: 'target', system: 'You tell stories.', messages: [{ role: 'user', content: 'Tell me about a dog.' }] };
const slots = async () => (await (await fetch(url + '/slots')).json()).filter((slot) => slot.state !== 'idle').length;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const checks = {
  async 'a message'() {
    const message = await client.messages.create({ ...prompt, max_tokens: 30, temperature: 0 });
    assert.equal(message.content[0].type, 'text');
    assert.ok(message.content[0].text.length > 10);
    assert.equal(message.stop_reason, 'max_tokens');
    assert.equal(message.usage.output_tokens, 30);
  },
  async 'a stream has the same text'() {
    const options = { ...prompt, max_tokens: 60, temperature: 0 };
    const whole = await client.messages.create(options);
    const stream = client.messages.stream(options);
    let text = '';
    stream.on('text', (delta) => (text += delta));
    const message = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(message.content.map((block) => block.text), [text]);
    assert.equal(message.stop_reason, whole.stop_reason);
    assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
    assert.equal(message.usage.input_tokens + message.usage.cache_read_input_tokens,
      whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
  },
  async 'a message in the format of a schema'() {
    const schema = { type: 'object', properties: { dog: { enum: ['Rex', 'Bella'] } }, required: ['dog'], additionalProperties: false };
    const output_config = { format: { type: 'json_schema', schema } };
    const message = await client.messages.create({ model: 'target', max_tokens: 100, messages: [{ role: 'user', content: 'A dog' }], output_config });
    assert.match(JSON.parse(message.content[0].text).dog, /^(Rex|Bella)$/);
    assert.equal(message.stop_reason, 'end_turn');
  },
  async 'tokens are counted'() {
    const count = await client.messages.countTokens(prompt);
    const { usage } = await client.messages.create({ ...prompt, max_tokens: 1 });
    assert.equal(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  },
  async 'models have a type and a name'() {
    const models = await client.models.list();
    assert.equal(models.data[0].type, 'model');
    assert.equal(models.data[0].display_name, 'target');
    assert.ok(new Date(models.data[0].created_at).getTime() > 0);
    assert.equal((await client.models.retrieve('target')).id, 'target');
  },
  async 'thinking, effort and context management are understood'() {
    for (const thinking of [{ type: 'enabled', budget_tokens: 1024 }, { type: 'adaptive' }, { type: 'disabled' }]) {
      const message = await client.messages.create({ ...prompt, max_tokens: 2000, stop_sequences: ['e', 'a'], thinking,
        output_config: { effort: 'low' }, context_management: { edits: [] } });
      assert.equal(message.type, 'message');
    }
  },
  async 'an answer can be begun'() {
    const begun = [...prompt.messages, { role: 'assistant', content: 'Once upon a' }];
    const message = await client.messages.create({ ...prompt, system: undefined, messages: begun, max_tokens: 4, temperature: 0 });
    assert.match(message.content[0].text, /^ time/);
  },
  async 'an aborted stream frees its place'() {
    const stream = await client.messages.create({ ...prompt, max_tokens: 900, ignore_eos: true, stream: true });
    for await (const event of stream) {
      if (event.type === 'content_block_delta') break;
    }
    stream.controller.abort();
    for (let i = 0; i < 600 && (await slots()) > 0; i++) await pause(20);
    assert.equal(await slots(), 0);
  },
  async 'a wrong request is a BadRequestError'() {
    await assert.rejects(client.messages.create({ ...prompt, max_tokens: 5, temperature: -1 }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.equal(error.error.error.type, 'invalid_request_error');
      assert.match(error.message, /temperature/);
      return true;
    });
  },
};

await runChecks(checks);
