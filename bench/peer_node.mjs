// peer_node.mjs FOLDER FILE.gguf THREADS CONTEXT ROWS,... - the times that node-llama-cpp, installed in FOLDER, takes to evaluate
// these numbers of rows after a context: a line of JSON for each, the median of three. A part of bench/peers.sh.
import {createRequire} from "node:module";
import {resolve} from "node:path";

const [folder, file, threads, context, rows] = process.argv.slice(2);
const {getLlama} = await import(createRequire(resolve(folder, "package.json")).resolve("node-llama-cpp"));
const counts = rows.split(",").map(Number), nContext = Number(context), nThreads = Number(threads);

const llama = await getLlama({gpu: false, build: "never", maxThreads: nThreads, logLevel: "error"});
console.error(llama.systemInfo); // "... | AMX_INT8 = 1 | ..." if AMX is on; peers.sh reads that
const model = await llama.loadModel({modelPath: file, useMmap: false});
const most = Math.max(...counts);
const session = await model.createContext({contextSize: nContext + most, batchSize: most, threads: nThreads, flashAttention: true});
const sequence = session.getSequence();
const tokens = (n) => Array.from({length: n}, (_, i) => (i * 37 + 11) % 32000);

await sequence.evaluateWithoutGeneratingNewTokens(tokens(nContext));
const seconds = counts.map(() => []);
for (let round = 0; round < 4; round++) // the first to warm up
    for (const [k, n] of counts.entries()) {
        const start = performance.now();
        await sequence.evaluateWithoutGeneratingNewTokens(tokens(n));
        if (round > 0) seconds[k].push((performance.now() - start) / 1000);
        await sequence.eraseContextTokenRanges([{start: nContext, end: nContext + n}]);
    }
for (const [k, n] of counts.entries())
    console.log(JSON.stringify({rows: n, seconds: seconds[k].sort((a, b) => a - b)[1]}));
process.exit(0);
