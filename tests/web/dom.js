// As much of a browser's page as the modules of parcade/web/static need in node: elements without layout.

/** Elements in the order in which they were inserted; a browser takes the focus of one that is inserted again. */
export const inserted = [];

class Element {
  constructor(tag) {
    Object.assign(this, { tagName: tag.toUpperCase(), nodes: [], attributes: {}, dataset: {}, handlers: {}, style: {}, hidden: false });
    this.classList = { toggle: () => {}, add: () => {}, remove: () => {} };
  }

  get children() { return this.nodes.filter((node) => node instanceof Element); }
  get firstChild() { return this.nodes[0]; }
  get textContent() { return this.nodes.map((node) => (node instanceof Element ? node.textContent : node)).join(""); }
  set textContent(text) { this.nodes = text === "" ? [] : [String(text)]; }
  get firstElementChild() { return this.children[0] ?? null; }
  get nextElementSibling() {
    const { children } = this.parent;
    return children[children.indexOf(this) + 1] ?? null;
  }

  append(...nodes) { for (const node of nodes) this.insertBefore(node, null); }
  replaceChildren(...nodes) {
    this.nodes = [];
    this.append(...nodes);
  }

  insertBefore(node, next) {
    if (node instanceof Element) {
      node.parent?.nodes.splice(node.parent.nodes.indexOf(node), 1);
      node.parent = this;
      inserted.push(node);
    }
    this.nodes.splice(next ? this.nodes.indexOf(next) : this.nodes.length, 0, node);
  }

  remove() {
    this.parent.nodes.splice(this.parent.nodes.indexOf(this), 1);
    this.parent = null;
  }

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
