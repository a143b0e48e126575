"use strict";
/* Two buttons under each figure: the drawing as an SVG file of its own, or as a picture. What the
 * page's style sheet says of it is written into the file, and what was measured, with what, below. */

const STYLE = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin",
               "opacity", "font-size", "font-weight", "font-family", "text-anchor"];
const LINE = 14, SMALL = 10, PIXELS = 3;

/* "model: Qwen2.5 ...", cut into lines of about `most` letters. */
function captionLines(most) {
  const words = [];
  for (const dt of document.querySelectorAll("main > dl > dt"))
    words.push(...`${dt.textContent}: ${dt.nextElementSibling.textContent};`.split(" "));
  const lines = [""];
  for (const word of words) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length >= most) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines.filter(line => line);
}

function addText(svg, text, y, like) {
  const node = document.createElementNS(svg.namespaceURI, "text");
  node.setAttribute("x", 4);
  node.setAttribute("y", y);
  node.setAttribute("font-size", SMALL);
  node.setAttribute("font-family", like.fontFamily);
  node.setAttribute("fill", like.color);
  node.textContent = text;
  svg.append(node);
}

/* A copy that needs no style sheet, with a ground, a heading and a caption. */
function standalone(svg) {
  const copy = svg.cloneNode(true), page = getComputedStyle(document.body);
  const from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLE) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  const [, , w, h] = svg.getAttribute("viewBox").split(" ").map(Number);
  const heading = svg.closest("section").querySelector("h2").textContent;
  const panel = svg.closest("figure").querySelector("figcaption");
  const lines = captionLines(w / (SMALL * 0.62));
  const high = h + 2 * LINE + lines.length * LINE;
  copy.setAttribute("viewBox", `0 ${-LINE - 6} ${w} ${high + 6}`);
  copy.setAttribute("width", w);
  copy.setAttribute("height", high + 6);
  const ground = document.createElementNS(copy.namespaceURI, "rect");
  ground.setAttribute("y", -LINE - 6);
  ground.setAttribute("width", w);
  ground.setAttribute("height", high + 6);
  ground.setAttribute("fill", getComputedStyle(document.documentElement).backgroundColor);
  copy.insertBefore(ground, copy.querySelector("desc").nextSibling);
  addText(copy, panel ? `${heading}: ${panel.textContent}` : heading, -4, page);
  lines.forEach((line, i) => addText(copy, line, h + (i + 1) * LINE, page));
  return copy;
}

function hand(blob, name) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(blob);
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

function save(svg, kind) {
  const copy = standalone(svg), name = svg.querySelector("title").id.replace(/-t$/, "");
  const text = new XMLSerializer().serializeToString(copy);
  const blob = new Blob([text], {type: "image/svg+xml"});
  if (kind === "SVG") return hand(blob, `${name}.svg`);
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = PIXELS * copy.getAttribute("width");
    canvas.height = PIXELS * copy.getAttribute("height");
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(png => hand(png, `${name}.png`), "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

for (const svg of document.querySelectorAll("figure > svg")) {
  const bar = document.createElement("p");
  bar.className = "save";
  for (const kind of ["SVG", "PNG"]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `Save as ${kind}`;
    button.addEventListener("click", () => save(svg, kind));
    bar.append(button);
  }
  svg.after(bar);
}
