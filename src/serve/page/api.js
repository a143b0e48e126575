// api.js: the server's public API, as any other client uses it.

let key = "";

export function setKey(value) {
  key = value;
}

// The browser sets the content type of forms itself.
function headers(body) {
  const h = body instanceof FormData ? {} : { "Content-Type": "application/json" };
  if (key) h.Authorization = "Bearer " + key;
  return h;
}

async function failure(response) {
  let text = response.status + " " + response.statusText;
  try {
    text = (await response.json()).error.message;
  } catch {
    // An HTML page comes from a proxy and says no more than its status.
  }
  return Object.assign(new Error(text), { status: response.status });
}

export async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await failure(response);
  return response.json();
}

export async function post(path, body, signal) {
  const isForm = body instanceof FormData;
  const response = await fetch(path, {
    method: "POST", headers: headers(body), body: isForm ? body : JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  return response;
}

export async function remove(path) {
  const response = await fetch(path, { method: "DELETE", headers: headers() });
  if (!response.ok) throw await failure(response);
}

// Sends a file and further fields as a form.
export function formOf(file, fields = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file);
  return form;
}

// Calls `onEvent` with each event of a streamed answer until the stream ends.
export async function stream(path, body, signal, onEvent) {
  const response = await post(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const line of events.flatMap((event) => event.split("\n"))) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new Error(data.error.message);
      onEvent(data);
    }
  }
}
