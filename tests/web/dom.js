// As much of a browser's page as the modules of parcade/web/static need in node: elements without layout.

class Element {
  constructor(tag) {
    Object.assign(this, { tagName: tag.toUpperCase(), nodes: [], attributes: {}, dataset: {}, handlers: {}, style: {}, hidden: false });
    this.classList = { toggle: () => {}, add: () => {}, remove: () => {} };
  }

  get children() { return this.nodes.filter((node) => node instanceof Element); }
  get firstChild() { return this.nodes[0]; }
  get textContent() { return this.nodes.map((node) => (node instanceof Element ? node.textContent : node)).join(""); }
  set textContent(text) { this.nodes = text === "" ? [] : [String(text)]; }
  append(...nodes) { this.nodes.push(...nodes); }
  replaceChildren(...nodes) { this.nodes = nodes; }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name === "value" || name === "type") this[name] = value;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
  }

  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(name, handler) { this.handlers[name] = handler; }
  removeEventListener() {}
  focus() { document.activeElement = this; }
  querySelector() { return null; }
  querySelectorAll() { return []; }
  /** All elements below this one with a tag, in order. */
  all(tag) { return this.children.flatMap((child) => [...(child.tagName === tag.toUpperCase() ? [child] : []), ...child.all(tag)]); }
}

const DEFAULTS = { input: { value: "", checked: false, indeterminate: false } };
const make = (tag) => Object.assign(new Element(tag), DEFAULTS[tag] ?? {});
Object.assign(globalThis, {
  document: { createElement: make, getElementById: () => make("p"), addEventListener() {}, removeEventListener() {}, documentElement: make("html"), activeElement: null },
  sessionStorage: { getItem: () => null, setItem() {} },
  getComputedStyle: () => ({ getPropertyValue: () => "#000" }),
  ResizeObserver: class { observe() {} disconnect() {} },
  requestAnimationFrame: () => 1,
  cancelAnimationFrame() {},
  addEventListener() {},
  removeEventListener() {},
});

Object.defineProperty(globalThis, "navigator", { value: { getGamepads: () => [] }, configurable: true });

/** Answer requests of `fetch` by hand: `requests` has {url, answer}; answer(object) answers and lets the page go on. */
export const requests = [];
globalThis.fetch = (url) => new Promise((resolve) => {
  requests.push({ url, answer: async (data) => { resolve({ ok: true, status: 200, json: async () => data }); await settled(); } });
});
export const settled = () => new Promise((resolve) => { setTimeout(resolve, 0); });
export const waiting = (part) => requests.filter((each) => each.url.includes(part));
