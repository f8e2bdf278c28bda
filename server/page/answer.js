/* answer.js - one answer in the log: its tokens and steps as they arrive, its reasoning in a block that folds, its text
 * as Markdown, and the keys that move between its tokens.
 *
 * A token is a range of the answer's text. Each leaf of the Markdown (markdown.js) is shown as spans, one for each token
 * in it, which carry the token's number. Only blocks that have changed since the last frame are made anew. */
"use strict";

const answerOf = new WeakMap(); /* by its element */

/* Returns the spans of tokens in text[start..end). The blank before a word is not part of its highlight. */
function tokenSpans(answer, start, end) {
  const spans = document.createDocumentFragment();
  for (let i = answer.tokenAt(start); i < answer.tokens.length && answer.tokens[i].start < end; i++) {
    const token = answer.tokens[i];
    const from = Math.max(token.start, start), to = Math.min(token.start + token.text.length, end);
    const text = answer.raw.slice(from, to), word = text.trimStart();
    if (word.length < text.length) spans.append(text.slice(0, text.length - word.length));
    if (!word) continue;
    const span = make("span", token.source ? `token ${colorOf(token.source)}` : "token", word);
    span.dataset.i = String(i);
    span.tabIndex = -1;
    if (token.source) span.title = `proposed by ${token.source}`;
    spans.append(span);
  }
  return spans;
}

function codeElement(answer, part, content) {
  const box = make("div", "code"), bar = make("div", "code-bar"), copy = make("button", "quiet", "Copy");
  copy.type = "button";
  const pre = make("pre"), code = make("code");
  code.append(content);
  pre.append(code);
  copy.addEventListener("click", () => copyText(code.textContent, copy));
  bar.append(make("span", "", part.language), copy);
  box.append(bar, pre);
  return box;
}

function partElement(answer, part) {
  if (!part.tag) return tokenSpans(answer, part.start, part.end);
  const content = document.createDocumentFragment();
  for (const inner of part.parts ?? []) content.append(partElement(answer, inner));
  if (part.tag === "pre") return codeElement(answer, part, content);
  const element = make(part.tag);
  if (part.tag === "ol" && part.start > 1) element.start = part.start;
  element.append(content);
  return element;
}

/* Whether most runs of four tokens near the end have occurred there before. Drafters guess such a loop easily, so that
 * its speed says nothing about other text. */
function repeatsItself(tokens) {
  const last = tokens.slice(-128).map((token) => token.text), seen = new Set();
  if (last.length < 24) return false;
  let nSeen = 0;
  for (let i = 0; i + 4 <= last.length; i++) {
    const run = JSON.stringify(last.slice(i, i + 4));
    nSeen += seen.has(run) ? 1 : 0;
    seen.add(run);
  }
  return 2 * nSeen > last.length - 3;
}

class Answer {
  constructor(name) {
    this.turn = make("article", "turn assistant");
    this.body = make("div", "text waits");
    this.turn.append(make("h2", "", name), this.body);
    this.turn.setAttribute("aria-busy", "true");
    this.tokens = []; /* {text, start, source, step} */
    this.raw = ""; /* the text of all tokens */
    this.text = ""; /* the answer without its reasoning, as it is sent back */
    this.reasoning = "";
    this.shown = []; /* the blocks in the body: {key, element} */
    this.nInSteps = this.nSteps = this.nProposed = 0;
    answerOf.set(this.turn, this);
  }

  /* The number of the token that contains this place of the text. */
  tokenAt(place) {
    let low = 0, high = this.tokens.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tokens[middle].start <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  addTokens(tokens) {
    for (const { text, source } of tokens) {
      this.tokens.push({ text, start: this.raw.length, source, step: null });
      this.raw += text;
    }
  }

  addStep(step) {
    const tokens = this.tokens.slice(this.nInSteps, this.nInSteps + step.n);
    for (const token of tokens) token.step = { tree: step.tree, tokens };
    this.nInSteps += step.n;
    this.nSteps += 1;
    this.nProposed += Math.max(step.tree.length - 1, 0);
    step.tree.forEach(countNode);
  }

  take(event) {
    const choice = event.choices?.[0];
    this.text += choice?.delta?.content ?? "";
    this.reasoning += choice?.delta?.reasoning_content ?? "";
    if (choice?.forerun) {
      this.time(choice.forerun.tokens.length);
      this.addTokens(choice.forerun.tokens);
      (choice.forerun.steps ?? []).forEach((step) => this.addStep(step));
    }
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    if (event.timings) this.timings = event.timings;
    if (event.seed !== undefined) this.seed = event.seed;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      keepingEnd(() => this.show());
      this.showRate();
    });
  }

  time(nTokens) {
    if (!nTokens) return;
    this.lastMs = performance.now();
    this.firstMs ??= this.lastMs;
    this.nFirst ??= nTokens;
  }

  /* The average speed since the first event with tokens, which those of that event do not count for; twice a second. */
  showRate() {
    const spent = (this.lastMs - this.firstMs) / 1000;
    if (!(spent > 0.5) || this.lastMs - (this.ratedMs ?? 0) < 500) return;
    this.ratedMs = this.lastMs;
    showSpeed((this.tokens.length - this.nFirst) / spent, 0, 0);
    if (this.nSteps) $("step-tokens").textContent = number(this.nInSteps / this.nSteps, 2);
    showLegend();
  }

  /* Where the reasoning and the text are in `raw`. The reasoning may have no mark before it, and while it goes on none
   * after it. */
  ranges() {
    if (!this.reasoning) return { reasoning: null, text: this.raw.length - this.raw.trimStart().length };
    const begin = /^\s*<think>/.exec(this.raw)?.[0].length ?? 0, end = this.raw.indexOf("</think>", begin);
    if (end >= 0) return { reasoning: [begin, end], text: end + 8 };
    const text = this.raw.length - this.text.length;
    return { reasoning: [begin, text], text };
  }

  show() {
    const { reasoning, text } = this.ranges();
    const blocks = markdownParts(this.raw, text).map((part) => ({ key: JSON.stringify(part), part }));
    if (reasoning) this.showReasoning(reasoning);
    let n = 0;
    while (n < blocks.length && blocks[n].key === this.shown[n]?.key) n += 1;
    for (const old of this.shown.splice(n)) old.element.remove();
    for (const block of blocks.slice(n)) {
      const element = partElement(this, block.part);
      this.shown.push({ key: block.key, element });
      this.body.append(element);
    }
    const inTabOrder = this.turn.querySelector('.token[tabindex="0"]');
    if (!inTabOrder) this.turn.querySelector(".text .token")?.setAttribute("tabindex", "0");
  }

  /* The reasoning is open while it is written, and folds when the answer begins, unless the reader has chosen. */
  showReasoning([start, end]) {
    if (!this.folder) {
      this.folder = make("details", "reasoning");
      this.thoughts = make("div");
      this.folder.open = true;
      this.folder.append(make("summary", "", "Reasoning"), this.thoughts);
      this.folder.firstChild.addEventListener("click", () => (this.isChosen = true));
      this.body.before(this.folder);
    }
    if (this.thoughtsEnd !== end) this.thoughts.replaceChildren(tokenSpans(this, start, end));
    this.thoughtsEnd = end;
    if (this.text.trim() && !this.isChosen) this.folder.open = false;
  }

  /* `how`: "stopped", or "". */
  end(how) {
    cancelAnimationFrame(this.frame);
    this.show();
    this.turn.removeAttribute("aria-busy");
    this.body.classList.remove("waits");
    const t = this.timings, parts = [`${this.tokens.length} tokens`], isLoop = repeatsItself(this.tokens);
    if (t) {
      showSpeed(t.predicted_per_second, t.plain_per_token_ms, isLoop ? 0 : t.n_steps);
      parts.push(`${speed(t.predicted_per_second)} tokens/s`, `${t.n_steps} steps`);
    }
    if (this.nSteps) $("step-tokens").textContent = number(this.nInSteps / this.nSteps, 2);
    showLegend();
    if (this.seed !== undefined) parts.push(`seed ${this.seed}`);
    if (how) parts.push(how);
    else if (this.finish === "length") parts.push("ended at the limit of tokens or context");
    if (!this.text.trim() && this.reasoning) parts.push("ended within its reasoning, so there is no answer");
    if (isLoop) parts.push("the text repeats itself: another temperature or a larger model may help");
    this.note = parts.join(" · ");
    this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", "Answer; arrow keys move between its tokens, Enter shows what was proposed");
  }

  /* An answer of an earlier chat, whose tokens were not kept. */
  static restored(name, turn) {
    const answer = new Answer(name), mark = turn.reasoning ? "</think>" : "";
    answer.reasoning = turn.reasoning ?? "";
    answer.text = turn.text;
    answer.note = turn.note;
    answer.addTokens([{ text: answer.reasoning + mark + turn.text, source: null }]);
    answer.show();
    if (answer.folder) answer.folder.open = false;
    answer.turn.removeAttribute("aria-busy");
    answer.body.classList.remove("waits");
    return answer;
  }

  openTree(span) {
    openTree(this.tokens[Number(span.dataset.i)]);
  }

  /* Moves from a span to the next one, or to the line above or below. */
  move(event) {
    const spans = [...this.turn.querySelectorAll(".token")].filter((span) => span.offsetParent);
    const at = spans.indexOf(event.target);
    if (at < 0) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.openTree(event.target);
    }
    const to = { ArrowRight: spans[at + 1], ArrowLeft: spans[at - 1], Home: spans[0], End: spans.at(-1),
      ArrowDown: onNextLine(spans, at, 1), ArrowUp: onNextLine(spans, at, -1) }[event.key];
    if (!to) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}

/* The span on the next line in that direction whose middle is nearest. */
function onNextLine(spans, at, direction) {
  const here = spans[at].getBoundingClientRect(), middle = here.left + here.width / 2;
  let best = null, least = Infinity, line = null;
  for (let i = at + direction; spans[i]; i += direction) {
    const box = spans[i].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < here.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > here.height / 2) break;
    const distance = Math.abs(box.left + box.width / 2 - middle);
    if (distance < least) [best, least] = [spans[i], distance];
  }
  return best;
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser refused";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
