// Elements, and changes that touch only what differs. Texts are set as text, never as HTML.

import { colourOf, visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

// An element. Properties are attributes; `on…` are listeners; null and false leave one out.
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// A copy of a template of index.html, whose one element it is.
export function copyOf(template) {
  return document.getElementById(template).content.firstElementChild.cloneNode(true);
}

// The first of each selector within an element, by name.
export function partsOf(element, selectors) {
  const found = Object.entries(selectors).map(([name, one]) => [name, element.querySelector(one)]);
  return Object.fromEntries(found);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === false || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function setText(node, text) {
  const first = node.firstChild;
  if (first !== null && first.nodeType === Node.TEXT_NODE && first.nextSibling === null) {
    if (first.data !== text) first.data = text;
  } else if (first !== null || text !== "") {
    node.textContent = text;
  }
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

export function setStyle(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

// The children of `parent`, one for each item, in order. Elements of the same key are kept.
export class Keyed {
  #elements = new Map();

  constructor(parent, create, update) {
    this.parent = parent;
    this.create = create;
    this.update = update;
  }

  draw(items, keyOf) {
    const kept = new Map();
    for (const item of items) {
      const key = keyOf(item);
      if (!kept.has(key)) kept.set(key, this.#elements.get(key) ?? this.create(item));
    }
    for (const [key, element] of this.#elements) if (!kept.has(key)) element.remove();
    this.#elements = kept;
    const focused = document.activeElement;
    let next = this.parent.firstElementChild;
    for (const item of items) {
      const element = kept.get(keyOf(item));
      if (element === next) next = next.nextElementSibling;
      else this.parent.insertBefore(element, next);
      this.update(element, item);
    }
    // A moved element loses the focus.
    if (focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
  }
}

// A text of a user: one visible line that does not turn the text around it.
export function told(text, attributes = {}) {
  const shown = visible(text);
  return el("bdi", { dir: "auto", ...attributes }, shown);
}

// The name of an environment with its colour.
export function envName(name) {
  if (name === null) return el("span", { class: "env" }, swatch(null), "others");
  return el("span", { class: "env" }, swatch(name), told(name));
}

export function swatch(name) {
  return el("span", { class: `swatch ${envClass(name)}`, "aria-hidden": "true" });
}

export function envClass(name) {
  return name === null ? "env-others" : `env-${colourOf(name)}`;
}
