// chat.js: a conversation as a tree: edited questions and regenerated answers become sibling branches, so that
// nothing is lost. This file does not touch the DOM.
//
// A turn: {id, parent, role, text, documents: [{name, text}]}. Answers also have the request's settings (fields,
// system, stored) and the server's response (usage, timings, finish, error, answerId, reading, dense). `parent` 0 is
// the root.

const FORMAT = "saccade-chat-1";

export class Chat {
  constructor() {
    this.turns = new Map();
    this.chosen = new Map(); // by parent: the child that is shown
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

  // The turn's index among its siblings.
  branch(turn) {
    const all = this.children(turn.parent);
    return { i: all.indexOf(turn), n: all.length, all };
  }

  choose(turn) {
    this.chosen.set(turn.parent, turn.id);
  }

  // The visible turns, in order.
  path() {
    const list = [];
    for (let id = this.chosen.get(0); id; id = this.chosen.get(id)) list.push(this.turns.get(id));
    return list;
  }

  // The turns up to and including this one.
  until(turn) {
    const list = [];
    for (let t = turn; t; t = this.turns.get(t.parent)) list.unshift(t);
    return list;
  }

  export() {
    return { format: FORMAT, turns: [...this.turns.values()], chosen: [...this.chosen] };
  }

  // Throws an error that describes what is wrong with the file.
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

// The text sent for a turn: its documents, then its text. `parts` are their ranges in code points, as the server
// counts characters.
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
