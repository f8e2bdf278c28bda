/* markdown.js - the Markdown of an answer as a tree of parts, which are ranges of its text.
 *
 * A token keeps its colour and its place in the text when the answer is shown as Markdown. So nothing is copied here: a
 * leaf {start, end} is a range of the text, and a part {tag, parts} has leaves and other parts. Marks such as
 * ** and # belong to no leaf and are not shown. answer.js makes elements of them.
 *
 * This is the part of Markdown that models write: headings, lists, quotes, tables, code blocks, rules, bold, italic,
 * code. An answer is parsed while it grows, so every prefix of a text has a tree. */
"use strict";

/* A mark within a line, the mark that ends it, and the tag between them. Links and images stay text. */
const inlineMarks = [
  { open: "**", tag: "strong" }, { open: "__", tag: "strong" }, { open: "`", tag: "code", isRaw: true },
  { open: "*", tag: "em" }, { open: "_", tag: "em" },
];

/* The mark that opens at `at` and closes before `end`. */
function inlineAt(text, at, end) {
  for (const mark of inlineMarks) {
    const n = mark.open.length, inside = at + n;
    if (!text.startsWith(mark.open, at) || inside >= end || /\s/.test(text[inside])) continue;
    if (mark.open[0] === "_" && at > 0 && /\w/.test(text[at - 1])) continue; /* snake_case */
    const close = text.indexOf(mark.open, inside + 1);
    if (close < 0 || close + n > end || (!mark.isRaw && /\s/.test(text[close - 1]))) continue;
    if (mark.open[0] === "_" && /\w/.test(text[close + n] ?? "")) continue;
    return { ...mark, inside, close, after: close + n };
  }
  return null;
}

function inlineParts(text, start, end) {
  const parts = [];
  let from = start;
  for (let at = start; at < end;) {
    const mark = "*_`".includes(text[at]) ? inlineAt(text, at, end) : null;
    if (!mark) {
      at += 1;
      continue;
    }
    if (from < at) parts.push({ start: from, end: at });
    parts.push({ tag: mark.tag, parts: mark.isRaw ? [{ start: mark.inside, end: mark.close }]
      : inlineParts(text, mark.inside, mark.close) });
    from = at = mark.after;
  }
  if (from < end) parts.push({ start: from, end });
  return parts;
}

/* The lines of a text from `at` on: where each begins, and where it ends without its newline. */
function linesOf(text, at) {
  const lines = [];
  for (let start = at; start <= text.length;) {
    const newline = text.indexOf("\n", start), end = newline < 0 ? text.length : newline;
    lines.push({ start, end, text: text.slice(start, end) });
    start = end + 1;
  }
  return lines;
}

const listMark = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/;

/* A code block from line i on; it may not have ended yet. */
function codeBlock(lines, i, fence) {
  let last = i + 1;
  while (last < lines.length && !lines[last].text.trimStart().startsWith(fence)) last += 1;
  const isEmpty = last === i + 1;
  const leaf = isEmpty ? [] : [{ start: lines[i + 1].start, end: lines[last - 1].end }];
  return { part: { tag: "pre", language: lines[i].text.trim().slice(fence.length).trim(), parts: leaf }, next: last + 1 };
}

/* Lines with list marks, and lines that are indented under them. Items that are indented more are a list within. */
function listBlock(text, lines, i, depth) {
  const first = listMark.exec(lines[i].text), isOrdered = /\d/.test(first[2]);
  const list = { tag: isOrdered ? "ol" : "ul", start: isOrdered ? parseInt(first[2], 10) : undefined, parts: [] };
  while (i < lines.length) {
    const match = listMark.exec(lines[i].text);
    if (match && /\d/.test(match[2]) !== isOrdered && match[1].length <= first[1].length) break;
    if (match && match[1].length < first[1].length) break;
    if (match && match[1].length > first[1].length + 1 && depth < 8 && list.parts.length) {
      const inner = listBlock(text, lines, i, depth + 1);
      list.parts.at(-1).parts.push(inner.part);
      i = inner.next;
      continue;
    }
    if (match) {
      list.parts.push({ tag: "li", parts: inlineParts(text, lines[i].start + match[0].length, lines[i].end) });
    } else if (lines[i].text.trim() && /^\s{2,}/.test(lines[i].text)) {
      list.parts.at(-1).parts.push({ tag: "br" }, ...inlineParts(text, lines[i].start, lines[i].end));
    } else if (lines[i].text.trim() || !listMark.test(lines[i + 1]?.text ?? "")) break;
    i += 1;
  }
  return { part: list, next: i };
}

function paragraph(text, lines, i) {
  const parts = [];
  let k = i;
  for (; k < lines.length && lines[k].text.trim(); k++) {
    if (k > i && (/^\s*(```|~~~|#{1,6}\s|>)/.test(lines[k].text) || listMark.test(lines[k].text))) break;
    if (k > i && lines[k].text.includes("|") && isRuler(lines[k + 1])) break;
    if (k > i) parts.push({ tag: "br" });
    parts.push(...inlineParts(text, lines[k].start, lines[k].end));
  }
  return { part: { tag: "p", parts }, next: k };
}

function quoteBlock(text, lines, i) {
  const parts = [];
  let k = i;
  for (; k < lines.length && /^\s*>/.test(lines[k].text); k++) {
    const skip = /^\s*> ?/.exec(lines[k].text)[0].length;
    if (k > i) parts.push({ tag: "br" });
    parts.push(...inlineParts(text, lines[k].start + skip, lines[k].end));
  }
  return { part: { tag: "blockquote", parts }, next: k };
}

/* The cells of a line of a table: the ranges between its bars, without the blanks around them. */
function cellsOf(text, line, tag) {
  const cells = [];
  let from = line.start + /^\s*\|?/.exec(line.text)[0].length;
  const end = line.start + line.text.replace(/\|?\s*$/, "").length;
  while (from <= end) {
    const bar = text.indexOf("|", from), to = bar < 0 || bar > end ? end : bar, cell = text.slice(from, to);
    const start = from + (cell.length - cell.trimStart().length);
    cells.push({ tag, parts: inlineParts(text, start, Math.max(start, to - (cell.length - cell.trimEnd().length))) });
    from = to + 1;
  }
  return { tag: "tr", parts: cells };
}

const isRuler = (line) => line !== undefined && line.text.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(line.text);

/* A line of names, a ruler, and rows as long as they have a bar. */
function tableBlock(text, lines, i) {
  const rows = [cellsOf(text, lines[i], "th")];
  let k = i + 2;
  for (; k < lines.length && lines[k].text.includes("|"); k++) rows.push(cellsOf(text, lines[k], "td"));
  return { part: { tag: "table", parts: rows }, next: k };
}

/* The blocks of text[start..]. */
function markdownParts(text, start = 0) {
  const blocks = [], lines = linesOf(text, start);
  for (let i = 0; i < lines.length;) {
    const line = lines[i].text, fence = /^\s*(`{3,}|~{3,})/.exec(line), heading = /^(#{1,6})\s+(?=\S)/.exec(line);
    let block = null;
    if (!line.trim()) i += 1;
    else if (fence) block = codeBlock(lines, i, fence[1]);
    else if (heading) {
      block = { part: { tag: `h${Math.min(heading[1].length + 2, 6)}`,
        parts: inlineParts(text, lines[i].start + heading[0].length, lines[i].end) }, next: i + 1 };
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) block = { part: { tag: "hr", parts: [] }, next: i + 1 };
    else if (/^\s*>/.test(line)) block = quoteBlock(text, lines, i);
    else if (listMark.test(line)) block = listBlock(text, lines, i, 0);
    else if (line.includes("|") && isRuler(lines[i + 1])) block = tableBlock(text, lines, i);
    else block = paragraph(text, lines, i);
    if (!block) continue;
    blocks.push(block.part);
    i = block.next;
  }
  return blocks;
}
