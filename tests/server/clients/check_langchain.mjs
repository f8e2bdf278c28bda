// check_langchain.mjs - npm's @langchain/openai against `forerun serve`: invoke, stream, batch, tools.
//
//     node check_langchain.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const { ChatOpenAI } = require('@langchain/openai');
const { HumanMessage, SystemMessage } = require('@langchain/core/messages');
const url = process.argv[2];
const model = (options) =>
  new ChatOpenAI({ model: 'target', apiKey: 'none', maxRetries: 0, configuration: { baseURL: url + '/v1' }, ...options });
const messages = [new SystemMessage('You tell stories.'), new HumanMessage('Tell me about a dog.')];

const checks = {
  async 'invoke'() {
    const answer = await model({ maxTokens: 30, modelKwargs: { seed: 1 } }).invoke(messages);
    assert.ok(answer.content.length > 10);
    assert.equal(answer.usage_metadata.output_tokens, 30);
    assert.equal(answer.response_metadata.finish_reason, 'length');
  },
  async 'a stream has the same text'() {
    const chat = model({ maxTokens: 60, temperature: 0.8, modelKwargs: { seed: 2 } });
    const whole = await chat.invoke(messages);
    let text = '', n = 0;
    for await (const piece of await chat.stream(messages)) text += piece.content, n++;
    assert.equal(text, whole.content);
    assert.ok(n > 1);
  },
  async 'a batch of eight'() {
    const chat = model({ maxTokens: 30, temperature: 0 });
    const prompts = Array.from({ length: 8 }, (_, i) => `Story ${i}`);
    const together = await chat.batch(prompts);
    for (let i = 0; i < prompts.length; i++) assert.equal(together[i].content, (await chat.invoke(prompts[i])).content);
  },
  async 'bound tools reach the template'() {
    const tools = [{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: { city: { enum: ['Oslo', 'Rome'] } }, required: ['city'] } } }];
    const chat = model({ model: 'toolbox', maxTokens: 20, temperature: 0 });
    const without = await chat.invoke('Hello'), answer = await chat.bindTools(tools).invoke('Hello');
    assert.ok(answer.usage_metadata.input_tokens > without.usage_metadata.input_tokens);
    assert.deepEqual(answer.tool_calls, []); // the model writes a story unless it must call a tool
    const call = await model({ model: 'toolbox', maxTokens: 250, temperature: 0 }).bindTools(tools, { tool_choice: 'required' }).invoke('Hello');
    assert.equal(call.tool_calls[0].name, 'weather');
    assert.ok(['Oslo', 'Rome'].includes(call.tool_calls[0].args.city));
  },
  async 'the Responses API'() {
    const chat = model({ useResponsesApi: true, maxTokens: 30, temperature: 0, zdrEnabled: true });
    const answer = await chat.invoke(messages);
    assert.ok(answer.text.length > 10);
  },
};

await runChecks(checks);
