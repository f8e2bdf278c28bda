// check_schemas.mjs - checks the texts of bench_schemas with npm's ajv, and makes the golden file of
// tests/grammar/test_schema.c.
//
//   npm install --prefix DIR ajv ajv-formats
//   NODE_PATH=DIR/node_modules node check_schemas.mjs texts.jsonl [golden.jsonl]
//
// Each line: {"schema": ..., "text": ..., "finish": ..., "same": ...}. A finished text must be valid. For the golden file, texts are
// damaged in small ways and judged by ajv: {"schema": ..., "valid": [...], "invalid": [...]}.
import {createRequire} from 'node:module';
import {readFileSync, writeFileSync} from 'node:fs';

const require = createRequire(process.env.NODE_PATH + '/');
const Ajv = require('ajv/dist/2020').default ?? require('ajv/dist/2020');
const addFormats = require('ajv-formats').default ?? require('ajv-formats');

let state = 7n;
function below(limit) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
  return Number(state >> 33n) % limit;
}

function validator(schema) {
  const ajv = new Ajv({strict: false, allErrors: false});
  addFormats(ajv);
  return ajv.compile(schema);
}

function judge(validate, text) {
  try {
    return validate(JSON.parse(text));
  } catch {
    return false;
  }
}

function damaged(text) {
  const at = below(text.length + 1), c = '"{}[]:,0123456789-.eEabnz\\ \n'[below(28)];
  switch (below(5)) {
  case 0: return text.slice(0, at) + text.slice(at + 1);
  case 1: return text.slice(0, at) + c + text.slice(at);
  case 2: return text.slice(0, at) + c + text.slice(at + 1);
  case 3: return text.slice(0, at) + text.slice(at, at + 3) + text.slice(at);
  default: return text.slice(0, at);
  }
}

const lines = readFileSync(process.argv[2], 'utf8').trim().split('\n').map(line => JSON.parse(line));
let nValid = 0, nCut = 0, nDifferent = 0;
const golden = new Map();
for (const line of lines) {
  const validate = validator(line.schema);
  if (!line.same) nDifferent++, console.log('DIFFERENT', JSON.stringify(line));
  if (line.finish !== 'eos') {
    nCut++;
    continue;
  }
  if (judge(validate, line.text)) nValid++;
  else console.log('INVALID', JSON.stringify(line), JSON.stringify(validate.errors));
  const key = JSON.stringify(line.schema), entry = golden.get(key) ?? {schema: line.schema, valid: [], invalid: []};
  golden.set(key, entry);
  entry.valid.push(line.text);
  for (let i = 0; i < 40 && entry.invalid.length < 12; i++) {
    const text = damaged(line.text);
    if (!judge(validate, text)) entry.invalid.push(text);
  }
}
console.log(`${lines.length} texts: ${nValid} valid, ${nCut} cut by their length, ${lines.length - nValid - nCut} invalid; ${nDifferent} differ with drafts`);
if (process.argv[3]) writeFileSync(process.argv[3], [...golden.values()].map(x => JSON.stringify(x)).join('\n') + '\n');
process.exit(nValid + nCut === lines.length && nDifferent === 0 ? 0 : 1);
