// check_structured.mjs - structured outputs, log-probabilities and biases by npm's client of OpenAI with zod against `forerun serve`.
//
//     node check_structured.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
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
const { zodResponseFormat, zodTextFormat } = require('openai/helpers/zod');
const { z } = require('zod');
const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'Tell me about a dog.' }];
const Dog = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(20), tricks: z.array(z.enum(['sit', 'roll'])).max(3) });
const chat = { model: 'target', messages, max_completion_tokens: 200, seed: 5 };

const checks = {
  async 'chat.completions.parse with zod'() {
    const answer = await client.chat.completions.parse({ ...chat, response_format: zodResponseFormat(Dog, 'dog') });
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.deepEqual(Dog.parse(answer.choices[0].message.parsed), JSON.parse(answer.choices[0].message.content));
  },
  async 'the stream helper parses the same'() {
    const options = { ...chat, response_format: zodResponseFormat(Dog, 'dog') };
    const whole = await client.chat.completions.parse(options);
    const streamed = await client.chat.completions.stream(options).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
  },
  async 'json_object'() {
    const answer = await client.chat.completions.create({ ...chat, response_format: { type: 'json_object' }, temperature: 0 });
    assert.ok(answer.choices[0].message.content.startsWith('{'));
    if (answer.choices[0].finish_reason === 'stop') JSON.parse(answer.choices[0].message.content);
  },
  async 'responses.parse with zod'() {
    const request = { model: 'target', input: 'Tell me about a dog.', max_output_tokens: 200, seed: 5, text: { format: zodTextFormat(Dog, 'dog') } };
    const response = await client.responses.parse(request);
    assert.ok(Dog.parse(response.output_parsed));
    const streamed = await client.responses.stream(request).finalResponse();
    assert.deepEqual(streamed.output_parsed, response.output_parsed);
  },
  async 'log-probabilities of a chat, streamed and not'() {
    const options = { ...chat, max_completion_tokens: 30, logprobs: true, top_logprobs: 4 };
    const whole = (await client.chat.completions.create(options)).choices[0];
    const { content } = whole.logprobs;
    assert.equal(content.map((token) => token.token).join(''), whole.message.content);
    assert.equal(Buffer.from(content.flatMap((token) => token.bytes)).toString(), whole.message.content);
    assert.ok(content.every((token) => token.logprob < 0 && token.top_logprobs.length === 4));
    assert.ok(content.every((token) => token.top_logprobs[0].logprob >= token.logprob));
    const streamed = (await client.chat.completions.stream(options).finalChatCompletion()).choices[0];
    assert.deepEqual(streamed.logprobs.content, content);
  },
  async 'log-probabilities of completions and responses'() {
    const { logprobs, text } = (await client.completions.create({ model: 'target', prompt: 'One day', max_tokens: 20, logprobs: 2, seed: 1 })).choices[0];
    assert.equal(logprobs.tokens.join(''), text);
    assert.deepEqual(logprobs.tokens.map((token, i) => text.startsWith(token, logprobs.text_offset[i])), Array(20).fill(true));
    const response = await client.responses.create({ model: 'target', input: 'Hi', max_output_tokens: 20, include: ['message.output_text.logprobs'], top_logprobs: 2 });
    const part = response.output[0].content[0];
    assert.equal(part.logprobs.map((token) => token.token).join(''), part.text);
  },
  async 'a bias bans a token'() {
    const free = (await client.completions.create({ model: 'target', prompt: 'Once upon a time', max_tokens: 1, temperature: 0, return_tokens: true })).choices[0];
    const banned = await client.completions.create({ model: 'target', prompt: 'Once upon a time', max_tokens: 40, temperature: 0, return_tokens: true, logit_bias: { [free.tokens[0]]: -100 } });
    assert.ok(!banned.choices[0].tokens.includes(free.tokens[0]));
  },
  async 'a schema that is none is a BadRequestError that names the place'() {
    const response_format = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object', properties: { a: { type: 'objekt' } } } } };
    await assert.rejects(client.chat.completions.create({ ...chat, response_format }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, 'response_format');
      assert.match(error.message, /#\/properties\/a/);
      return true;
    });
  },
};

await runChecks(checks);
