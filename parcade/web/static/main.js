// The page's frame: token, theme, live connection, and which view the address names.

import { BadToken, get, hasToken, joinTabs, openSocket, setToken, takeTokenFromAddress } from "./api.js";
import { el, labelled, notice } from "./dom.js";
import { RacePage } from "./race_page.js";
import { RunPage } from "./run_page.js";
import { RunsPage } from "./runs_page.js";
import { Store } from "./store.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const store = new Store();

const TITLE = document.title;
const isRace = location.pathname === "/race";
/** Views by the first part of the address, `#/NAME/...`. The page is that of `parcade dashboard`, or of `parcade race`. */
const VIEWS = {
  "": () => (isRace ? new RacePage(store) : new RunsPage(store)),
  run: (name) => new RunPage(store, name),
};

/** Return a part of the address as text; one that somebody mistyped as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

let view = null;
let shown = "";

function show() {
  const [name, argument, rest] = location.hash.replace(/^#\//, "").split("/");
  if (!hasToken()) return askForToken();
  const key = `${name}/${argument ?? ""}`;
  if (!view || key !== shown) {
    view?.close();
    shown = key;
    // A race sets its own; screen readers and the browser's tabs name views by their titles.
    document.title = VIEWS[name] && argument ? `${decoded(argument)} – ${TITLE}` : TITLE;
    view = (VIEWS[name] ?? VIEWS[""])(decoded(argument ?? ""));
    main.replaceChildren(view.element);
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  view.open?.(rest ?? "");
}

function askForToken(why = "This page needs the token of the running server.") {
  view?.close();
  view = null;
  const field = el("input", { type: "password", autocomplete: "off", required: true, size: 40 });
  const submit = (event) => {
    event.preventDefault();
    setToken(field.value);
    start();
  };
  main.replaceChildren(el("form", { class: "card narrow", onsubmit: submit },
    el("h1", {}, "Open the dashboard"),
    el("p", {}, `${why} Paste the address that parcade dashboard printed, or the token in it.`),
    labelled("Address or token", field), el("button", { type: "submit" }, "Open")));
}

let delay = 500;

function connect() {
  const socket = openSocket("live");
  socket.onmessage = (event) => {  // the first comes at once, and not where the server refuses the page
    delay = 500;
    setLink("live", "live");
    store.take(JSON.parse(event.data));
  };
  socket.onclose = async (event) => {
    setLink("lost", event.reason || "connection lost");
    setTimeout(start, delay);
    delay = Math.min(delay * 2, 10000);
  };
}

function setLink(state, text) {
  link.dataset.state = state;
  link.textContent = text;
}

async function start() {
  if (!hasToken()) return askForToken();
  let found;
  try {
    found = await get("runs");
  } catch (error) {
    if (error instanceof BadToken) return askForToken("The token is not of this start of the server.");
    setLink("lost", "no connection");
    setTimeout(start, delay);
    delay = Math.min(delay * 2, 10000);
    return undefined;
  }
  document.getElementById("root").textContent = found.root;
  store.replace(found);
  connect();
  return show();
}

const THEMES = ["system", "light", "dark"];
const button = document.getElementById("theme");

function setTheme(theme) {
  localStorage.setItem("parcade-theme", theme);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  document.dispatchEvent(new Event("themechange"));
}

button.onclick = () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("parcade-theme")) + 1) % 3]);
setTheme(THEMES.includes(localStorage.getItem("parcade-theme")) ? localStorage.getItem("parcade-theme") : "system");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof BadToken) askForToken("The token is not of this start of the server.");
  else notice(String(event.reason?.message ?? event.reason));
  event.preventDefault();
});
// An address that is pasted into this tab changes only its hash; everything is opened again with its token.
addEventListener("hashchange", () => (takeTokenFromAddress() ? location.reload() : show()));
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();  // the address names a view
  main.focus();
};
takeTokenFromAddress();
await joinTabs();
start();
