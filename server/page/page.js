/* page.js - the chat at / of `forerun serve`: its settings, the conversation, and the chats that the browser keeps.
 * answer.js shows one answer, markdown.js parses it, and figures.js has what is beside it.
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
  models: [],        // of /props
  chat: null,        // {id, when, turns: [{role, text, reasoning, note}]}
  elements: [],      // of the turns of the chat, in their order
  edited: -1,        // the turn that the next message replaces; -1: none
  counts: new Map(), // drafter -> {proposed, accepted}, in this chat
  running: null,     // AbortController of the answer that is being written
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
    label.append(box, name === "auto" ? "auto (forerun chooses)" : make("span", `swatch ${colorOf(name)}`, name));
    return label;
  }));
  if (!names.length) $("drafters").append(make("p", "note", "The operator configured none."));
  showCosts(model);
  showSpeed(0, 0, 0);
  showWelcome(model, names);
}

const examples = [
  "Tell me a story about a little girl and a dog.",
  "Explain in three sentences how a bicycle stays upright.",
  "Write a function in Python that reverses a list, and explain it step by step.",
];

function showWelcome(model, drafters) {
  const facts = [["Model", model.model_alias], ["Architecture", model.architecture], ["Context", `${model.n_ctx} tokens`],
    ["Runs on", `${model.backend}, ${model.kernels}`], ["Drafters", drafters.join(", ") || "none"]];
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
  $("examples").replaceChildren(...examples.map((text) => button(text, () => {
    if (!state.running) send(text);
  })));
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

function button(text, action) {
  const node = make("button", "quiet", text);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

function addElement(element) {
  $("welcome").hidden = true;
  $("log").append(element);
  state.elements.push(element);
}

function addUser(text) {
  const turn = make("article", "turn user"), footer = make("footer");
  footer.append(button("Edit", () => edit(state.elements.indexOf(turn))),
    button("Copy", (event) => copyText(text, event.target)));
  turn.append(make("h2", "", "You"), make("div", "text", text), footer);
  addElement(turn);
}

const modelName = () => chosenModel()?.model_alias ?? "Model";

/* The line under an answer: its figures, and what can be done with it. */
function addFooter(answer) {
  const footer = make("footer"), actions = make("span", "actions");
  actions.append(button("Copy", (event) => copyText(answer.text.trim() || answer.reasoning, event.target)),
    button("Again", () => again(state.elements.indexOf(answer.turn))));
  footer.append(make("span", "", answer.note ?? ""), actions);
  answer.turn.append(footer);
}

/* Says that nothing was drafted, where drafters are chosen, and offers to draft all the same. */
function addOffer(answer) {
  const drafts = chosenDrafters().draft !== "none" && $("drafters").querySelector("input");
  if (!drafts || $("always").checked || answer.nProposed || answer.tokens.length < 8) return;
  const offer = make("p", "note",
    "No drafter proposed anything: none had a guess, or drafting would not have been faster here. ");
  offer.append(button("Show drafts all the same", () => {
    $("always").checked = true;
    keepSettings();
    again(state.elements.indexOf(answer.turn));
  }));
  answer.turn.append(offer);
}

/* Follows the end of the text, unless the reader has scrolled away from it. */
function keepingEnd(change) {
  const log = $("log"), isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
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

/* The messages: turns whose answer has a text, and the last message of the user. */
function messages() {
  const list = [], system = $("system").value.trim(), turns = state.chat.turns;
  if (system) list.push({ role: "system", content: system });
  turns.forEach((turn, i) => {
    const answer = turns[i + 1];
    if (turn.role === "assistant" ? turn.text.trim() : !answer || answer.text.trim())
      list.push({ role: turn.role, content: turn.text });
  });
  return list;
}

function requestBody() {
  const seed = $("seed").value.trim(), most = $("max-tokens").value.trim();
  return JSON.stringify({
    model: chosenModel()?.model_alias,
    messages: messages(),
    stream: true,
    temperature: Number($("temperature").value),
    top_p: Number($("top-p").value),
    ...(most && { max_tokens: Number(most) }),
    ...(seed && { seed: Number(seed) }),
    ...chosenDrafters(),
    ...($("always").checked && chosenDrafters().draft !== "none" && { tree_budget: 8 }),
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

/* Asks for the answer to the last turn, which is the user's. */
async function answerLast() {
  const controller = new AbortController(), answer = new Answer(modelName());
  addElement(answer.turn);
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
  const ending = !answer.text.trim() ? "There is no answer."
    : answer.finish === "length" ? "The answer was cut off: it reached the limit of tokens or context." : "The answer is complete.";
  if (answer.tokens.length) keepingEnd(() => endAnswer(answer, isStopped));
  else takeBack(answer);
  if (why) keepingEnd(() => $("log").append(make("p", "error", why)));
  tell(why ? "" : isStopped ? "Stopped." : ending);
}

function endAnswer(answer, isStopped) {
  answer.end(isStopped ? "stopped" : "");
  addFooter(answer);
  addOffer(answer);
  state.chat.turns.push({ role: "assistant", text: answer.text, reasoning: answer.reasoning, note: answer.note });
  keepChat();
}

/* Nothing was generated: the message goes back to where it was written, and can be sent again. */
function takeBack(answer) {
  answer.turn.remove();
  state.elements.pop();
  state.elements.pop()?.remove();
  const { text } = state.chat.turns.pop();
  if (!$("message").value) $("message").value = text;
  fitMessage();
}

function send(text) {
  if (state.edited >= 0) cutChat(state.edited);
  addUser(text);
  state.chat.turns.push({ role: "user", text });
  return answerLast();
}

/* Begins a copy of the chat without turn i and those after it. The chat itself stays among the earlier chats. */
function cutChat(i) {
  state.chat = { ...newChat(), turns: state.chat.turns.slice(0, i) };
  for (const element of state.elements.splice(i)) element.remove();
  $("log").querySelectorAll(".error").forEach((error) => error.remove());
  stopEditing();
}

function again(i) {
  if (state.running || i < 1) return;
  cutChat(i);
  answerLast();
}

function edit(i) {
  if (state.running) return;
  state.edited = i;
  $("message").value = state.chat.turns[i].text;
  $("editing").hidden = false;
  fitMessage();
  $("message").focus();
}

function stopEditing() {
  state.edited = -1;
  $("editing").hidden = true;
}

/* ---- chats and settings that the browser keeps ---------------------------------------------------------- */

const MAX_CHATS = 50;
const newChat = () => ({ id: `${Date.now()}-${Math.random()}`, when: Date.now(), turns: [] });

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/* Keeps as many of the newest chats as the browser has room for. */
function keepChats(chats) {
  for (let n = Math.min(chats.length, MAX_CHATS); n >= 0; n--) {
    try {
      localStorage.setItem("forerun-chats", JSON.stringify(chats.slice(0, n)));
      break;
    } catch { /* it is full, or keeps nothing */ }
  }
  showChats();
}

function keepChat() {
  keepChats([{ ...state.chat, when: Date.now() }, ...read("forerun-chats", []).filter((chat) => chat.id !== state.chat.id)]);
}

function showChats() {
  const chats = read("forerun-chats", []);
  $("chats").replaceChildren(...chats.map((chat) => {
    const row = make("li"), title = (chat.turns[0]?.text ?? "").trim().slice(0, 80);
    const open = button(title, () => openChat(chat)), drop = button("×", () => keepChats(chats.filter((c) => c !== chat)));
    open.className = "chat";
    open.title = new Date(chat.when).toLocaleString();
    drop.setAttribute("aria-label", `Delete the chat “${title}”`);
    row.append(open, drop);
    return row;
  }));
  $("no-chats").hidden = chats.length > 0;
}

/* Shows a chat from its beginning; an empty one is the welcome. */
function openChat(chat) {
  if (state.running) return;
  state.chat = structuredClone(chat);
  for (const element of state.elements.splice(0)) element.remove();
  $("log").querySelectorAll(".error").forEach((error) => error.remove());
  $("welcome").hidden = chat.turns.length > 0;
  state.counts.clear();
  $("step-tokens").textContent = "–";
  showSpeed(0, 0, 0);
  showLegend();
  stopEditing();
  for (const turn of chat.turns) {
    if (turn.role === "user") addUser(turn.text);
    else {
      const answer = Answer.restored(modelName(), turn);
      addElement(answer.turn);
      addFooter(answer);
    }
  }
  $("log").scrollTop = $("log").scrollHeight;
}

const kept = ["temperature", "top-p", "max-tokens", "system"];

function keepSettings() {
  const values = Object.fromEntries(kept.map((id) => [id, $(id).value]));
  try {
    localStorage.setItem("forerun-settings", JSON.stringify({ ...values, always: $("always").checked }));
  } catch { /* the browser keeps nothing */ }
}

function restoreSettings() {
  const values = read("forerun-settings", {});
  for (const id of kept) if (typeof values[id] === "string") $(id).value = values[id];
  $("always").checked = values.always === true;
}

function checkSettings() {
  for (const [id, what, isNeeded] of [["temperature", "The temperature must be a number from 0 to 100.", true],
    ["top-p", "Top-p must be a number from 0.01 to 1.", true],
    ["max-tokens", "The most tokens must be a whole number from 1 on, or empty."],
    ["seed", "The seed must be a whole number, or empty."]])
    if (!$(id).checkValidity() || (isNeeded && $(id).value === "")) {
      showPanel(true);
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

const answerAt = (node) => answerOf.get(node.closest("article"));

$("log").addEventListener("click", (event) => {
  if (event.target.matches(".token") && getSelection().isCollapsed) answerAt(event.target).openTree(event.target);
});
$("log").addEventListener("keydown", (event) => {
  if (event.target.matches(".token")) answerAt(event.target).move(event);
});

$("new-chat").addEventListener("click", () => {
  openChat(newChat());
  showPanel(false);
  tell("A new chat has begun.");
  $("message").focus();
});
$("stop-editing").addEventListener("click", () => {
  stopEditing();
  $("message").value = "";
  fitMessage();
});

/* On a phone the panel takes the place of the chat. */
function showPanel(isOpen) {
  document.body.classList.toggle("panel-open", isOpen);
  $("show-panel").setAttribute("aria-expanded", String(isOpen));
  $("show-panel").textContent = isOpen ? "Chat" : "Settings";
}
$("show-panel").addEventListener("click", () => showPanel(!document.body.classList.contains("panel-open")));
$("model").addEventListener("change", showModel);
$("key").addEventListener("change", load);
for (const id of [...kept, "always"]) $(id).addEventListener("input", keepSettings);

restoreSettings();
openChat(newChat());
showChats();
load();
