/* page.js - the chat at / of `forerun serve`.
 *
 * Everything that comes from a model or from the server enters the document as text (textContent), never as markup. An
 * answer arrives as server-sent events; their field "forerun" has each token with the drafter that proposed it, and each
 * step with its whole tree (docs/SERVER.md). */
"use strict";

const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const state = {
  models: [],      // of /props
  messages: [],    // the conversation so far
  colors: new Map(), // drafter -> number of its colour
  counts: new Map(), // drafter -> {proposed, accepted}, in this chat
  running: null,   // AbortController of the answer that is being written
};

const number = (x, digits = 1) => x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/* ---- what the server says ------------------------------------------------------------------------------- */

function sentence(text) {
  const s = String(text).trim();
  return s ? s[0].toUpperCase() + s.slice(1) + (/[.!?…]$/.test(s) ? "" : ".") : "The server gave no reason.";
}

/* A response that is no success, as a sentence. */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  if (response.status === 401) {
    $("key-choice").hidden = false;
    return "The server wants an API key. Enter it in the settings.";
  }
  const why = sentence(body?.error?.message ?? `The server answered with status ${response.status}`);
  if (response.status === 429) return why + " Wait for a moment, then send the message again.";
  return why;
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function load() {
  try {
    const response = await fetch("props", { headers: headers() });
    if (!response.ok) return tell(await refusal(response), true);
    const props = await response.json();
    state.models = props.models ?? [props];
    showModels();
    tell("");
  } catch {
    tell("The server cannot be reached. Is it still running?", true);
  }
}

const chosenModel = () => state.models[$("model").selectedIndex] ?? state.models[0];

/* ---- settings ------------------------------------------------------------------------------------------ */

function showModels() {
  $("model").replaceChildren(...state.models.map((m) => make("option", "", m.model_alias)));
  $("model-choice").hidden = state.models.length < 2;
  showModel();
}

function showModel() {
  const model = chosenModel();
  $("model-name").textContent = model.model_alias;
  document.title = `${model.model_alias} – forerun`;
  const names = [...new Set(model.drafts ?? [])].filter((name) => name !== "none");
  $("drafters").replaceChildren(...names.map((name) => {
    const label = make("label"), box = make("input");
    box.type = "checkbox";
    box.value = name;
    box.checked = true;
    label.append(box, name === "auto" ? "auto (forerun chooses)" : name);
    return label;
  }));
  if (!names.length) $("drafters").append(make("p", "note", "The operator configured none."));
  showCosts(model);
  showSpeed(0, 0);
}

/* The field "draft": absent where all are chosen, which are the operator's choice. */
function chosenDrafters() {
  const boxes = [...$("drafters").querySelectorAll("input")], chosen = boxes.filter((box) => box.checked);
  if (chosen.length === boxes.length) return {};
  return { draft: chosen.length ? chosen.map((box) => box.value) : "none" };
}

/* ---- the conversation ---------------------------------------------------------------------------------- */

function tell(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

function addTurn(role, text) {
  $("welcome")?.remove();
  const turn = make("article", `turn ${role}`), body = make("div", "text", text);
  turn.append(make("h2", "", role === "user" ? "You" : chosenModel()?.model_alias ?? "Model"), body);
  $("log").append(turn);
  return { turn, body };
}

/* Follows the end of the text, unless the reader has scrolled away from it. */
function keepingEnd(change) {
  const log = $("log"), isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

const tokenOf = new WeakMap(); // by its span

/* One answer as it arrives: its tokens, the steps that made them, and the time. */
class Answer {
  constructor() {
    const { turn, body } = addTurn("assistant", "");
    this.turn = turn;
    this.body = body;
    this.text = "";
    this.tokens = []; // {span, text, step}
    this.nInSteps = 0;
    this.nSteps = 0;
    turn.setAttribute("aria-busy", "true");
    body.classList.add("waits");
  }

  addTokens(tokens) {
    const piece = document.createDocumentFragment();
    for (const { text, source } of tokens) {
      const span = make("span", source ? `token ${colorOf(source)}` : "token", text);
      span.tabIndex = -1;
      if (source) span.title = `proposed by ${source}`;
      piece.append(span);
      this.tokens.push({ span, text, step: null });
      tokenOf.set(span, this.tokens.at(-1));
    }
    if (this.tokens.length === tokens.length && tokens.length) this.tokens[0].span.tabIndex = 0;
    this.body.append(piece);
  }

  addStep(step) {
    const tokens = this.tokens.slice(this.nInSteps, this.nInSteps + step.n);
    for (const token of tokens) token.step = { tree: step.tree, tokens };
    this.nInSteps += step.n;
    this.nSteps += 1;
    step.tree.forEach(countNode);
  }

  take(event) {
    const choice = event.choices?.[0];
    keepingEnd(() => {
      this.text += choice?.delta?.content ?? "";
      if (choice?.forerun) {
        this.time(choice.forerun.tokens.length);
        this.addTokens(choice.forerun.tokens);
        (choice.forerun.steps ?? []).forEach((step) => this.addStep(step));
        this.showRate();
      }
      if (choice?.finish_reason) this.finish = choice.finish_reason;
      if (event.timings) this.timings = event.timings;
      if (event.seed !== undefined) this.seed = event.seed;
    });
  }

  time(nTokens) {
    if (!nTokens) return;
    this.lastMs = performance.now();
    this.firstMs ??= this.lastMs;
    this.nFirst ??= nTokens;
  }

  /* Tokens a second since the first event with tokens, which those of that event do not count for. */
  showRate() {
    const spent = (this.lastMs - this.firstMs) / 1000;
    if (spent > 0) showSpeed((this.tokens.length - this.nFirst) / spent, 0);
    if (this.nSteps) $("step-tokens").textContent = number(this.nInSteps / this.nSteps, 2);
    showLegend();
  }

  showEnd(how) {
    this.turn.removeAttribute("aria-busy");
    this.body.classList.remove("waits");
    const t = this.timings, parts = [`${this.tokens.length} tokens`];
    if (t) {
      showSpeed(t.predicted_per_second, t.plain_per_token_ms);
      parts.push(`${speed(t.predicted_per_second)} tokens/s`, `${t.n_steps} steps`);
    }
    if (this.seed !== undefined) parts.push(`seed ${this.seed}`);
    if (how) parts.push(how);
    else if (this.finish === "length") parts.push("the context is full");
    if (this.tokens.length) keepingEnd(() => this.turn.append(make("footer", "", parts.join(" · "))));
    this.body.addEventListener("keydown", (event) => this.move(event));
    this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", "Answer; arrow keys move between its tokens, Enter shows what was proposed");
  }

  /* Arrow keys move between tokens; one of them is in the order of Tab. */
  move(event) {
    const at = this.tokens.findIndex((token) => token.span === event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.tokens.length - 1 }[event.key];
    if (at < 0) return;
    if (event.key === "Enter" || event.key === " ") openTree(this.tokens[at]);
    else if (to === undefined || !this.tokens[to]) return;
    else {
      this.tokens[at].span.tabIndex = -1;
      this.tokens[to].span.tabIndex = 0;
      this.tokens[to].span.focus();
    }
    event.preventDefault();
  }
}

/* ---- sending ------------------------------------------------------------------------------------------- */

/* Calls take(event) for each event of a stream. False: it broke off before its end. */
async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", isWhole = false; ;) {
    const { value, done } = await reader.read();
    if (done) return isWhole;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") isWhole = true;
      else take(JSON.parse(data));
    }
  }
}

function requestBody() {
  const seed = $("seed").value.trim();
  return JSON.stringify({
    model: chosenModel()?.model_alias,
    messages: state.messages,
    stream: true,
    temperature: Number($("temperature").value),
    ...(seed && { seed: Number(seed) }),
    ...chosenDrafters(),
    forerun: { tokens: true, trees: true },
  });
}

/* Fills the answer. Returns why it is not whole, as a sentence; "" where it is. */
async function receive(answer, signal) {
  let why = "";
  const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: requestBody(), signal });
  if (!response.ok) return refusal(response);
  const isWhole = await readEvents(response, (event) => {
    if (event.error) why = sentence(event.error.message);
    else answer.take(event);
  });
  return why || isWhole ? why : "The answer broke off: the connection to the server was lost.";
}

function setRunning(controller) {
  state.running = controller;
  $("send").hidden = Boolean(controller);
  $("stop").hidden = !controller;
  $("new-chat").disabled = Boolean(controller);
}

async function send(text) {
  const controller = new AbortController();
  addTurn("user", text);
  state.messages.push({ role: "user", content: text });
  const answer = new Answer();
  setRunning(controller);
  tell("The model is answering.");
  $("log").scrollTop = $("log").scrollHeight;
  let why = "", isStopped = false;
  try {
    why = await receive(answer, controller.signal);
  } catch (error) {
    isStopped = controller.signal.aborted;
    if (!isStopped)
      why = error instanceof TypeError ? "The server cannot be reached. Is it still running?" : sentence(error.message);
  }
  setRunning(null);
  answer.showEnd(isStopped ? "stopped" : "");
  if (answer.text) state.messages.push({ role: "assistant", content: answer.text });
  else takeBack(answer, text, why);
  if (why) keepingEnd(() => $("log").append(make("p", "error", why)));
  tell(why ? "" : isStopped ? "Stopped." : "The answer is complete.");
}

/* There is no answer: the message can be sent again. */
function takeBack(answer, text, why) {
  answer.turn.remove();
  state.messages.pop();
  if (why && !$("message").value) $("message").value = text;
}

function checkSettings() {
  for (const [id, what] of [["temperature", "The temperature must be a number from 0 to 100."],
    ["seed", "The seed must be a whole number, or empty."]])
    if (!$(id).checkValidity() || (id === "temperature" && $(id).value === "")) {
      document.body.classList.add("panel-open");
      $("show-panel").setAttribute("aria-expanded", "true");
      $(id).focus();
      return what;
    }
  return "";
}

/* ---- events -------------------------------------------------------------------------------------------- */

function fitMessage() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value, why = checkSettings();
  if (state.running || !text.trim()) return;
  if (why) return tell(why, true);
  $("message").value = "";
  fitMessage();
  send(text).then(() => $("message").focus());
});

$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("message").addEventListener("input", fitMessage);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("tree").open) state.running?.abort();
});
$("stop").addEventListener("click", () => state.running?.abort());

$("log").addEventListener("click", (event) => {
  const token = tokenOf.get(event.target);
  if (token && getSelection().isCollapsed) openTree(token);
});

$("new-chat").addEventListener("click", () => {
  state.messages = [];
  state.counts.clear();
  $("log").replaceChildren();
  $("step-tokens").textContent = "–";
  showSpeed(0, 0);
  showLegend();
  tell("A new chat has begun.");
  $("message").focus();
});

$("show-panel").addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("panel-open");
  $("show-panel").setAttribute("aria-expanded", String(isOpen));
  $("show-panel").textContent = isOpen ? "Chat" : "Settings";
});
$("model").addEventListener("change", showModel);
$("key").addEventListener("change", load);

showLegend();
load();
