// llama_cpp.mjs NODE logits|tokens FILE.gguf - the results of llama.cpp; a part of make_golden.py. NODE is a folder where
// `npm install node-llama-cpp` was run. Reads JSON on standard input and writes JSON:
//   logits   [token, ...]  -> [[probability of each token of the vocabulary], ...], a row after each token; or
//            {"tokens": [token, ...], "from": i}  -> rows from position i on
//   tokens   [text, ...]   -> [[token, ...], ...], without BOS, special tokens not parsed
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {resolve} from "node:path";

const [folder, command, file] = process.argv.slice(2);
const input = JSON.parse(readFileSync(0, "utf8"));
const {getLlama} = await import(createRequire(resolve(folder, "package.json")).resolve("node-llama-cpp"));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const model = await llama.loadModel({modelPath: resolve(file), useMmap: false, vocabOnly: command === "tokens"});

async function probabilities({tokens, from}) {
    const context = await model.createContext({contextSize: Math.max(256, tokens.length + 16), batchSize: 256, threads: 1, flashAttention: false,
                                               experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"});
    const generateNext = {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}};
    const rows = await context.getSequence().controlledEvaluate(tokens.map((token, i) => i < from ? token : [token, {generateNext}]));
    return rows.slice(from).map((row) => {
        const out = new Array(row.next.probabilities.size).fill(0);
        for (const [token, p] of row.next.probabilities) out[token] = p;
        return out;
    });
}

const output = command === "logits" ? await probabilities(input.tokens ? input : {tokens: input, from: 0}) : input.map((text) => [...model.tokenize(text, false)]);
process.stdout.write(JSON.stringify(output), () => process.exit(0));
