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

// The tabs of one server tell each other its token, so that a view opened in a new tab needs no address.
const tabs = new BroadcastChannel(KEY);
tabs.addEventListener("message", ({ data }) => data === "asked" && token && tabs.postMessage({ token }));

/** Ask the open tabs for the token; return whether one answered within a quarter of a second. */
export function takeTokenFromTabs() {
  return new Promise((resolve) => {
    const finish = (found) => {
      tabs.removeEventListener("message", take);
      resolve(found);
    };
    const take = ({ data }) => {
      if (!data.token) return;
      setToken(data.token);
      finish(true);
    };
    tabs.addEventListener("message", take);
    setTimeout(finish, 250, false);
    tabs.postMessage("asked");
  });
}

/** The server refused the token: it was started again, with another one. */
export class BadToken extends Error {}

async function request(method, name, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) query.append(key, each);
  }
  const response = await fetch(`/api/${name}?${query}`, {
    method,
    headers: { Authorization: `Bearer ${token}` },
  });
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
