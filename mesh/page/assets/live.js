// What the page shows, as it changes: a stream that is read with a token in a header, as no EventSource can, and opened
// anew when it ends or falls silent.

const SILENT_MS = 15000; // something is said every five seconds
const AGAIN_MIN_MS = 500;
const AGAIN_MAX_MS = 10000;
const EVENT_MAX = 64 * 1024 * 1024;
const KEPT = "nightside-token";

export class Session {
  constructor() {
    this.token = null;
    try { this.token = sessionStorage.getItem(KEPT); } catch { /* a browser that keeps nothing */ }
  }

  keep(token) {
    this.token = token;
    try {
      if (token === null) sessionStorage.removeItem(KEPT);
      else sessionStorage.setItem(KEPT, token);
    } catch { /* it is asked for again next time */ }
  }

  get headers() {
    return this.token === null ? {} : { authorization: `Bearer ${this.token}` };
  }

  // What came of it: the status, and the answer or why there is none.
  async ask(path, body) {
    const options = { headers: this.headers, cache: "no-store" };
    if (body !== undefined) {
      options.method = "POST";
      options.body = JSON.stringify(body);
      options.headers = { ...options.headers, "content-type": "application/json" };
    }
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      return { status: 0, fault: "it cannot be reached", answer: null };
    }
    let answer = null;
    try { answer = await response.json(); } catch { /* told by its status */ }
    return { status: response.status, fault: response.ok ? "" : faultOf(response.status, answer), answer };
  }
}

export function faultOf(status, answer) {
  const said = typeof answer?.error === "string" ? answer.error : answer?.error?.message;
  if (status === 401) return said || "the token is not the one";
  if (status === 403) return said || "this token may not do that";
  return said || `it answered with HTTP ${status}`;
}

// `on` has sections(changed), state(word, why) and refused(status, why), which gives whether to try again.
export async function watch(session, on) {
  let wait = AGAIN_MIN_MS;
  for (;;) {
    const halt = new AbortController();
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => halt.abort(), SILENT_MS);
    };
    try {
      heard();
      const options = { headers: session.headers, cache: "no-store", signal: halt.signal };
      const response = await fetch("admin/events", options);
      if (!response.ok) {
        let answer = null;
        try { answer = await response.json(); } catch { /* told by its status */ }
        clearTimeout(silence);
        await on.refused(response.status, faultOf(response.status, answer));
      } else {
        on.state("live", "");
        const opened = Date.now();
        await read(response.body, heard, (changed) => { wait = AGAIN_MIN_MS; on.sections(changed); });
        if (Date.now() - opened < AGAIN_MAX_MS) on.state("again", "the stream ended");
        else wait = 0; // no stream is for ever: the next one asks anew whether we may look
      }
    } catch {
      on.state("again", "it cannot be reached");
    } finally {
      clearTimeout(silence);
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(Math.max(wait * 2, AGAIN_MIN_MS), AGAIN_MAX_MS);
  }
}

async function read(body, heard, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    rest += value;
    if (rest.length > EVENT_MAX) throw new Error("an event without an end");
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const data = dataOf(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (data) take(JSON.parse(data));
    }
  }
}

function dataOf(event) {
  return event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
}
