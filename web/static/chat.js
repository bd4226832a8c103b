// The chat page: one conversation, kept in this tab only. All text of the model and of people is inserted as text.
"use strict";

/** Events of a stream of bytes, however it is cut: lines end in LF, CR or CRLF, comments begin with a colon. */
class EventParser {
  constructor() {
    this.decoder = new TextDecoder();
    this.line = "";
    this.data = [];
    this.afterReturn = false;
  }

  /** The data of the events that these bytes complete. */
  push(bytes) {
    const events = [];
    for (const c of this.decoder.decode(bytes, { stream: true })) {
      if (c === "\n" && this.afterReturn) {
        this.afterReturn = false;
        continue;
      }
      this.afterReturn = c === "\r";
      if (c !== "\n" && c !== "\r") {
        this.line += c;
        continue;
      }
      if (this.line === "") {
        if (this.data.length) events.push(this.data.join("\n"));
        this.data = [];
      } else if (this.line.startsWith("data:")) {
        this.data.push(this.line.slice(5).replace(/^ /, ""));
      }
      this.line = "";
    }
    return events;
  }
}

/** Streams an answer: calls `show` with each piece of text. Throws what the server says is wrong. */
async function complete(model, messages, key, signal, show) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const body = JSON.stringify({ model, messages, stream: true });
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal });
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Error(answer?.error?.message ?? `the server answered ${response.status}`);
  }
  const parser = new EventParser();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer was cut off");
    for (const data of parser.push(value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const text = chunk.choices?.[0]?.delta?.content;
      if (text) show(text);
    }
  }
}

function start() {
  const [list, error, form, input, send, stop] = ["messages", "error", "form", "input", "send", "stop"].map((id) =>
    document.getElementById(id),
  );
  if (!form) return;
  const key = document.getElementById("key");
  const model = document.body.dataset.model;
  let messages = [];
  let controller = null;

  function add(role, text) {
    const element = document.createElement("div");
    element.className = `message ${role}`;
    element.textContent = text;
    list.append(element);
    element.scrollIntoView({ block: "end" });
    return element;
  }

  function complain(text) {
    error.textContent = text;
    error.hidden = !text;
  }

  async function say(text) {
    complain("");
    messages.push({ role: "user", content: text });
    add("user", text);
    const conversation = messages;
    const element = add("assistant", "");
    const own = (controller = new AbortController());
    send.hidden = true;
    stop.hidden = false;
    let answer = "";
    try {
      await complete(model, conversation, key?.value, own.signal, (piece) => {
        answer += piece;
        element.append(piece);
        element.scrollIntoView({ block: "end" });
      });
    } catch (e) {
      if (!own.signal.aborted) complain(e.message);
    }
    if (answer) conversation.push({ role: "assistant", content: answer });
    else {
      conversation.pop();
      element.remove();
      if (!own.signal.aborted && !input.value) input.value = text;
    }
    if (controller === own) {
      controller = null;
      send.hidden = false;
      stop.hidden = true;
    }
    input.focus();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text || controller) return;
    input.value = "";
    say(text);
  });
  input.addEventListener("keydown", (event) => {
    // The Enter that confirms a conversion (Chinese, Japanese) is not meant for us; 229 is how older browsers say so.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => controller?.abort());
  document.getElementById("new").addEventListener("click", () => {
    controller?.abort();
    messages = [];
    list.replaceChildren();
    complain("");
    input.focus();
  });
}

if (typeof document !== "undefined") start();
if (typeof module !== "undefined") module.exports = { EventParser };
