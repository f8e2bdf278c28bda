// check_llamaindex.mjs - npm's @llamaindex/openai and @llamaindex/ollama against `forerun serve`: chats, streams, embeddings, an index.
//
//     node check_llamaindex.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// Prints one line per check, and exits with status 1 if one fails.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';
import { runChecks } from './run_checks.mjs';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const { OpenAI, OpenAIEmbedding, openaiResponses } = require('@llamaindex/openai');
const { Ollama, OllamaEmbedding } = require('@llamaindex/ollama');
const { Document, Settings, VectorStoreIndex } = require('llamaindex');
const url = process.argv[2];
const access = { model: 'target', apiKey: 'none', baseURL: url + '/v1', maxRetries: 0 };
const messages = [{ role: 'user', content: 'Tell me about a dog.' }];
const streamed = async (llm) => {
  let text = '', n = 0;
  for await (const piece of await llm.chat({ messages, stream: true })) text += piece.delta, n++;
  return { text, n };
};

const checks = {
  async 'a chat, whole and streamed'() {
    const llm = new OpenAI({ ...access, maxTokens: 40, temperature: 0 });
    const whole = (await llm.chat({ messages })).message.content, stream = await streamed(llm);
    assert.ok(whole.length > 10);
    assert.equal(stream.text, whole);
    assert.ok(stream.n > 1);
    assert.equal((await llm.complete({ prompt: messages[0].content })).text, whole);
  },
  async 'the Responses API'() {
    const llm = openaiResponses({ ...access, maxOutputTokens: 30, temperature: 0 });
    assert.ok((await llm.chat({ messages })).message.content.length > 10);
  },
  async "Ollama's API, whole and streamed"() {
    const llm = new Ollama({ model: 'target', config: { host: url }, options: { temperature: 0, num_predict: 30 } });
    const whole = (await llm.chat({ messages })).message.content, stream = await streamed(llm);
    assert.ok(whole.length > 10);
    assert.equal(stream.text, whole);
  },
  async 'both APIs give the same embedding'() {
    const one = await new OpenAIEmbedding(access).getTextEmbedding('a dog');
    const other = await new OllamaEmbedding({ model: 'target', config: { host: url } }).getTextEmbedding('a dog');
    assert.equal(one.length, other.length);
    const product = one.reduce((sum, x, i) => sum + x * other[i], 0), length = (v) => Math.hypot(...v);
    assert.ok(product / (length(one) * length(other)) > 0.9999); // only the OpenAI API gives vectors of length 1
  },
  async 'an index answers a question'() {
    Settings.llm = new OpenAI({ ...access, maxTokens: 20, temperature: 0 });
    Settings.embedModel = new OpenAIEmbedding(access);
    const index = await VectorStoreIndex.fromDocuments([new Document({ text: 'The dog is red.' }), new Document({ text: 'The cat is blue.' })]);
    const answer = await index.asQueryEngine().query({ query: 'What colour is the dog?' });
    assert.ok(answer.toString().length > 3);
    assert.equal(answer.sourceNodes.length, 2);
  },
};

await runChecks(checks);
