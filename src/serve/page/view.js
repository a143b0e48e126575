// view.js: renders turns. It never changes the conversation; main.js passes the click handlers as `actions`.
import { $, bar, button, count, el, percent } from "./dom.js";
import { render } from "./markdown.js";
import { diff } from "./diff.js";

// "1,024 tokens read (960 cached, 64 new) ..."
function numbers(turn) {
  const { usage, timings } = turn, parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens || 0;
    parts.push(`${count(usage.prompt_tokens)} tokens in: ${count(cached)} cached, ` +
               `${count(usage.prompt_tokens - cached)} new`);
    parts.push(`${count(usage.completion_tokens)} out`);
  }
  if (turn.stored?.length) parts.push(`over ${turn.stored.join(", ")}`);
  if (timings?.prompt_n) parts.push(`prompt ${count(Math.round(timings.prompt_per_second))} tokens/s`);
  if (timings) parts.push(`answer ${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (usage?.sparse) parts.push(`${percent(usage.sparse.kept_share)} of the context read`);
  if (turn.finish === "length") parts.push("cut at its limit");
  if (turn.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function branches(turn, chat, actions) {
  const { i, n, all } = chat.branch(turn);
  if (n < 2) return [];
  const go = (to) => () => actions.choose(all[to]);
  const back = button("‹", "The branch before", go(i - 1)), on = button("›", "The next branch", go(i + 1));
  back.disabled = i === 0;
  on.disabled = i === n - 1;
  return [el("span.branches", {}, back, `${i + 1}/${n}`, on)];
}

// ---- Questions ----

function userTurn(turn, chat, actions) {
  const chips = turn.documents.map((d) => el("li", {}, `${d.name} · ${count(d.text.length)} characters`));
  return el("article.turn.user", { "aria-label": "Question" },
            ...(chips.length ? [el("ul.chips", {}, ...chips)] : []),
            el("div.body", {}, turn.text),
            el("div.actions", {}, ...branches(turn, chat, actions),
               button("Edit", "Change this question; the answer stays on its own branch", () => actions.edit(turn))));
}

export function editor(turn, onSend, onCancel) {
  const text = el("textarea", { value: turn.text, rows: 3, "aria-label": "Changed question" });
  const send = () => text.value.trim() && onSend(text.value.trim());
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") onCancel();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  return el("article.turn.user.editing", {}, text,
            el("div.actions", {}, button("Cancel", "", onCancel), button("Send", "", send)));
}

// ---- Answers ----

function difference(turn) {
  const parts = diff(turn.text, turn.dense.text);
  if (parts.every((p) => p.kind === "same"))
    return el("div.body", {}, el("p.same", {}, "The same, word for word."), turn.text);
  const names = { gone: "del", new: "ins", same: "span" };
  const titles = { gone: "Only in the first answer", new: "Only in the dense one", same: "" };
  return el("div.body.difference", {}, ...parts.map((p) => el(names[p.kind], { title: titles[p.kind] }, p.text)));
}

// Switches between the answer, the dense one and their difference.
function views(turn, actions) {
  const now = turn.view || "answer";
  const one = (view, label, title) => {
    const b = button(label, title, () => actions.view(turn, view));
    b.setAttribute("aria-pressed", now === view);
    return b;
  };
  return el("span.views", { role: "group", "aria-label": "Which answer" },
            one("answer", "Answer", "As it was given"),
            one("dense", "Dense", "The same question, reading everything"),
            one("difference", "Difference", "What reading everything changes"));
}

function answerBody(turn) {
  if (turn.view === "difference" && turn.dense) return difference(turn);
  const text = turn.view === "dense" && turn.dense ? turn.dense.text : turn.text;
  const body = el("div.body.markdown");
  render(body, text);
  return body;
}

function progressBar(p) {
  const both = el("div.progress", { role: "progressbar", "aria-label": "Prompt read" },
                  bar(p.cache / p.total, "i.cached"), bar((p.processed - p.cache) / p.total));
  return el("div.reads-prompt", {}, both, el("small", {}, `reading: ${count(p.processed)} of ${count(p.total)} tokens` +
    (p.cache ? `, ${count(p.cache)} cached` : "")));
}

function answerTurn(turn, chat, actions) {
  const node = el("article.turn.assistant", { "aria-label": "Answer" });
  const isBusy = turn.state === "asking";
  if (isBusy && !turn.text)
    node.append(turn.progress ? progressBar(turn.progress) : el("p.hint", {}, "waiting for a place …"));
  node.append(answerBody(turn));
  if (turn.asking) node.append(el("p.hint", {}, `Asking densely: ${turn.asking}`));
  if (turn.error) node.append(el("p.error", { role: "alert" }, turn.error));
  if (isBusy) return node;
  const shownNumbers = turn.view === "dense" && turn.dense ? numbers(turn.dense) : numbers(turn);
  node.append(el("div.numbers", {}, shownNumbers));
  const row = el("div.actions", {}, ...branches(turn, chat, actions));
  if (turn.reading) row.append(button("What was read", "The documents, with what this answer read", () => actions.read(turn)));
  if (turn.text) row.append(views(turn, actions),
                            button("Copy", "Copy the answer", () => navigator.clipboard.writeText(turn.text)));
  row.append(button("Again", "Another answer, on a branch of its own", () => actions.again(turn)));
  node.append(row);
  if (turn.unread) node.append(el("p.hint", {}, turn.unread));
  return node;
}

// ---- All ----

const nodeOf = (turn, chat, actions) => (turn.role === "user" ? userTurn : answerTurn)(turn, chat, actions);
const isAtEnd = () => $("talk").scrollHeight - $("talk").scrollTop - $("talk").clientHeight < 60;

export function draw(chat, actions) {
  const follow = isAtEnd(), list = chat.path();
  const nodes = list.map((turn) => Object.assign(nodeOf(turn, chat, actions), { turnId: turn.id }));
  $("talk").replaceChildren(...(nodes.length ? nodes : [welcome()]));
  if (follow) $("talk").scrollTop = $("talk").scrollHeight;
}

// Renders one turn again, so that the others stay unchanged while an answer is streamed.
export function redraw(turn, chat, actions) {
  const old = [...$("talk").children].find((n) => n.turnId === turn.id), follow = isAtEnd();
  if (!old) return;
  old.replaceWith(Object.assign(nodeOf(turn, chat, actions), { turnId: turn.id }));
  if (follow) $("talk").scrollTop = $("talk").scrollHeight;
}

export function swap(turn, node) {
  const old = [...$("talk").children].find((n) => n.turnId === turn.id);
  old?.replaceWith(node);
  node.querySelector("textarea")?.focus();
}

function welcome() {
  return el("div.welcome", {}, el("h2", {}, "Ask about a long document, and see what was read"),
            el("p", {}, "Drop a file of any kind anywhere on this page and ask about it. Beside the answer you find the " +
               "document with the passages marked that the answer read, and how the answer changes when " +
               "everything is read. This tab alone keeps your chat; the server keeps " +
               "what it computed of it in its cache, to answer the next question sooner."));
}
