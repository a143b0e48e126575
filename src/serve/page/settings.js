// settings.js: request parameters and the API key. They are kept in the browser's local storage; chats and documents
// are not.
import { $, el } from "./dom.js";

// field of the request, label, attributes of its input
const numbers = [
  ["temperature", "Temperature", { min: 0, max: 5, step: 0.05 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top k", { min: 0, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["repeat_penalty", "Repeat penalty", { min: 0.1, step: 0.05 }],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { min: 0, step: 1 }],
];
const sparse = [
  ["mass", "Mass to keep", { min: 0, max: 1, step: 0.01 }],
  ["budget", "Budget in tokens", { min: 1, step: 1 }],
  ["min_ctx", "Read sparsely from", { min: 0, step: 1 }],
];

const stored = (name) => localStorage.getItem("saccade." + name) || "";

function keep(input, name) {
  input.value = stored(name);
  input.addEventListener("change", () => localStorage.setItem("saccade." + name, input.value));
  return input;
}

function field(id, label, input) {
  input.id = "set-" + id;
  $("fields").append(el("label", {}, label, keep(input, id)));
}

export function setup(onKey) {
  for (const [name, label, attributes] of [...numbers, ...sparse])
    field(name, label, el("input", { type: "number", placeholder: "server's", ...attributes }));
  for (const [name, label] of [["decode", "Decode method"], ["prefill", "Prefill method"]])
    field(name, label, el("select", {}, el("option", { value: "" }, "server's")));
  field("key", "API key", el("input", { type: "password", autocomplete: "off" }));
  $("set-key").addEventListener("change", () => onKey($("set-key").value));
  keep($("system"), "system");
  $("watch").checked = stored("watch") !== "no";
  $("watch").addEventListener("change",
    () => localStorage.setItem("saccade.watch", $("watch").checked ? "yes" : "no"));
  onKey(stored("key"));
}

// Shows the server's defaults and its methods.
export function showServer(props) {
  const own = props.default_generation_settings?.params || {};
  for (const [name] of numbers)
    if (name in own && name !== "max_tokens") $("set-" + name).placeholder = Number(own[name].toPrecision(4));
  $("set-min_ctx").placeholder = props.sparse?.min_ctx ?? "";
  for (const kind of ["decode", "prefill"]) {
    const names = props.sparse?.[kind] || [];
    const options = names.map((name, i) => el("option", { value: i ? name : "" }, name + (i ? "" : " (server's)")));
    $("set-" + kind).replaceChildren(...options);
    $("set-" + kind).value = names.includes(stored(kind)) ? stored(kind) : "";
  }
}

export const system = () => $("system").value.trim();
export const isWatched = () => $("watch").checked;

// The request fields that the user has set, and always a seed, so that an answer can be repeated.
export function fields() {
  const body = { seed: Math.floor(Math.random() * 2 ** 31) };
  const set = (to, list) => {
    for (const [name] of list) if ($("set-" + name).value !== "") to[name] = Number($("set-" + name).value);
  };
  const asked = {};
  set(body, numbers);
  set(asked, sparse);
  for (const kind of ["decode", "prefill"]) if ($("set-" + kind).value) asked[kind] = $("set-" + kind).value;
  if (Object.keys(asked).length) body.sparse = asked;
  return body;
}
