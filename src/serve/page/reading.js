// reading.js: the attention panel beside an answer: its documents with passages marked by their share of attention,
// for the whole answer or one token, and how much of dense attention's mass was read.
//
// The server counts characters in code points, so texts are sliced as arrays of code points.
import { $, bar, bytes, button, count, el, percent } from "./dom.js";
import { contentOf } from "./chat.js";

const TOP = 3;
let shown = null; // {turn, answer, marks, at, onClose}; at: index of a token, -1: the whole answer

export const shownTurn = () => shown?.turn;

export function close() {
  if (!shown) return;
  const { onClose } = shown;
  shown = null;
  $("reading").hidden = true;
  $("reading").replaceChildren();
  document.body.classList.remove("reads");
  onClose?.();
}

// ---- Numbers ----

function figure(value, label, title, share) {
  const box = el("div.figure", { title }, el("b", {}, value), el("span", {}, label));
  box.append(el("div.gauge", {}, bar(share)));
  return box;
}

function figures(answer) {
  const dense = answer.dense, list = [];
  list.push(figure(percent(answer.kept_share), "of the tokens read",
                   "Tokens whose keys and values attention read, of those before each new token",
                   answer.kept_share));
  if (dense) list.push(figure(percent(dense.mass_mean, 2), "of the mass kept",
                              `Share of dense attention's softmax mass on what was read; least of a token: ` +
                              percent(dense.mass_min, 2), dense.mass_mean));
  if (answer.bytes_dense)
    list.push(figure(bytes(answer.bytes_read), `of ${bytes(answer.bytes_dense)} read`,
                     "Bytes of keys and values that attention read for the answer's tokens",
                     answer.bytes_read / answer.bytes_dense));
  return el("div.figures", {}, ...list);
}

// ---- The text with its marks ----

// Renders `part` of a message, with its passages as elements.
function markedPart(part, passages, marks) {
  const letters = [...part.text], body = el("div.text");
  let at = part.begin;
  const plain = (end) => {
    if (end > at) body.append(letters.slice(at - part.begin, end - part.begin).join(""));
    at = Math.max(at, end);
  };
  for (const [i, p] of passages) {
    const begin = Math.max(p.begin, at), end = Math.min(p.end, part.end);
    if (end <= begin || p.begin >= part.end) continue;
    plain(begin);
    const mark = el("mark", {}, letters.slice(begin - part.begin, end - part.begin).join(""));
    marks.push({ i, mark });
    body.append(mark);
    at = end;
  }
  plain(part.end);
  const title = part.name ? el("h4", {}, part.name) : el("h4.quiet", {}, "Question");
  return el("section.part", {}, title, body);
}

function markedTurn(turn, index, passages, marks) {
  const own = [...passages.entries()].filter(([, p]) => p.message === index).sort((a, b) => a[1].begin - b[1].begin);
  return contentOf(turn).parts.map((part) => {
    const section = markedPart(part, own, marks);
    if (turn.role === "assistant") section.firstChild.textContent = "Earlier answer";
    return section;
  });
}

// A stored document: the server returns its text as consecutive passages.
function markedStored(name, passages, marks) {
  const body = el("div.text");
  let before = null;
  for (const [i, p] of passages.entries()) {
    if (p.document !== name) continue;
    if (before && p.begin > before.end) body.append(p.page === before.page ? " " : "\n\n");
    const mark = el("mark", {}, p.text);
    marks.push({ i, mark });
    body.append(mark);
    before = p;
  }
  return el("section.part", {}, el("h4", {}, name), body);
}

// Each passage's share, for the answer or for one token.
function sharesNow() {
  const { answer, at } = shown, shares = new Array(answer.passages.length).fill(0);
  if (at < 0) answer.passages.forEach((p, i) => { shares[i] = p.share; });
  else for (const r of answer.generated[at].read) shares[r.passage] = r.share;
  return shares;
}

// With documents, the question is left out, because every answer reads it and the last tokens. The remaining shares
// are normalised.
function countedShares() {
  const shares = sharesNow().map((share, i) => (shown.counts[i] ? share : 0));
  const sum = shares.reduce((a, b) => a + b, 0);
  return sum > 0 ? shares.map((share) => share / sum) : shares;
}

function paint() {
  const shares = countedShares(), most = Math.max(...shares, 1e-9);
  for (const { i, mark } of shown.marks) {
    // The square root keeps weak marks visible beside strong ones.
    mark.style.setProperty("--strength", Math.sqrt(shares[i] / most).toFixed(3));
    mark.title = shown.counts[i] ? `${percent(shares[i])} of what was read` : "Read, but not counted";
    mark.classList.toggle("none", shares[i] < 1e-4);
  }
  paintMap(shares, most);
  paintTop(shares);
  for (const [i, token] of shown.tokens.entries()) token.setAttribute("aria-pressed", i === shown.at);
  $("reading-whole").setAttribute("aria-pressed", shown.at < 0);
  const token = shown.answer.generated?.[shown.at];
  $("reading-of").textContent = !token ? "The whole answer"
    : `Token ${shown.at + 1}: ${percent(token.mass, 2)} of the mass kept`;
}

// The passage's position in the prompt, from left to right.
function paintMap(shares, most) {
  const canvas = $("reading-map"), ratio = globalThis.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const g = canvas.getContext("2d"), n = shown.answer.prompt_tokens || 1;
  g.fillStyle = getComputedStyle(canvas).color;
  shown.answer.passages.forEach((p, i) => {
    g.globalAlpha = Math.sqrt(shares[i] / most);
    const x = (p.token / n) * canvas.width, width = ((p.token_end - p.token) / n) * canvas.width;
    g.fillRect(x, 0, Math.max(width, 1.5 * ratio), canvas.height);
  });
}

function goTo(i) {
  const found = shown.marks.find((m) => m.i === i);
  if (!found) return;
  found.mark.scrollIntoView({ block: "center" });
  found.mark.classList.remove("flash");
  void found.mark.offsetWidth; // restarts the animation
  found.mark.classList.add("flash");
}

function paintTop(shares) {
  const order = [...shares.keys()].filter((i) => shares[i] >= 0.01).sort((a, b) => shares[b] - shares[a]);
  const items = order.slice(0, TOP).map((i) => el("li", {}, button(
    `${percent(shares[i], 0)}  ${shown.answer.passages[i].text.trim().replace(/\s+/g, " ").slice(0, 90)}`,
    "Go to this passage", () => goTo(i))));
  $("reading-top").replaceChildren(...items);
}

// Passages that count: those mostly inside a document, or all if there are no documents.
function countedPassages(turns, lead, passages) {
  const documents = turns.map((t) => contentOf(t).parts.filter((part) => part.name));
  const isStored = passages.some((p) => p.document);
  if (!isStored && !documents.some((parts) => parts.length)) return passages.map(() => true);
  return passages.map((p) => p.document || (documents[p.message - lead] || []).some(
    (part) => Math.min(p.end, part.end) - Math.max(p.begin, part.begin) > (p.end - p.begin) / 2));
}

function choose(at) {
  shown.at = Math.max(-1, Math.min(at, shown.tokens.length - 1));
  paint();
}

function tokens(answer) {
  return (answer.generated || []).map((t, i) => {
    const token = button(t.text, `${percent(t.mass, 2)} of the mass kept`, () => choose(shown.at === i ? -1 : i));
    token.className = "token";
    return token;
  });
}

// ---- Exported functions ----

// `turns`: the turns before the answer; `lead`: number of messages in the request before them.
export function open(turn, turns, lead, onClose) {
  const answer = turn.reading.answers[0], marks = [];
  shown = { turn, answer, marks, at: -1, tokens: tokens(answer), onClose,
            counts: countedPassages(turns, lead, answer.passages) };
  const stored = [...new Set(answer.passages.map((p) => p.document))].filter((name) => name);
  const parts = stored.map((name) => markedStored(name, answer.passages, marks));
  parts.push(...turns.flatMap((t, i) => markedTurn(t, i + lead, answer.passages, marks)));
  const shut = button("Close", "Close (Esc)", close);
  $("reading").replaceChildren(
    el("div.head", {}, el("h2", {}, "What was read"), el("span.method", {}, answer.decode), shut),
    figures(answer),
    el("div.answer-tokens", { role: "group", "aria-label": "Tokens of the answer" },
       ...shown.tokens.flatMap((token, i) => (answer.generated[i].text.includes("\n") ? [token, el("br")] : [token]))),
    el("div.row", {},
       el("button", { id: "reading-whole", type: "button", onclick: () => choose(-1) }, "Whole answer"),
       el("span", { id: "reading-of", role: "status" })),
    el("canvas", { id: "reading-map", title: "Where in the prompt: its beginning is left",
                   onclick: (e) => goToPlace(e) }),
    el("ol", { id: "reading-top" }),
    el("div.parts", {}, ...parts, el("p.hint", {}, `Marked are passages of ${count(answer.prompt_tokens)} prompt tokens, the stronger the more ` +
       "of the answer's attention lay on them. Left out are the prompt's first tokens, on which attention rests when " +
       "it looks for nothing, and beside documents the question.")));
  $("reading").hidden = false;
  document.body.classList.add("reads");
  paint();
  const shares = countedShares();
  goTo(shares.indexOf(Math.max(...shares)));
  $("reading").scrollTop = 0;
}

function goToPlace(event) {
  const share = event.offsetX / event.target.clientWidth, at = share * shown.answer.prompt_tokens;
  const i = shown.answer.passages.findIndex((p) => p.token <= at && at < p.token_end);
  if (i >= 0) goTo(i);
}

// Arrow keys select tokens; true: the key was handled.
export function onKey(event) {
  if (!shown || !shown.tokens.length) return false;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return false;
  choose(shown.at + step);
  shown.tokens[shown.at]?.scrollIntoView({ block: "nearest" });
  return true;
}

export function repaint() {
  if (shown) paint();
}
