// xgrammar_masks.mjs - token masks of npm's @mlc-ai/web-xgrammar, the golden file of tests/grammar/test_token_mask_golden.c.
//
//   npm install --prefix DIR @mlc-ai/web-xgrammar
//   NODE_PATH=DIR/node_modules node xgrammar_masks.mjs > tests/data/xgrammar_masks.jsonl
//
// The first line is the vocabulary, in which token 0 ends a text. Each other line: a grammar in GBNF,
// the tokens read so far, and the tokens that may follow, in ascending order.
//
// Two cases are left out, because version 0.1.27 is wrong about them: tokens that end several rules at once (root ::= "(" root ")" | ""
// forbids "))" after "(("), and characters beyond ASCII in a class, which then allows everything.
import {createRequire} from 'node:module';
import {copyFileSync, mkdtempSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';

// The package is declared as a module, but is not one, so it is read under another name.
const copy = join(mkdtempSync(join(tmpdir(), 'xgrammar-')), 'xgrammar.cjs');
copyFileSync(process.env.NODE_PATH + '/@mlc-ai/web-xgrammar/lib/index.js', copy);
const xg = createRequire(copy)(copy);

let state = 3n;
function below(limit) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
  return Number(state >> 33n) % limit;
}

const vocabulary = ['</s>'];
for (let c = 32; c < 127; c++) vocabulary.push(String.fromCharCode(c));
vocabulary.push('\n', '\t', 'é', 'ü', '中', '文', '😀');
for (const word of ['name', ' name', 'na', 'me', 'true', 'tru', 'false', 'null', '":', '",', '": "', '", "', '{"', '"}', '"]', '[]', '[{', '}]', '},',
  '12', '123', '0.', '-1', 'e1', ' "', '\\"', '\\n', '\\u', '  ', '\n  ', 'ab', 'abc', 'bca', 'aaa', 'xyz', 'yes', 'no', 'é"', '中文', '"a', 'ed', '(', '))', '()', 'move ', 'a1', 'b2-'])
  if (!vocabulary.includes(word)) vocabulary.push(word);

const grammars = [
  'root ::= "{" ws "\\"name\\":" ws string "}"\nws ::= [ \\n\\t]*\nstring ::= "\\"" ([^"\\\\] | "\\\\" ["\\\\nu])* "\\""',
  'root ::= value\nvalue ::= "[" (value ("," value)*)? "]" | "{" (pair ("," pair)*)? "}" | "true" | "false" | "null" | number | string\n' +
    'pair ::= string ":" value\nstring ::= "\\"" [^"\\\\\\n]* "\\""\nnumber ::= "-"? [0-9]+ ("." [0-9]+)? ([eE] "-"? [0-9]+)?',
  'root ::= "(" (item ("-" item)*)? ")"\nitem ::= [a-z]+ | "(" [0-9]* "e1"? ")"',
  'root ::= ([a-c]{2,5} | "xyz") ("-" root)?',
  'root ::= ("move " [a-h] [1-8] "-" [a-h] [1-8] "\\n"){1,3} ("yes" | "no")?',
  'root ::= [A-Z!-/]{1,4} "中"+ "é"?',
];

const info = await xg.TokenizerInfo.createTokenizerInfo(vocabulary, 'raw', false, vocabulary.length, [0]);
const compiler = await xg.GrammarCompiler.createGrammarCompiler(info);
console.log(JSON.stringify({vocabulary}));
for (const text of grammars) {
  const compiled = await compiler.compileGrammar(await xg.Grammar.fromEBNF(text));
  for (let walk = 0; walk < 3; walk++) {
    const matcher = await xg.GrammarMatcher.createGrammarMatcher(compiled, [0]), path = [];
    for (let step = 0; step < 12; step++) {
      const rejected = new Set(await xg.Testings.debugGetMaskedTokensFromBitmask(await matcher.getNextTokenBitmask(), vocabulary.length));
      const allowed = vocabulary.map((_, i) => i).filter(i => !rejected.has(i)), next = allowed.filter(i => i > 0);
      console.log(JSON.stringify({grammar: text, path: [...path], allowed}));
      if (next.length === 0) break;
      const token = next[below(next.length)];
      if (!matcher.acceptToken(token)) throw new Error('a token of the mask is refused');
      path.push(token);
    }
    matcher.dispose();
  }
}
