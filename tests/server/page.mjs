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
  return page.locator(".assistant .text").last().textContent();
}

const shoot = async (page, name) => folder && page.screenshot({ path: join(folder, `page-${name}.png`) });
const prompt = "Tell me a story about a little girl and a dog.";

async function answersAndColours() {
  const page = await open({}, { temperature: 0 });
  const text = await ask(page, prompt);
  assert.ok(text.length > 20, "an answer appears");
  const coloured = await page.locator(".assistant .token.d0, .assistant .token.d1").count();
  const all = await page.locator(".assistant .token").count();
  assert.ok(coloured > 0 && coloured < all, `${coloured} of ${all} tokens are coloured`);
  const legend = await page.locator("#legend tbody").innerText();
  assert.match(legend, /(ngram-trie|suffix)\s+\d+\s+\d+ \(\d+ %\)/);
  // The coloured tokens are those that the legend counts, except those after the end of the text.
  const accepted = [...legend.matchAll(/(\d+) \(/g)].reduce((sum, match) => sum + Number(match[1]), 0);
  assert.equal(accepted, coloured);
  for (const id of ["#rate", "#plain-rate", "#ratio", "#step-tokens"]) assert.match(await page.locator(id).innerText(), /\d/);
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
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement.previousElementSibling?.tabIndex), -1);
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
    if (!slots.length) break;
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
  for (const check of [answersAndColours, stops, showsErrors, fitsAPhoneAndTheDark]) {
    await check();
    console.log(`ok ${check.name}`);
  }
  assert.deepEqual(problems, []);
  assert.deepEqual([...hosts], [new URL(url).origin]);
} finally {
  await browser.close();
}
