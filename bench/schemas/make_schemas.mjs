// make_schemas.mjs - writes random JSON schemas, one per line, with the keywords that forerun supports (docs/CONSTRAINED.md).
//
//   node make_schemas.mjs [N] [SEED] > schemas.jsonl

const n = Number(process.argv[2] ?? 500);
let state = BigInt(process.argv[3] ?? 1);

function below(limit) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
  return Number(state >> 33n) % limit;
}
const pick = list => list[below(list.length)];
const maybe = (percent, value) => (below(100) < percent ? value() : {});

const words = ['name', 'age', 'city', 'tags', 'id', 'price', 'kind', 'note', 'größe', 'a b', 'x"y', 'path\\to', 'naming', 'nam'];
const patterns = ['^[a-z]+$', '^[A-Z]{2,3}-[0-9]{1,4}$', 'ab', '^\\d{3}', '[aeiou]$', '^(red|green|blue)$', '^#[0-9a-f]{6}$', '^[^"\\\\]{1,6}$'];
const formats = ['date', 'time', 'date-time', 'uuid', 'email', 'hostname', 'ipv4', 'ipv6', 'uri', 'duration'];

function string() {
  const kind = below(10);
  if (kind < 2) return {type: 'string', pattern: pick(patterns)};
  if (kind < 4) return {type: 'string', format: pick(formats)};
  const min = below(6);
  return {type: 'string', ...maybe(40, () => ({minLength: min})), maxLength: min + below(12)};
}

function integer() {
  const low = below(2000) - 1000, high = low + below(500) * (below(3) ? 1 : 1000);
  if (below(8) === 0) return {type: 'integer', minimum: low, maximum: low + 300, multipleOf: 1 + below(20)};
  if (below(8) === 0) return {type: 'integer', multipleOf: 2 + below(30)};
  return {type: 'integer', ...maybe(60, () => ({minimum: low})), ...maybe(60, () => (below(3) ? {maximum: high} : {exclusiveMaximum: high + 1}))};
}

function number() {
  const low = (below(4000) - 2000) / pick([1, 10, 100, 8]), high = low + 0.5 + below(300) / pick([1, 10, 100]);
  return {
    type: 'number',
    ...maybe(60, () => (below(4) ? {minimum: low} : {exclusiveMinimum: low})),
    ...maybe(60, () => (below(4) ? {maximum: high} : {exclusiveMaximum: high})),
  };
}

const constants = [null, true, 0, -17, 2.5, 'red', 'a "quoted" word', '', [1, 2], {a: 1}, 'ü\n', 1e15];

function array(depth) {
  const max = below(4), min = Math.min(max, below(3));
  if (below(4) === 0) {
    const prefixItems = Array.from({length: 1 + below(3)}, () => schema(depth - 1));
    return {type: 'array', prefixItems, minItems: below(prefixItems.length + 1), items: below(2) ? false : schema(0), maxItems: prefixItems.length + 2};
  }
  return {type: 'array', items: schema(depth - 1), ...maybe(50, () => ({minItems: min})), maxItems: max};
}

function object(depth) {
  const names = words.filter(() => below(4) === 0).slice(0, 5);
  const properties = Object.fromEntries(names.map(name => [name, schema(depth - 1)]));
  const required = names.filter(() => below(3) > 0);
  const kind = below(10);
  if (kind === 0) return {type: 'object', additionalProperties: schema(0), maxProperties: 1 + below(3)};
  if (kind === 1) return {type: 'object', patternProperties: {[pick(patterns)]: schema(0)}, additionalProperties: false, maxProperties: 2};
  return {type: 'object', properties, required, ...(kind < 4 ? {additionalProperties: schema(0)} : kind < 8 ? {additionalProperties: false} : {})};
}

function alternatives(depth) {
  const list = Array.from({length: 2 + below(2)}, () => schema(depth - 1));
  if (below(2)) return {anyOf: list};
  return {
    oneOf: list.map((one, i) => ({
      type: 'object', properties: {kind: {const: `k${i}`}, value: one}, required: ['kind', 'value'], additionalProperties: false,
    })),
  };
}

function all() {
  return {
    allOf: [
      {type: 'object', properties: {a: {type: 'integer', maximum: below(9000)}}, required: ['a']},
      {properties: {b: string(), a: {minimum: -5000}}, required: below(2) ? ['b'] : []},
    ],
  };
}

function schema(depth) {
  const kind = below(depth > 0 ? 16 : 8);
  if (kind < 2) return string();
  if (kind < 3) return integer();
  if (kind < 4) return number();
  if (kind < 5) return {type: pick(['boolean', 'null'])};
  if (kind < 6) return {enum: constants.filter(() => below(3) === 0).concat(['last'])};
  if (kind < 7) return {const: pick(constants)};
  if (kind < 8) return {type: ['string', 'null'], maxLength: 5};
  if (kind < 10) return array(depth);
  if (kind < 13) return object(depth);
  if (kind < 14) return alternatives(depth);
  if (kind < 15) return all();
  return {$ref: '#/$defs/node'};
}

const node = () => ({
  type: 'object',
  properties: {value: schema(0), next: {anyOf: [{type: 'null'}, {$ref: '#/$defs/node'}]}},
  required: below(2) ? ['value'] : ['value', 'next'],
  additionalProperties: false,
});

for (let i = 0; i < n; i++) {
  const one = below(5) ? object(3) : schema(3), text = JSON.stringify(one);
  console.log(JSON.stringify(text.includes('$defs') ? {...one, $defs: {node: node()}} : one));
}
