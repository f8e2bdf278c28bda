// check_responses.mjs - the Responses API by npm's client of OpenAI against `forerun serve`.
//
//     node check_responses.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
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
const request = { model: 'target', instructions: 'You tell stories.', input: 'Tell me about a dog.', temperature: 0 };

const checks = {
  async 'a response'() {
    const response = await client.responses.create({ ...request, max_output_tokens: 30 });
    assert.ok(response.output_text.length > 10);
    assert.equal(response.status, 'incomplete');
    assert.equal(response.incomplete_details.reason, 'max_output_tokens');
    assert.equal(response.usage.output_tokens, 30);
  },
  async 'a stream has the same text'() {
    const whole = await client.responses.create({ ...request, max_output_tokens: 60 });
    const stream = await client.responses.create({ ...request, max_output_tokens: 60, stream: true });
    const types = [], numbers = [];
    let text = '', last;
    for await (const event of stream) {
      if (event.type === 'response.output_text.delta') text += event.delta;
      if (types.at(-1) !== event.type) types.push(event.type);
      numbers.push(event.sequence_number);
      last = event;
    }
    assert.equal(text, whole.output_text);
    assert.deepEqual(types, ['response.created', 'response.in_progress', 'response.output_item.added',
      'response.content_part.added', 'response.output_text.delta', 'response.output_text.done',
      'response.content_part.done', 'response.output_item.done', 'response.' + whole.status]);
    assert.deepEqual(numbers, numbers.map((_, i) => i));
    assert.equal(last.response.output[0].content[0].text, text);
  },
  async 'the stream helper of the client'() {
    const stream = client.responses.stream({ ...request, max_output_tokens: 20 });
    let deltas = '';
    stream.on('response.output_text.delta', (event) => (deltas += event.delta));
    const response = await stream.finalResponse();
    assert.equal(response.output[0].content[0].text, deltas);
  },
  async 'a conversation goes on with the items of the answer'() {
    const first = await client.responses.create({ ...request, max_output_tokens: 20 });
    const input = [{ role: 'user', content: request.input }, ...first.output, { role: 'user', content: 'And then?' }];
    const second = await client.responses.create({ ...request, input, max_output_tokens: 20 });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens + 20);
  },
  async 'memory is refused by name'() {
    await assert.rejects(client.responses.create({ ...request, previous_response_id: 'resp_1' }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, 'previous_response_id');
      return true;
    });
  },
};

await runChecks(checks);
