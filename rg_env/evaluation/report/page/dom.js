// Building elements. Text is only inserted as text, never parsed as markup.

const byId = (id) => document.getElementById(id);

/** An element. `attributes`: as in HTML; `true` for attributes without a value, `null` to omit one. Children: elements or text. */
function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same, within an <svg>. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function option(value, text, chosen = false) {
  return el("option", { value, selected: chosen }, coded(text));
}

/** A number formatted for display, with a real minus sign. */
function shown(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = Number.isInteger(value) ? String(value) : tidy(value, digits);
  return text.replace("-", "\u2212");
}

function tidy(value, digits) {
  const size = Math.abs(value);
  return size >= 1e6 || size < 10 ** -digits ? value.toPrecision(2) : value.toFixed(digits);
}

/** Characters that hide or reorder text. Line breaks and tabs are not among them, and neither are joiners within emoji and Indic or Persian words. */
const HIDDEN = /(?!\r\n|[\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164\uffa0]|(?<=^|[\0-\x7f])[\u200c\u200d]|[\u200c\u200d](?=[\0-\x7f]|$)/gu;

const codeOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text with the codes of hidden characters in their place, where elements are not possible. */
const coded = (text) => text.replace(HIDDEN, (character) => `[${codeOf(character)}]`);

/** The text as nodes, in which hidden characters have no effect and their codes are visible. */
function visible(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    const character = el("span", { hidden: true }, match[0]);
    parts.push(text.slice(end, match.index), el("span", { class: "code", "data-code": codeOf(match[0]) }, character));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

/** Leaves out the middle: names of checkpoints differ at the end. */
function shortened(text, length) {
  const end = length >> 1;
  return text.length > length ? `${text.slice(0, length - 1 - end)}…${text.slice(-end)}` : text;
}

/** Calls `draw(width)` now and whenever the element's width changes. */
function drawnByWidth(element, draw) {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width && Math.abs(width - last) > 4) draw((last = width));
  }).observe(element);
  return element;
}
