// main.js: the actions of the page: asking, stopping, branching, adding documents, opening the attention panel. The
// only libraries are those of markdown.js, and requests go only to this server. Chats and documents stay in this tab.
import { $, button, count, el } from "./dom.js";
import { formOf, get, post, setKey, stream } from "./api.js";
import { Chat, messagesOf } from "./chat.js";
import * as reading from "./reading.js";
import * as settings from "./settings.js";
import * as store from "./store.js";
import * as view from "./view.js";

let chat = new Chat();
let documents = []; // for the next question: {name, text, n_tok, format, pages}
let running = null; // AbortController of the current answer
let context = 0;    // the server's context length in tokens

const status = (text) => { $("status").textContent = text; };

// ---- Asking ----

function setRunning(controller) {
  running = controller;
  $("send").textContent = controller ? "Stop" : "Send";
  $("send").title = controller ? "Stop the answer (Esc)" : "";
}

function showRoom(used) {
  const share = context ? Math.min(1, used / context) : 0;
  $("room").hidden = !context;
  $("room-bar").firstChild.style.width = `${100 * share}%`;
  $("room-bar").classList.toggle("full", share > 0.9);
  $("room-text").textContent = `${count(used)} / ${count(context)}`;
  $("room").title = "Tokens of the context that the last answer took";
  $("room").ariaLabel = `Context: ${$("room-text").textContent}`;
}

// Stores the streamed answer in `to` {text, usage, timings, finish, error}; calls `onChange` at most once per frame.
async function request(to, body, onChange) {
  let isDue = false, isOver = false, n = 0, first = 0;
  const change = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      if (!isOver) onChange();
    });
  };
  setRunning(new AbortController());
  try {
    await stream("v1/chat/completions", body, running.signal, (data) => {
      const choice = data.choices?.[0], text = choice?.delta?.content || "";
      if (data.prompt_progress) to.progress = data.prompt_progress;
      if (text) {
        to.text += text;
        n += 1;
        first ||= performance.now();
        const seconds = (performance.now() - first) / 1000;
        if (n > 3) status(`${((n - 1) / seconds).toFixed(1)} tokens/s`);
      }
      to.answerId = data.id || to.answerId;
      to.finish = choice?.finish_reason || to.finish;
      to.usage = data.usage || to.usage;
      to.timings = data.timings || to.timings;
      change();
    });
  } catch (e) {
    if (e.name === "AbortError") to.finish = "stopped";
    else to.error = e.message;
  }
  isOver = true;
  setRunning(null);
  status("");
  if (to.usage) showRoom(to.usage.total_tokens);
}

const common = { stream: true, stream_options: { include_usage: true }, return_progress: true };

async function readReading(turn) {
  try {
    turn.reading = await get("v1/attention/" + turn.answerId);
  } catch (e) {
    turn.unread = e.status === 404 ? "The server kept no reading of this answer." : e.message;
  }
}

async function answer(question) {
  const system = settings.system(), own = settings.fields(), stored = store.chosen();
  const fields = { ...own, ...store.fields(stored, own.sparse) };
  const turn = chat.add(question.id, { role: "assistant", text: "", state: "asking", fields, system, stored,
                                       lead: system ? 1 : 0 });
  const body = { ...fields, ...common, messages: messagesOf(chat.until(question), system) };
  if (settings.isWatched()) body.return_attention = "tokens";
  view.draw(chat, actions);
  $("talk").scrollTop = $("talk").scrollHeight;
  await request(turn, body, () => view.redraw(turn, chat, actions));
  delete turn.progress;
  if (settings.isWatched() && turn.finish && turn.finish !== "stopped") await readReading(turn);
  turn.state = "done";
  view.draw(chat, actions);
  if (turn.reading && hasDocuments(turn) && globalThis.innerWidth > 900) actions.read(turn);
}

const hasDocuments = (turn) => turn.stored.length || chat.until(turn).some((t) => t.documents.length);

function ask(text, docs, parent) {
  const question = chat.add(parent, { role: "user", text, documents: docs.map(({ name, text: t }) => ({ name, text: t })) });
  answer(question);
}

// Asks again with the same seed and dense attention.
async function askDensely(turn) {
  const question = chat.turns.get(turn.parent);
  const body = { ...turn.fields, ...common,
                 sparse: { dense: true, ...(turn.fields.sparse?.context ? { context: turn.fields.sparse.context } : {}) },
                 messages: messagesOf(chat.until(question), turn.system) };
  const dense = { text: "" };
  turn.asking = "…";
  view.redraw(turn, chat, actions);
  await request(dense, body, () => {
    turn.asking = dense.text || "…";
    view.redraw(turn, chat, actions);
  });
  delete turn.asking;
  if (dense.error) turn.error = dense.error;
  else if (dense.finish !== "stopped") turn.dense = dense;
}

// ---- Actions ----

const actions = {
  choose(turn) {
    chat.choose(turn);
    view.draw(chat, actions);
  },
  edit(turn) {
    if (running) return;
    view.swap(turn, view.editor(turn, (text) => ask(text, turn.documents, turn.parent),
                                () => view.draw(chat, actions)));
  },
  again(turn) {
    if (!running) answer(chat.turns.get(turn.parent));
  },
  read(turn) {
    reading.open(turn, chat.until(chat.turns.get(turn.parent)), turn.lead, () => $("text").focus());
  },
  async view(turn, which) {
    if (running) return;
    turn.error = undefined;
    if (which !== "answer" && !turn.dense) await askDensely(turn);
    turn.view = turn.dense ? which : "answer";
    view.draw(chat, actions);
  },
};

// ---- Documents ----

// "report.pdf · PDF, 12 pages · 5,012 tokens"
function describe(d) {
  const kind = d.format + (d.pages ? `, ${count(d.pages)} pages` : "");
  return [d.name, kind, `${count(d.n_tok)} tokens`].join(" · ");
}

function drawChips() {
  $("chips").replaceChildren(...documents.map((d) => el("li", {},
    `${describe(d)} `,
    button("×", `Remove ${d.name}`, () => {
      documents = documents.filter((other) => other !== d);
      drawChips();
    }))));
}

// The server extracts the text, or says why it cannot.
async function addFile(file) {
  status(`${file.name} is being read …`);
  const read = await (await post("extract", formOf(file))).json();
  if (!read.text.trim()) throw new Error(`${file.name} has no text`);
  documents.push({ name: file.name, text: read.text, n_tok: read.tokens, format: read.format, pages: read.pages });
  status("");
  drawChips();
}

async function storeFiles(files) {
  for (const file of files) {
    try {
      await store.add(file);
    } catch (e) {
      status(e.message);
    }
  }
}

async function addFiles(files) {
  for (const file of files) {
    try {
      if (file.name.endsWith(".json") && await importFile(file)) continue;
      await addFile(file);
    } catch (e) {
      status(e.message);
    }
  }
  $("text").focus();
}

// ---- Import and export ----

// True: the file was an exported chat. Other JSON files are documents.
async function importFile(file) {
  const text = await file.text();
  if (!text.includes('"saccade-chat-')) return false;
  if (running) throw new Error("an answer is being given");
  reading.close();
  chat = Chat.import(JSON.parse(text));
  showRoom(chat.path().at(-1)?.usage?.total_tokens || 0);
  view.draw(chat, actions);
  return true;
}

function exportChat() {
  const data = new Blob([JSON.stringify(chat.export(), null, 1)], { type: "application/json" });
  const link = el("a", { href: URL.createObjectURL(data), download: "saccade-chat.json" });
  link.click();
  URL.revokeObjectURL(link.href);
}

// ---- The page ----

function send(event) {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim(), docs = documents;
  if (!text) return;
  $("text").value = "";
  documents = [];
  drawChips();
  status("");
  ask(text, docs, chat.path().at(-1)?.id ?? 0);
}

function startAnew() {
  running?.abort();
  reading.close();
  chat = new Chat();
  documents = [];
  drawChips();
  showRoom(0);
  view.draw(chat, actions);
  $("text").focus();
}

function nextTheme() {
  const now = document.documentElement.dataset.theme || "system";
  const next = { system: "dark", dark: "light", light: "system" }[now];
  localStorage.setItem("saccade.theme", next);
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  status(`Theme: ${next}`);
  reading.repaint();
}

function editLast() {
  const last = chat.path().filter((t) => t.role === "user").at(-1);
  if (last) actions.edit(last);
}

function onKey(event) {
  const isTyping = event.target.matches("input, textarea, select");
  if ($("settings").open) return;
  if (event.key === "Escape") {
    if (running) running.abort();
    else reading.close();
  } else if (event.altKey && event.key === "ArrowUp") {
    event.preventDefault();
    if (!running) editLast();
  } else if (!isTyping && event.key === "/") {
    event.preventDefault();
    $("text").focus();
  } else if (!(isTyping && event.target.value) && !event.altKey && !event.ctrlKey && reading.onKey(event)) {
    event.preventDefault();
  }
}

function wire() {
  $("form").addEventListener("submit", send);
  $("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) $("form").requestSubmit();
  });
  $("fresh").addEventListener("click", startAnew);
  $("export").addEventListener("click", exportChat);
  $("import").addEventListener("click", () => $("pick-chat").click());
  $("attach").addEventListener("click", () => $("pick").click());
  $("add-stored").addEventListener("click", () => $("pick-stored").click());
  $("pick-stored").addEventListener("change", async () => {
    await storeFiles([...$("pick-stored").files]);
    $("pick-stored").value = "";
  });
  $("theme").addEventListener("click", nextTheme);
  $("open-settings").addEventListener("click", () => $("settings").showModal());
  for (const id of ["pick", "pick-chat"])
    $(id).addEventListener("change", async () => {
      await addFiles([...$(id).files]);
      $(id).value = "";
    });
  document.addEventListener("keydown", onKey);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").hidden = false;
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").hidden = true;
    addFiles([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) addFiles([...event.clipboardData.files]);
  });
  globalThis.addEventListener("resize", reading.repaint);
}

async function meet() {
  try {
    const models = await get("v1/models");
    $("model").textContent = models.data[0].id;
    document.title = `${models.data[0].id} · Saccade`;
    const props = await get("props");
    context = props.default_generation_settings.n_ctx;
    settings.showServer(props);
    await store.setup(props, status);
    showRoom(0);
    status("");
  } catch (e) {
    status(e.status === 401 ? "The server asks for a key: Settings." : e.message);
    if (e.status === 503) setTimeout(meet, 1000); // the model is loading
  }
}

wire();
settings.setup((key) => {
  setKey(key);
  meet();
});
view.draw(chat, actions);
