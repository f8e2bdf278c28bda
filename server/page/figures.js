/* figures.js - what page.js shows next to the text: T(n), speed, acceptance by drafter, and the tree of a step. */
"use strict";

/* ---- T(n) ---------------------------------------------------------------------------------------------- */

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function showCosts(model) {
  const costs = (model.forward_ms ?? []).filter((ms) => ms > 0), chart = $("chart");
  chart.replaceChildren();
  if (costs.length < 2) return;
  const left = 40, right = 272, top = 10, bottom = 118, most = Math.max(...costs);
  const x = (n) => left + ((right - left) * (n - 1)) / (costs.length - 1);
  const y = (ms) => bottom - ((bottom - top) * ms) / most;
  for (const part of [0, 0.5, 1]) {
    chart.append(svg("line", { x1: left, x2: right, y1: y(part * most), y2: y(part * most) }));
    chart.append(svg("text", { x: left - 4, y: y(part * most) + 4, "text-anchor": "end" },
      number(part * most, most < 2 ? 2 : most < 20 ? 1 : 0)));
  }
  for (const n of [1, 8, 16, 24, 32].filter((n) => n <= costs.length))
    chart.append(svg("text", { x: x(n), y: bottom + 15, "text-anchor": "middle" }, String(n)));
  chart.append(svg("text", { x: left + 4, y: top + 12 }, "ms"));
  chart.append(svg("path", { d: costs.map((ms, i) => `${i ? "L" : "M"}${x(i + 1).toFixed(1)} ${y(ms).toFixed(1)}`).join("") }));
  const times = (n) => number(costs[n - 1] / costs[0]);
  $("chart-text").textContent = `A forward of one token takes ${number(costs[0], 2)} ms; one of 8 tokens takes ` +
    `${times(8)} times as long, one of ${costs.length} tokens ${times(costs.length)} times, after ` +
    `${model.forward_n_context} tokens of context. This was measured when the server started.`;
}

/* A speed in tokens per second: a whole number from 10 on. */
const speed = (rate) => number(rate, rate < 9.95 ? 1 : 0);

/* Shows a speed, and that of plain decoding, which is estimated from the forwards of the answer. The latter is shown only
 * if something was drafted, after enough steps, and if the text is no loop (then nSteps is 0). */
const SOUND_STEPS = 8;
function showSpeed(rate, plainMs, nSteps) {
  const isSound = plainMs > 0 && rate > 0 && nSteps >= SOUND_STEPS;
  $("plain-rate").textContent = isSound ? `about ${speed(1000 / plainMs)} tokens/s` : "–";
  $("ratio").textContent = isSound ? `${number((rate * plainMs) / 1000, 2)} ×` : "–";
  $("rate").textContent = rate > 0 ? speed(rate) : "–";
}

/* ---- drafters ------------------------------------------------------------------------------------------ */

/* A drafter has the same colour in every chat. Those that are used together have different ones. */
const colors = { suffix: 0, "ngram-trie": 1, eagle: 2, sps: 3, lyanna: 4, pld: 5, recycling: 6, "lookahead-trie": 7,
  llma: 0, rest: 1, medusa: 2, "rsd-s": 3, hydra: 4, lookahead: 5, prediction: 6, grammar: 7,
  redrafter: 0, "rsd-c": 1, mtp: 2, specinfer: 3, space: 4, spectr: 5 };
const colorOf = (source) => `d${colors[source] ?? [...source].reduce((sum, c) => sum + c.codePointAt(0), 0) % 8}`;

function countNode(node) {
  if (!node.source) return;
  const count = state.counts.get(node.source) ?? { proposed: 0, accepted: 0 };
  count.proposed += 1;
  count.accepted += node.accepted ? 1 : 0;
  state.counts.set(node.source, count);
}

function showLegend() {
  const rows = [...state.counts].map(([source, count]) => {
    const row = make("tr"), name = make("td");
    name.append(make("span", `swatch ${colorOf(source)}`, source));
    row.append(name, make("td", "", String(count.proposed)),
      make("td", "", `${count.accepted} (${Math.round((100 * count.accepted) / count.proposed)} %)`));
    return row;
  });
  if (!rows.length) {
    const row = make("tr"), cell = make("td", "note", "None so far.");
    cell.colSpan = 3;
    row.append(cell);
    rows.push(row);
  }
  $("legend").tBodies[0].replaceChildren(...rows);
}

/* ---- a step's tree ------------------------------------------------------------------------------------- */

/* Spaces and line ends that can be seen. */
const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(no text of its own)";

function treeItem(kind, text, source, note) {
  const item = make("li", kind), line = make("div", "node");
  line.append(make("code", source ? colorOf(source) : "", visible(text)), make("span", "p", note));
  item.append(line);
  return item;
}

function nodeNote(node) {
  return `${node.source}, ${number(100 * node.p, 1)} %, ${node.accepted ? "accepted" : "not accepted"}`;
}

function listOf(tree, parent, own) {
  const list = make("ul");
  const children = tree.map((node, i) => ({ node, i })).filter(({ node }) => node.parent === parent)
    .sort((a, b) => b.node.accepted - a.node.accepted || b.node.p - a.node.p);
  for (const { node, i } of children) {
    const item = treeItem(node.accepted ? "accepted" : "refused", node.text, node.source, nodeNote(node));
    item.append(listOf(tree, i, own));
    list.append(item);
  }
  if (own && parent === own.after) list.prepend(treeItem("target", own.text, null, "the target's own choice"));
  return list;
}

function openTree(token) {
  if (!token?.step) return;
  const { tree, tokens } = token.step;
  const path = tree.map((node, i) => (node.accepted ? i : -1)).filter((i) => i >= 0);
  const nProposed = Math.max(tree.length - 1, 0), nAccepted = Math.max(path.length - 1, 0);
  /* After the accepted nodes the target generated a token that none of their children is. */
  const own = tokens.length > nAccepted ? { after: path.at(-1) ?? -1, text: tokens[nAccepted].text } : null;
  $("tree-text").textContent = nProposed === 0
    ? "No drafter proposed anything in this step, so the target generated one token."
    : `In this step ${nProposed} ${nProposed === 1 ? "token was" : "tokens were"} proposed after “${visible(tree[0].text)}” ` +
      `and checked in one forward; ${nAccepted} ${nAccepted === 1 ? "was" : "were"} accepted. The percentage is the ` +
      "drafter's estimate that a token and all above it are accepted.";
  $("tree-nodes").replaceChildren(...listOf(tree, tree.length ? 0 : -1, own).children);
  $("tree").showModal();
}
