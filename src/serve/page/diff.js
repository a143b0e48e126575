// diff.js: compares two answers by words: [{kind: "same" | "gone" | "new", text}].

const WORDS_MOST = 3000; // memory is quadratic

function words(text) {
  return text.match(/\s+|[^\s]+/g) || [];
}

// lengths[i][j]: length of the longest common subsequence of a[i..] and b[j..].
function commonLengths(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  return table;
}

export function diff(before, after) {
  const a = words(before).slice(0, WORDS_MOST), b = words(after).slice(0, WORDS_MOST), list = [];
  const table = commonLengths(a, b);
  const put = (kind, text) => {
    if (list.at(-1)?.kind === kind) list.at(-1).text += text;
    else list.push({ kind, text });
  };
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) put("same", a[i++] && b[j++]);
    else if (j === b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) put("gone", a[i++]);
    else put("new", b[j++]);
  }
  return list;
}
