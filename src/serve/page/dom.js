// dom.js: creates elements. Text is always set as text; only markdown.js creates elements from markup.

export const $ = (id) => document.getElementById(id);

// el("button.small", {title: "..."}, "text", otherElement)
export function el(what, props = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("aria-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

export function button(text, title, onclick) {
  return el("button", { type: "button", title, onclick }, text);
}

export const count = (n) => Number(n).toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

// A segment of a bar whose width is `share`.
export function bar(share, what = "i") {
  const part = el(what);
  part.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return part;
}

export function bytes(n) {
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} kB`;
  return n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(2)} GB`;
}
