// Renders the templates of the families with npm's @huggingface/jinja and compares them with families.json, byte for byte:
//     node tests/data/templates/check_npm.mjs [FOLDER that holds node_modules]
// It exits with status 2 if the package is not installed, and with 1 if an output differs that `known` does not list.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const base = resolve(process.argv[2] ?? process.env.FORERUN_NODE_MODULES ?? process.cwd());
let Template;
try {
    ({ Template } = createRequire(join(base, "package.json"))("@huggingface/jinja"));
} catch {
    process.exit(2);
}

// Outputs in which that package differs from Jinja, which our interpreter follows.
const known = new Set(JSON.parse(readFileSync(join(here, "npm_differences.json"), "utf8")));
const read = (name) => JSON.parse(readFileSync(join(here, name), "utf8"));
const { defaults, cases } = read("conversations.json");
const RealDate = Date;
globalThis.Date = class extends RealDate {
    constructor(...a) { super(...(a.length ? a : [Date.UTC(2025, 6, 10, 13, 44, 5)])); }
};

let same = 0, different = 0, listed = 0;
for (const { family, case: name, output } of read("families.json")) {
    const variables = structuredClone({ ...defaults, ...cases.find((c) => c.name === name).variables });
    let got = null;
    try {
        got = new Template(readFileSync(join(here, "../../../src/text/templates", family + ".jinja"), "utf8")).render(variables);
    } catch {}
    if (got === output) same++;
    else if (known.has(`${family}: ${name}`)) listed++;
    else {
        different++;
        console.log(`${family}: ${name}\n  want ${JSON.stringify(output)}\n  got  ${JSON.stringify(got)}`);
    }
}
console.log(`${same} outputs equal, ${listed} known differences, ${different} others`);
process.exit(different ? 1 : 0);
