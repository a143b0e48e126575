// The page: a chat over /v1/chat/completions, streamed. No library, no request to anywhere else.
// What is typed stays in this tab; the key and the settings are kept in the browser's storage.
"use strict";

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null; // the AbortController of the answer that is being given

for (const id of ["key", "temperature", "tokens"]) {
  $(id).value = localStorage.getItem("saccade." + id) || "";
  $(id).addEventListener("change", () => localStorage.setItem("saccade." + id, $(id).value));
}

function headers() {
  const h = { "Content-Type": "application/json" };
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
}

function show(role, text) {
  const talk = $("talk"), box = document.createElement("div");
  box.className = "message " + role;
  box.textContent = text;
  talk.append(box);
  talk.scrollTop = talk.scrollHeight;
  return box;
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return response.status + " " + response.statusText;
  }
}

// Calls `onData` with each event's JSON until the stream ends.
async function readEvents(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events)
      for (const line of event.split("\n"))
        if (line.startsWith("data: ") && line !== "data: [DONE]") onData(JSON.parse(line.slice(6)));
  }
}

function numbers(usage, timings) {
  const cached = usage?.prompt_tokens_details?.cached_tokens || 0;
  const parts = [];
  if (usage) parts.push(`${usage.prompt_tokens} tokens read (${cached} cached)`,
                        `${usage.completion_tokens} written`);
  if (timings) parts.push(`prompt ${timings.prompt_per_second.toFixed(0)} tokens/s`,
                          `answer ${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (usage?.sparse) parts.push(`${(100 * usage.sparse.kept_share).toFixed(1)} % of the context read`);
  return parts.join(" · ");
}

async function ask() {
  const body = { messages, stream: true, stream_options: { include_usage: true },
                 return_progress: true };
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("tokens").value !== "") body.max_tokens = Number($("tokens").value);
  const box = show("assistant", "");
  let text = "", usage = null, timings = null;
  running = new AbortController();
  $("send").textContent = "Stop";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error(await errorOf(response));
    await readEvents(response, (data) => {
      if (data.error) throw new Error(data.error.message);
      if (data.prompt_progress)
        $("status").textContent =
          `reading: ${data.prompt_progress.processed} of ${data.prompt_progress.total} tokens`;
      text += data.choices?.[0]?.delta?.content || "";
      usage = data.usage || usage;
      timings = data.timings || timings;
      box.textContent = text;
      $("talk").scrollTop = $("talk").scrollHeight;
    });
  } catch (e) {
    if (e.name !== "AbortError") show("error", e.message);
  }
  running = null;
  $("send").textContent = "Send";
  $("status").textContent = "";
  if (text) messages.push({ role: "assistant", content: text });
  else messages.pop();
  if (usage) {
    const line = document.createElement("div");
    line.className = "numbers";
    line.textContent = numbers(usage, timings);
    box.after(line);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  ask();
});

$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $("form").requestSubmit();
});

$("fresh").addEventListener("click", () => {
  if (running) running.abort();
  messages.length = 0;
  $("talk").replaceChildren();
  $("text").focus();
});

fetch("v1/models", { headers: headers() })
  .then((r) => (r.ok ? r.json() : Promise.reject()))
  .then((list) => { $("model").textContent = list.data[0].id; })
  .catch(() => { $("status").textContent = "The server asks for a key, or still loads its model."; });
