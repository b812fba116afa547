// Words for numbers, and elements without strings of HTML: what a run says is text, never markup.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style")
      node.style.cssText = value; // through the object model, which the page's policy allows
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const known = (value) => value !== null && value !== undefined;

function precise(value, digits) {
  return known(value) ? String(Number(value.toPrecision(digits))) : "–";
}

function bytes(value) {
  if (!known(value)) return "–";
  let rest = Math.abs(value),
    unit = 0;
  while (rest >= 999.5 && unit < 4) {
    rest /= 1000;
    unit += 1;
  }
  return (
    (value < 0 ? "-" : "") + (unit ? precise(rest, 3) : Math.round(rest)) + " " + ["B", "KB", "MB", "GB", "TB"][unit]
  );
}

function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : "–";
}

const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return precise(value / 1e6, 3) + " M";
  if (size >= 1e4) return precise(value / 1e3, 3) + " k";
  return size >= 100 ? String(Math.round(value)) : precise(value, 3);
}

// NaN and infinities come as text.
const metric = (value) =>
  typeof value === "string"
    ? value
    : known(value)
      ? Math.abs(value) >= 1e5
        ? value.toExponential(2)
        : precise(value, 4)
      : "–";

const share = (value) => (known(value) ? (value * 100).toFixed(value < 0.0995 && value > 0 ? 1 : 0) + " %" : "–");

function span(seconds) {
  if (!known(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 60) return precise(s, s < 10 ? 2 : 3) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min" + (s < 600 && s % 60 >= 1 ? " " + Math.floor(s % 60) + " s" : "");
  if (s < 172800)
    return Math.floor(s / 3600) + " h" + (s % 3600 >= 60 ? " " + Math.floor((s % 3600) / 60) + " min" : "");
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

const moment = (t) => new Date(t * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

function table(heads, rows, attributes) {
  const head = el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name)));
  const line = (cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, String(cell))));
  return el("table", attributes || {}, el("thead", {}, head), el("tbody", {}, ...rows.map(line)));
}

// Shapes, not only colours, tell weights apart.
const SHAPES = {
  bad: "M5.5 0L11 5.5L5.5 11L0 5.5Z",
  warn: "M5.5 .5L11 10.5H0Z",
  good: "M1 1h9v9H1Z",
  note: "M5.5 1a4.5 4.5 0 1 0 .01 0Z",
};

// Text with `code` in it.
const words = (text) => text.split("`").map((part, n) => (n % 2 ? el("code", {}, part) : part));
