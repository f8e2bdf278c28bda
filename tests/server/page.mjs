// page.mjs - the page at / in a real browser: node page.mjs http://127.0.0.1:PORT [FOLDER for screenshots]
// Needs npm's playwright-core and a Chromium (CHROMIUM, or /usr/bin/chromium). The server has --draft ngram-trie --draft suffix.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const { chromium } = createRequire(join(process.env.FORERUN_NODE_MODULES, "node_modules", "x"))("playwright-core");
const [url, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const problems = [], hosts = new Set();

async function open(options, settings = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60000);
  page.on("pageerror", (error) => problems.push(`exception: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`console: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith("data:") || hosts.add(new URL(request.url()).origin));
  await page.goto(url);
  await page.waitForSelector("#drafters input", { state: "attached" });
  if (settings.temperature !== undefined) await fill(page, "#temperature", settings.temperature);
  if (settings.seed !== undefined) await fill(page, "#seed", settings.seed);
  return page;
}

// Fields of the panel are hidden on a phone until it is opened.
async function fill(page, field, value) {
  const isHidden = !(await page.locator(field).isVisible());
  if (isHidden) await page.click("#show-panel");
  await page.fill(field, String(value));
  if (isHidden) await page.click("#show-panel");
}

async function ask(page, text) {
  const nBefore = await page.locator(".assistant footer").count();
  await page.fill("#message", text);
  await page.press("#message", "Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".assistant footer").length > n, nBefore);
  return page.evaluate(() => answerOf.get([...document.querySelectorAll(".assistant")].at(-1)).text);
}

// Answers every request with these events: pieces of [reasoning, text, source].
async function answerWith(page, pieces, finish = "stop", timings) {
  const events = pieces.map(([reasoning, text, source]) => ({ choices: [{
    delta: reasoning ? { reasoning_content: reasoning.replace(/<.think>/, "") } : { content: text },
    forerun: { tokens: [{ text: reasoning || text, source: source ?? null }],
      steps: [{ n: 1, tree: [{ parent: -1, text: "", p: 1, source: null, accepted: true }] }] } }] }));
  events.push({ choices: [{ delta: {}, finish_reason: finish }], timings });
  await page.unroute("**/chat/completions");
  await page.route("**/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream",
    body: events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("") + "data: [DONE]\n\n" }));
}

const shoot = async (page, name) => folder && page.screenshot({ path: join(folder, `page-${name}.png`) });
const prompt = "Tell me a story about a little girl and a dog.";

async function answersAndColours() {
  const page = await open({}, { temperature: 0 });
  const text = await ask(page, prompt);
  assert.ok(text.length > 20, "an answer appears");
  const coloured = await page.evaluate(() =>
    new Set([...document.querySelectorAll(".assistant .token[class*=' d']")].map((span) => span.dataset.i)).size);
  const all = await page.locator(".assistant .token").count();
  assert.ok(coloured > 0 && coloured < all, `${coloured} of ${all} tokens are coloured`);
  const legend = await page.locator("#legend tbody").innerText();
  assert.match(legend, /(ngram-trie|suffix)\s+\d+\s+\d+ \(\d+ %\)/);
  // The coloured tokens are those that the legend counts, except blanks and those after the end of the text.
  const accepted = [...legend.matchAll(/(\d+) \(/g)].reduce((sum, match) => sum + Number(match[1]), 0);
  assert.ok(coloured <= accepted && coloured >= accepted / 2, `${coloured} of ${accepted} accepted tokens are coloured`);
  assert.equal(await page.locator(".token").evaluateAll((all) => all.filter((span) => /^\s/.test(span.textContent)).length), 0);
  for (const id of ["#rate", "#step-tokens"]) assert.match(await page.locator(id).innerText(), /\d/);
  // The shipped model repeats itself here, so no ratio is shown.
  assert.match(await page.locator(".assistant footer").innerText(), /the text repeats itself/);
  for (const id of ["#plain-rate", "#ratio"]) assert.equal(await page.locator(id).innerText(), "–");
  assert.match(await page.locator("#chart-text").innerText(), /forward of one token takes/);
  assert.equal(await page.locator("#chart path").count(), 1);
  await shoot(page, "light");

  // A second turn contains the first one.
  const [request] = await Promise.all([page.waitForRequest(/chat\/completions/), ask(page, "And then?")]);
  assert.deepEqual(request.postDataJSON().messages.map((m) => m.role), ["user", "assistant", "user"]);
  assert.equal(request.postDataJSON().messages[1].content, text);
  await shoot(page, "turns");

  // A click shows the tree, and Escape closes it.
  await page.locator(".assistant .token.d0, .assistant .token.d1").first().click();
  assert.ok(await page.locator("#tree").isVisible());
  assert.ok(await page.locator("#tree .accepted").count() > 0);
  assert.match(await page.locator("#tree").innerText(), /%, accepted[^]*the target's own choice/);
  await shoot(page, "tree");
  await page.keyboard.press("Escape");
  assert.ok(!(await page.locator("#tree").isVisible()));

  // The same by keyboard.
  await page.locator('.assistant .token[tabindex="0"]').first().focus();
  const place = () => page.evaluate(() => [document.activeElement.dataset.i, document.activeElement.getBoundingClientRect().top]);
  const [first, top] = await place();
  await page.keyboard.press("ArrowRight");
  assert.ok(Number((await place())[0]) > Number(first));
  await page.keyboard.press("ArrowDown");
  assert.ok((await place())[1] > top, "the key moves to the next line");
  await page.keyboard.press("ArrowUp");
  assert.equal((await place())[1], top);
  await page.keyboard.press("Enter");
  assert.ok(await page.locator("#tree").isVisible());
  await page.keyboard.press("Enter"); // the button that closes it has the focus
  assert.ok(!(await page.locator("#tree").isVisible()));

  await page.click("#new-chat");
  assert.equal(await page.locator(".turn").count(), 0);

  // Plain decoding: the same text, without a colour.
  for (const box of await page.locator("#drafters input").all()) await box.uncheck();
  const plain = await ask(page, prompt);
  assert.equal(plain, text);
  assert.equal(await page.locator(".assistant .token[class*=' d']").count(), 0);
  await page.context().close();
}

// The ratio is that of an answer with enough steps that is no loop.
async function showsASoundRatio() {
  const page = await open();
  const words = [..."abcdefghijklmnopqrstuvwxyz"].map((letter) => ["", `${letter} `, "suffix"]);
  for (const [nSteps, ratio] of [[3, "–"], [20, "1.50 ×"]]) {
    await answerWith(page, words, "stop", { predicted_per_second: 30, plain_per_token_ms: 50, n_steps: nSteps });
    await ask(page, "Hello");
    assert.equal(await page.locator("#ratio").innerText(), ratio);
  }
  await page.context().close();
}

async function stops() {
  const page = await open({}, { temperature: 1, seed: 3 });
  for (const how of ["button", "Escape"]) {
    await page.route("**/chat/completions", (route) => route.continue({
      postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }),
    }));
    await page.fill("#message", "Count.");
    await page.press("#message", "Shift+Enter");
    assert.equal(await page.inputValue("#message"), "Count.\n");
    await page.press("#message", "Enter");
    // Within the page, because the whole answer takes a second.
    await page.waitForFunction((how) => {
      if (!document.querySelector(".assistant[aria-busy] .token")) return false;
      if (how === "button") document.getElementById("stop").click();
      else document.getElementById("message").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
      return true;
    }, how);
    await page.waitForSelector("#send:visible");
    assert.match(await page.locator(".assistant footer").last().innerText(), /stopped/);
  }
  // The server has noticed it, too.
  for (let i = 0; ; i++) {
    const slots = await (await fetch(`${url}/slots`)).json();
    if (!slots.some((slot) => slot.is_processing)) break;
    assert.ok(i < 200, "the request was cancelled");
    await new Promise((done) => setTimeout(done, 50));
  }
  await page.context().close();
}

async function showsErrors() {
  const page = await open();
  await page.fill("#seed", "x");
  await page.fill("#message", "Hello");
  await page.press("#message", "Enter");
  assert.match(await page.locator("#status").innerText(), /seed must be a whole number/);
  await page.fill("#seed", "");
  await page.route("**/chat/completions", (route) => route.fulfill({
    status: 429, contentType: "application/json",
    body: JSON.stringify({ error: { message: "all 8 places are <b>taken</b>" } }),
  }));
  await page.press("#message", "Enter");
  await page.waitForSelector("#log .error");
  assert.equal(await page.locator("#log .error").innerText(),
    "All 8 places are <b>taken</b>. Wait for a moment, then send the message again.");
  assert.equal(await page.locator("#log b").count(), 0);
  assert.equal(await page.inputValue("#message"), "Hello"); // it can be sent again
  await shoot(page, "error");
  problems.length = 0; // the browser reports the status 429 itself

  // Text of the model is text.
  const evil = "<img src=x onerror=alert(1)><script>alert(2)</script>";
  const event = { choices: [{ delta: { content: evil }, forerun: { tokens: [{ text: evil, source: "<b>" }], steps: [] } }] };
  await page.unroute("**/chat/completions");
  await page.route("**/chat/completions", (route) => route.fulfill({
    contentType: "text/event-stream", body: `data: ${JSON.stringify(event)}\n\ndata: [DONE]\n\n`,
  }));
  assert.equal(await ask(page, "Hello"), evil);
  assert.equal(await page.locator("#log img, #log script, #legend b").count(), 0);
  await page.context().close();
}

// Reasoning folds; an answer that ends within it stays, and is not sent back.
async function keepsReasoning() {
  const page = await open();
  await answerWith(page, [["I think", ""], [" so.</think>", ""], ["", "\nYes **really**."]]);
  assert.equal(await ask(page, "Is it?"), "\nYes **really**.");
  assert.equal(await page.locator(".reasoning").getAttribute("open"), null);
  assert.equal((await page.locator(".reasoning > div").textContent()).trim(), "I think so.");
  assert.equal(await page.locator(".assistant .text strong").innerText(), "really");
  await answerWith(page, [["I only", ""], [" think", ""]], "length");
  await ask(page, "And now?");
  assert.equal(await page.locator(".reasoning").last().getAttribute("open"), "");
  assert.match(await page.locator(".assistant footer").last().innerText(), /ended within its reasoning/);
  const [request] = await Promise.all([page.waitForRequest(/chat\/completions/), ask(page, "Again?")]);
  assert.deepEqual(request.postDataJSON().messages.map((m) => m.content), ["Is it?", "\nYes **really**.", "Again?"]);
  await page.context().close();
}

async function showsMarkdown() {
  const page = await open();
  await answerWith(page, [["", "One two"]], "length");
  await ask(page, "Count.");
  await page.waitForFunction(() => /cut off/.test(document.querySelector("#status").textContent));
  await page.click("#new-chat");
  const text = "# Title\n\nSome *slanted* snake_case `co*de*`\nand 2 * 3 * 4\n\n- one\n  - inner\n- two\n\n" +
    "```c\nint x = 1;\n\n  y();\n```\n\n> quoted\n\n1. first\n2. second\n\n| a | **b** |\n|---|--:|\n| 1 | 2|\n";
  // Token by token, so that every beginning of the text is shown once.
  await answerWith(page, [...text].map((letter) => ["", letter, "suffix"]));
  await ask(page, "Show it.");
  const body = page.locator(".assistant .text");
  assert.equal(await body.locator("h3").innerText(), "Title");
  assert.equal(await body.locator("em").innerText(), "slanted");
  assert.equal(await body.locator("p code").innerText(), "co*de*");
  assert.match(await body.locator("p").innerText(), /snake_case[^]*2 \* 3 \* 4/);
  assert.deepEqual(await body.locator("ul > li").allInnerTexts().then((all) => all.map((t) => t.replace(/\s+/g, " "))),
    ["one inner", "inner", "two"]);
  assert.equal(await body.locator("pre").textContent(), "int x = 1;\n\n  y();");
  assert.equal(await body.locator("blockquote").innerText(), "quoted");
  assert.equal(await body.locator("ol > li").count(), 2);
  assert.deepEqual(await body.locator("th, td").allInnerTexts(), ["a", "b", "1", "2"]);
  await page.context().close();
}

// Chats survive a reload; editing a message and asking again leave the earlier chat as it was.
async function keepsChats() {
  const page = await open();
  await answerWith(page, [["", "One", "suffix"]]);
  await ask(page, "First?");
  await answerWith(page, [["", "Two", "suffix"]]);
  await page.locator(".assistant footer button", { hasText: "Again" }).click();
  await page.waitForFunction(() => document.querySelector(".assistant footer") && document.body.innerText.includes("Two"));
  assert.equal(await page.locator(".turn").count(), 2);
  await page.locator(".user footer button", { hasText: "Edit" }).click();
  assert.equal(await page.inputValue("#message"), "First?");
  await page.fill("#message", "Second?");
  await page.press("#message", "Enter");
  await page.waitForFunction(() => document.querySelector(".user .text").textContent === "Second?" &&
    document.querySelector(".assistant footer"));
  assert.equal(await page.locator(".turn").count(), 2);
  await page.fill("#system", "Be brief.");
  await page.fill("#max-tokens", "9");
  await page.reload();
  await page.waitForSelector("#facts dd");
  assert.deepEqual(await page.locator("#chats .chat").allInnerTexts(), ["Second?", "First?", "First?"]);
  await page.locator("#chats .chat").last().click();
  assert.match(await page.locator(".assistant").innerText(), /One/);
  const [request] = await Promise.all([page.waitForRequest(/chat\/completions/), ask(page, "More?")]);
  const { messages, max_tokens } = request.postDataJSON();
  assert.deepEqual(messages.map((m) => m.content), ["Be brief.", "First?", "One", "More?"]);
  assert.equal(max_tokens, 9);
  await page.locator("#chats button[aria-label]").first().click();
  assert.equal(await page.locator("#chats li").count(), 2);
  await page.context().close();
}

// Where nothing was drafted, the page offers to draft all the same.
async function offersDrafts() {
  const page = await open();
  await answerWith(page, [..."A quiet text."].map((letter) => ["", letter]));
  await ask(page, "Hello");
  const [request] = await Promise.all([page.waitForRequest(/chat\/completions/),
    page.locator("button", { hasText: "Show drafts all the same" }).click()]);
  assert.equal(request.postDataJSON().tree_budget, 8);
  await page.context().close();
}

async function fitsAPhoneAndTheDark() {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open({ viewport: { width: 390, height: 780 }, colorScheme, hasTouch: true, isMobile: true },
      { temperature: 0 });
    await ask(page, prompt);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    await shoot(page, `phone-${colorScheme}`);
    await page.click("#show-panel");
    assert.ok(await page.locator("#legend").isVisible());
    await shoot(page, `phone-panel-${colorScheme}`);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    await page.context().close();
  }
  const page = await open({ colorScheme: "dark" }, { temperature: 0 });
  await ask(page, prompt);
  const [r, g, b] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
  assert.ok(r + g + b < 150, "the page is dark");
  await shoot(page, "dark");
  await page.context().close();
}

try {
  for (const check of [answersAndColours, showsASoundRatio, stops, showsErrors, keepsReasoning, showsMarkdown, keepsChats, offersDrafts,
    fitsAPhoneAndTheDark]) {
    await check();
    console.log(`ok ${check.name}`);
  }
  assert.deepEqual(problems, []);
  assert.deepEqual([...hosts], [new URL(url).origin]);
} finally {
  await browser.close();
}
