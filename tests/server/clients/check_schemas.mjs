// check_schemas.mjs - schemas served with drafts: valid by npm's ajv, and the same text as without drafts.
//
//     node check_schemas.mjs BASE_URL [FOLDER]     FOLDER holds node_modules; default FORERUN_NODE_MODULES
//
// The schemas are those of tests/data/schemas.jsonl and some that people write. Prints one line, and each failure; exits with status 1
// if there is one.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const base = resolve(process.argv[3] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
const require = createRequire(pathToFileURL(base + '/'));
const Ajv = require('ajv/dist/2020').default ?? require('ajv/dist/2020');
const addFormats = require('ajv-formats').default ?? require('ajv-formats');
const url = process.argv[2];

const object = (properties, required = Object.keys(properties)) =>
  ({ type: 'object', properties, required, additionalProperties: false });
const written = [
  object({ city: { type: 'string', maxLength: 20 }, population: { type: 'integer', minimum: 0, maximum: 40000000 } }),
  object({ sentiment: { enum: ['positive', 'neutral', 'negative'] }, score: { type: 'number', minimum: 0, maximum: 1 } }),
  object({ steps: { type: 'array', items: object({ explanation: { type: 'string', maxLength: 30 }, output: { type: 'string', maxLength: 10 } }), minItems: 1, maxItems: 3 }, answer: { type: 'string', maxLength: 10 } }),
  { type: 'array', items: { type: 'integer', minimum: 1, maximum: 6 }, minItems: 2, maxItems: 5 },
  { enum: ['yes', 'no', null, 42, 0.1] },
  { anyOf: [object({ kind: { const: 'a' }, x: { type: 'boolean' } }), object({ kind: { const: 'b' }, y: { type: 'null' } })] },
  object({ when: { type: 'string', format: 'date' }, id: { type: 'string', format: 'uuid' } }),
  object({ code: { type: 'string', pattern: '^[A-Z]{3}-[0-9]{2,4}$' } }),
  { $ref: '#/$defs/node', $defs: { node: object({ v: { type: 'integer', minimum: 0, maximum: 9 }, next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/leaf' }] } }), leaf: object({ v: { const: 1 } }) } },
  { type: 'object', additionalProperties: { type: 'boolean' }, maxProperties: 3 },
];
const lines = readFileSync(new URL('../../data/schemas.jsonl', import.meta.url), 'utf8').trim().split('\n');
const schemas = [...written, ...lines.map((line) => JSON.parse(line).schema)];

async function ask(schema, i, draft) {
  const body = { messages: [{ role: 'user', content: 'An example as JSON' }], max_tokens: 400, temperature: 0.8, seed: i, draft, tree_budget: 8,
    response_format: { type: 'json_schema', json_schema: { name: 'example', strict: true, schema } } };
  const response = await fetch(url + '/v1/chat/completions', { method: 'POST', body: JSON.stringify(body) });
  const answer = await response.json();
  if (response.status !== 200) throw new Error(`status ${response.status}: ${JSON.stringify(answer.error)}`);
  return answer;
}

let nFailed = 0, nWhole = 0, nAccepted = 0;
async function check(schema, i) {
  const [drafted, plain] = await Promise.all([ask(schema, i), ask(schema, i, 'none')]);
  const { message: { content }, finish_reason: finish } = drafted.choices[0];
  const fail = (why) => (nFailed++, console.log('FAILED', why, JSON.stringify(schema), content));
  nAccepted += drafted.timings.draft_n_accepted;
  if (plain.timings.draft_n !== 0) fail('"none" drafted');
  if (content !== plain.choices[0].message.content) fail('other than plain: ' + plain.choices[0].message.content);
  if (finish !== 'stop') return; // cut short
  nWhole++;
  const ajv = new Ajv({ strict: false });
  addFormats(ajv);
  if (!ajv.compile(schema)(JSON.parse(content))) fail('invalid');
}

await Promise.all(schemas.map((schema, i) => check(schema, i).catch((error) => (nFailed++, console.log('FAILED', error, JSON.stringify(schema))))));
console.log(`${schemas.length} schemas, ${nWhole} answers whole and valid, ${nAccepted} drafted tokens accepted, ${nFailed} failed`);
process.exit(nFailed || schemas.length < 40 || nWhole < 30 || !nAccepted ? 1 : 0);
