// chat.js: a conversation as a tree: an edited question or a second answer is a branch beside the first,
// and nothing is lost. No element of the page is touched here.
//
// A turn: {id, parent, role, text, documents: [{name, text}]} and, of an answer, what the server told:
// fields, system and stored (what it was asked with), usage, timings, finish, error, answerId, reading, dense.
// `parent` 0 is the beginning.

const FORMAT = "saccade-chat-1";

export class Chat {
  constructor() {
    this.turns = new Map();
    this.chosen = new Map(); // of each parent: the child that is shown
    this.next = 1;
  }

  add(parent, turn) {
    const added = { documents: [], ...turn, id: this.next++, parent };
    this.turns.set(added.id, added);
    this.chosen.set(parent, added.id);
    return added;
  }

  remove(turn) {
    this.turns.delete(turn.id);
    const left = this.children(turn.parent);
    if (left.length) this.chosen.set(turn.parent, left.at(-1).id);
    else this.chosen.delete(turn.parent);
  }

  children(parent) {
    return [...this.turns.values()].filter((t) => t.parent === parent);
  }

  // The turn's place among those beside it.
  branch(turn) {
    const all = this.children(turn.parent);
    return { i: all.indexOf(turn), n: all.length, all };
  }

  choose(turn) {
    this.chosen.set(turn.parent, turn.id);
  }

  // The turns that are shown, in their order.
  path() {
    const list = [];
    for (let id = this.chosen.get(0); id; id = this.chosen.get(id)) list.push(this.turns.get(id));
    return list;
  }

  // The turns before and with this one.
  until(turn) {
    const list = [];
    for (let t = turn; t; t = this.turns.get(t.parent)) list.unshift(t);
    return list;
  }

  export() {
    return { format: FORMAT, turns: [...this.turns.values()], chosen: [...this.chosen] };
  }

  // Throws what is wrong with a file that is not one of ours.
  static import(data) {
    const chat = new Chat();
    if (data?.format !== FORMAT || !Array.isArray(data.turns) || !Array.isArray(data.chosen))
      throw new Error("this file is not a chat that was exported here");
    for (const t of data.turns) {
      const known = t.parent === 0 || chat.turns.has(t.parent);
      if (!Number.isInteger(t.id) || t.id < 1 || !known || !["user", "assistant"].includes(t.role) ||
          typeof t.text !== "string" || !Array.isArray(t.documents) ||
          !t.documents.every((d) => typeof d.name === "string" && typeof d.text === "string"))
        throw new Error("a turn of this chat is broken");
      delete t.state;
      if (!Array.isArray(t.reading?.answers?.[0]?.passages)) delete t.reading;
      if (t.role === "assistant" && !Array.isArray(t.stored)) t.stored = [];
      chat.turns.set(t.id, t);
      chat.next = Math.max(chat.next, t.id + 1);
    }
    for (const [parent, child] of data.chosen)
      if (chat.turns.get(child)?.parent === parent) chat.chosen.set(parent, child);
    return chat;
  }
}

// What the server gets of a turn: its documents, then its text. `parts` says where each begins and ends, in
// characters as the server counts them (code points).
export function contentOf(turn) {
  let content = "", at = 0;
  const parts = [];
  const put = (name, text, isShown) => {
    const n = [...text].length;
    if (isShown) parts.push({ name, text, begin: at, end: at + n });
    content += text;
    at += n;
  };
  for (const d of turn.documents) {
    put("", `Document ${d.name}:\n\n`, false);
    put(d.name, d.text, true);
    put("", "\n\n", false);
  }
  put("", turn.text, true);
  return { content, parts };
}

export function messagesOf(turns, system) {
  const list = turns.map((t) => ({ role: t.role, content: contentOf(t).content }));
  return system ? [{ role: "system", content: system }, ...list] : list;
}
