// Talking to the server: the token of this start, requests, and WebSockets.

const KEY = "parcade-token";
let token = sessionStorage.getItem(KEY) ?? "";

/** Take the token out of the address, where it would end up in screenshots and bookmarks; return whether it had one. */
export function takeTokenFromAddress() {
  const match = location.hash.match(/^#token=([\w-]+)$/);
  if (!match) return false;
  setToken(match[1]);
  history.replaceState(null, "", `${location.pathname}#/`);
  return true;
}

/** Keep a token, given alone or inside the address that the server printed. */
export function setToken(text) {
  token = (text.match(/token=([\w-]+)/) ?? [null, text.trim()])[1];
  sessionStorage.setItem(KEY, token);
}

export const hasToken = () => token !== "";

/**
 * Join the open tabs of this server, which tell each other its token: a view in a new tab needs no address.
 * Resolves at once with a token of its own, and otherwise with the first answer, or after a quarter of a second.
 */
export async function joinTabs() {
  const tabs = new BroadcastChannel(KEY);
  await new Promise((resolve) => {
    tabs.onmessage = ({ data }) => {
      if (data === "asked") {
        if (token) tabs.postMessage({ token });
        return;
      }
      if (!token) setToken(data.token);
      resolve();
    };
    if (token) {
      resolve();
    } else {
      tabs.postMessage("asked");
      setTimeout(resolve, 250);
    }
  });
}

/** The server refused the token: it was started again, with another one. */
export class BadToken extends Error {
  constructor() { super("the server was started again, with another token"); }
}

async function request(method, name, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) query.append(key, each);
  }
  const response = await fetch(`/api/${name}?${query}`, {
    method,
    headers: { Authorization: `Bearer ${token}` },
  }).catch(() => { throw new Error("the server does not answer; is parcade still running?"); });
  if (response.status === 401) throw new BadToken();
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error ?? `the server answers ${response.status}`);
  }
  return response;
}

/** Read data: `get("curves", {run: ["a", "b"], metric: "score_mean"})`. */
export const get = async (name, parameters = {}) => (await request("GET", name, parameters)).json();
export const getText = async (name, parameters = {}) => (await request("GET", name, parameters)).text();
/** Ask for an action. */
export const post = async (name, parameters = {}) => (await request("POST", name, parameters)).json();

export function openSocket(name, parameters = {}) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(
    `${scheme}://${location.host}/ws/${name}?${new URLSearchParams(parameters)}`, ["parcade", token],
  );
  socket.binaryType = "arraybuffer";
  return socket;
}
