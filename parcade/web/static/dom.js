// Building elements. All text goes through text nodes, so no name or value is ever read as HTML.

/** Return an element: `el("button", {class: "quiet", onclick: save}, "Save")`. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace an element's text where it differs: a text that is set again is laid out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make these elements a parent's children. Those that stay are not touched, or they would lose focus and presses. */
export function arrange(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const each of elements) {
    if (each === next) next = next.nextElementSibling;
    else parent.insertBefore(each, next);
  }
}

/** Show a small text, or nothing in its place. */
export function setNote(element, text) {
  element.hidden = !text;
  setText(element, text || "");
}

/** Set a field's value, except while somebody types in it. */
export function setValue(field, value) {
  if (document.activeElement !== field) field.value = value;
}

let labels = 0;

/** Return a form control with its visible label. */
export function labelled(text, control, kind = "field") {
  control.id ||= `control-${++labels}`;
  const label = el("label", { for: control.id }, text);
  const isBox = control.type === "checkbox";
  return el("span", { class: isBox ? "box" : kind }, ...(isBox ? [control, label] : [label, control]));
}

/** Return a select with `[value, text]` options. */
export function select(options, value, onchange) {
  const control = el("select", { onchange: () => onchange(control.value) });
  control.append(...options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return control;
}

/** Return a table in a frame that scrolls by itself where it is too wide. `rows` hold texts or elements. */
export function table(headers, rows, caption) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, headers.map((header) => el("th", { scope: "col" }, header)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell)))))));
}

let noticeTimer = 0;

/** Show one line for a few seconds; screen readers speak it at once. */
export function notice(text) {
  const box = document.getElementById("notice");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { box.hidden = true; }, 8000);
}

/** Call an async function and show its error. */
export async function reporting(work) {
  try {
    return await work();
  } catch (error) {
    notice(error.message);
    return undefined;
  }
}

/**
 * Call an async function now and again `pause` milliseconds after each end, showing its errors; return a function
 * that ends it. Answers that take longer than the pause would overtake each other if it were called by the clock.
 */
export function repeating(work, pause) {
  let timer, isEnded = false;
  const next = async () => {
    await reporting(work);
    if (!isEnded) timer = setTimeout(next, pause);
  };
  next();
  return () => {
    isEnded = true;
    clearTimeout(timer);
  };
}

/** Offer a file for download. */
export function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
