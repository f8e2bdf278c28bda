// check_tools.mjs - tools by npm's clients of OpenAI and Anthropic, and by langchain's agents if it is installed.
//
//     node check_tools.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// The server has the model `toolbox`, whose template lists tools. Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const has = (name) => { try { return !!require.resolve(name); } catch { return false; } };
const { OpenAI } = require('openai');
const url = process.argv[2];
const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0 });
const parameters = { type: 'object', properties: { city: { enum: ['Oslo', 'Rome'] } }, required: ['city'], additionalProperties: false };
const tools = [{ type: 'function', function: { name: 'weather', description: 'the weather of a city', strict: true, parameters } }];
const chat = { model: 'toolbox', messages: [{ role: 'user', content: 'Tell me about a dog.' }], max_tokens: 400, seed: 3, tools };
const response_format = { type: 'json_schema', json_schema: { name: 'dog', strict: true,
  schema: { type: 'object', properties: { dog: { enum: ['Rex', 'Bella'] } }, required: ['dog'], additionalProperties: false } } };
const check = ({ city }) => assert.match(city, /^(Oslo|Rome)$/);
const call = (answer) => answer.choices[0].message.tool_calls[0];

async function tokenOf(text) { // the last token of a text
  const answer = await fetch(url + '/tokenize', { method: 'POST', body: JSON.stringify({ model: 'toolbox', content: text }) });
  return (await answer.json()).tokens.at(-1);
}

const checks = {
  async 'openai: a forced call, whole and streamed'() {
    const options = { ...chat, tool_choice: { type: 'function', function: { name: 'weather' } } };
    const whole = await client.chat.completions.create(options);
    assert.equal(whole.choices[0].finish_reason, 'tool_calls');
    check(JSON.parse(call(whole).function.arguments));
    const streamed = await client.chat.completions.stream(options).finalChatCompletion();
    assert.equal(call(streamed).function.arguments, call(whole).function.arguments);
    assert.equal(call(streamed).function.name, 'weather');
  },
  async 'openai: the result of a call goes back'() {
    const first = await client.chat.completions.create({ ...chat, tool_choice: 'required', parallel_tool_calls: false });
    const messages = [...chat.messages, first.choices[0].message, { role: 'tool', tool_call_id: call(first).id, content: 'rain' }];
    const second = await client.chat.completions.create({ ...chat, messages, max_tokens: 20, tool_choice: 'none' });
    assert.ok(second.choices[0].message.content.length > 10);
  },
  async 'openai: runTools'() {
    const cities = [];
    const runner = client.chat.completions.runTools({ ...chat, parallel_tool_calls: false, tool_choice: { type: 'function', function: { name: 'weather' } },
      tools: [{ type: 'function', function: { name: 'weather', parameters, parse: JSON.parse, function: (args) => (cities.push(args.city), 'rain') } }] });
    await runner.done();
    check({ city: cities[0] });
  },
  async 'openai: beside tools an answer has the schema of response_format, or is a call'() {
    const one = { ...chat, response_format, parallel_tool_calls: false };
    const answer = await client.chat.completions.parse({ ...one, logit_bias: { [await tokenOf('a<')]: -100 } });
    assert.match(answer.choices[0].message.parsed.dog, /^(Rex|Bella)$/);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    const called = await client.chat.completions.parse({ ...one, logit_bias: { [await tokenOf('a<')]: 60 } });
    assert.equal(called.choices[0].finish_reason, 'tool_calls');
    check(call(called).function.parsed_arguments);
    const forced = await client.chat.completions.parse({ ...one, tool_choice: 'required' });
    check(call(forced).function.parsed_arguments);
  },
  async 'openai: a call of the Responses API'() {
    const response = await client.responses.create({ model: 'toolbox', input: 'Tell me about a dog.', max_output_tokens: 400, seed: 3,
      tools: [{ type: 'function', name: 'weather', strict: true, parameters }], tool_choice: 'required' });
    check(JSON.parse(response.output.find((item) => item.type === 'function_call').arguments));
  },
};

if (has('@anthropic-ai/sdk')) {
  const { Anthropic } = require('@anthropic-ai/sdk');
  const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const request = { model: 'toolbox', max_tokens: 400, temperature: 0, messages: chat.messages, tool_choice: { type: 'tool', name: 'weather' },
    tools: [{ name: 'weather', input_schema: parameters }] };
  checks['anthropic: a forced call, whole and streamed'] = async () => {
    const whole = await anthropic.messages.create(request);
    assert.equal(whole.stop_reason, 'tool_use');
    check(whole.content[0].input);
    const streamed = await anthropic.messages.stream(request).finalMessage();
    assert.deepEqual(streamed.content[0].input, whole.content[0].input);
    const messages = [...request.messages, { role: 'assistant', content: whole.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: whole.content[0].id, content: 'rain' }] }];
    const next = await anthropic.messages.create({ ...request, messages, tool_choice: { type: 'none' }, max_tokens: 20 });
    assert.equal(next.content[0].type, 'text');
  };
} else console.log('skipped: no @anthropic-ai/sdk');

if (has('langchain') && has('@langchain/openai')) {
  const load = (name) => import(pathToFileURL(require.resolve(name)));
  const { createAgent, tool } = await load('langchain');
  const { ChatOpenAI } = await load('@langchain/openai');
  checks['langchain: an agent with a tool answers'] = async () => {
    const weather = tool(async ({ city }) => 'rain in ' + city, { name: 'weather', description: 'the weather of a city', schema: parameters });
    const model = new ChatOpenAI({ model: 'toolbox', apiKey: 'none', maxRetries: 0, maxTokens: 60, temperature: 0, configuration: { baseURL: url + '/v1' } });
    const { messages } = await createAgent({ model, tools: [weather] }).invoke({ messages: [{ role: 'user', content: 'Hello' }] });
    assert.ok(messages.at(-1).text.length > 10);
  };
} else console.log('skipped: no langchain with @langchain/openai');

await runChecks(checks);
