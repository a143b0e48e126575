// store.js: the list of documents stored on the server, with adding and removing. Checked documents are placed before
// the conversation; only the check marks are local.
import { $, button, count, el } from "./dom.js";
import { formOf, get, remove, stream } from "./api.js";
import { system } from "./settings.js";

let listed = [];
let most = 0;       // maximum documents per prompt; 0: no store
let joined = null;  // the server's default method for joining documents
const checked = new Set();

export const chosen = () => listed.map((d) => d.name).filter((name) => checked.has(name));

// Request fields; several documents require a method that joins them.
export function fields(names, sparse) {
  if (!names.length) return {};
  const how = $("join").value;
  return { documents: names, ...(names.length > 1 && how !== joined ? { sparse: { ...sparse, context: how } } : {}) };
}

function check(name, isOn) {
  if (isOn) checked.add(name);
  else checked.delete(name);
  draw();
}

function row(d, say) {
  const isFull = checked.size >= most && !checked.has(d.name);
  const box = el("input", { type: "checkbox", checked: checked.has(d.name), disabled: isFull,
                            onchange: (event) => check(d.name, event.target.checked) });
  return el("li", {}, el("label", { title: isFull ? `A prompt has at most ${most} documents` : "" },
                         box, ` ${d.name} · ${count(d.tokens)} tokens`),
            button("×", `Remove ${d.name} from the server`, () => take(d, say)));
}

let tell = () => {};

function draw() {
  const n = chosen().length;
  $("store").hidden = !most;
  $("stored").replaceChildren(...listed.map((d) => row(d, tell)));
  $("store-title").textContent = n ? `Stored documents · ${n} of ${listed.length} chosen`
                                   : `Stored documents · ${listed.length}`;
  $("join-row").hidden = n < 2;
}

async function refresh() {
  listed = (await get("v1/documents")).data;
  for (const name of [...checked]) if (!listed.some((d) => d.name === name)) checked.delete(name);
  draw();
}

async function take(d, say) {
  try {
    await remove("v1/documents/" + encodeURIComponent(d.name));
    await refresh();
  } catch (e) {
    say(e.message);
  }
}

// Documents are computed after the system message that will precede them in prompts.
export async function add(file) {
  const asked = { stream: "true", ...(system() ? { system: system() } : {}) };
  await stream("v1/documents", formOf(file, asked), undefined, (data) => {
    const p = data.prompt_progress;
    if (p) tell(`${file.name}: ${count(p.processed)} of ${count(p.total)} tokens computed`);
    else if (checked.size < most) checked.add(data.name);
  });
  tell("");
  await refresh();
}

// `props`: of the server; `say` shows a message.
export async function setup(props, say) {
  tell = say;
  most = props.documents?.max || 0;
  joined = props.documents?.context ?? null;
  const names = props.documents?.methods || [];
  $("join").replaceChildren(...[...new Set([joined, ...names])].filter((name) => name).map((name) =>
    el("option", { value: name }, name === joined ? `${name} (server's)` : name)));
  if (most) await refresh();
  draw();
}
