// markdown.js: renders a model's Markdown. marked converts it to HTML, with tags in the text escaped; DOMPurify then
// allows a short list of harmless tags and nothing that loads a resource: no images, no styles.

const allowed = {
  ALLOWED_TAGS: ["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a",
                 "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

globalThis.marked.use({
  gfm: true,
  breaks: true,
  renderer: { html: (text) => text.replace(/[&<>"]/g, (c) => escaped[c]) },
});

export function render(into, text) {
  const html = globalThis.marked.parse(text);
  const fragment = globalThis.DOMPurify.sanitize(html, allowed);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copy";
    copy.textContent = "Copy";
    copy.onclick = () => navigator.clipboard.writeText(pre.querySelector("code").textContent);
    pre.append(copy);
  }
  into.replaceChildren(fragment);
}
