"use strict";
const byId = (id) => document.getElementById(id);
const say = (id, text) => { const at = byId(id); if (at.textContent !== text) at.textContent = text; };

// Elements are made here and filled by textContent only: no data is ever read as HTML.
function make(tag, text, kind) {
  const made = document.createElement(tag);
  if (text instanceof Node) made.append(text); else made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function rows(id, cells, empty) {
  const body = byId(id), made = cells.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((cell) => cell instanceof Node ? (cell.tagName === "TD" ? cell : make("td", cell)) : make("td", cell)));
    return line;
  });
  if (!made.length && empty) { const line = document.createElement("tr"); line.append(make("td", empty, "soft")); made.push(line); }
  body.replaceChildren(...made);
}

const stateCell = (text, kinds) => make("td", make("span", text, `state ${kinds[text] || ""}`));

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0;
  while (count >= 1000 && k < units.length - 1) { count /= 1000; k += 1; }
  return `${count.toFixed(k && count < 100 ? 1 : 0)} ${units[k]}`;
}

function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const ago = (at) => at === null ? "" : span(Date.now() / 1000 - at);
const count = (number) => number.toLocaleString();
const date = (at) => new Date(at * 1000).toLocaleDateString(undefined, { dateStyle: "medium" });
const sentence = (text) => text && `${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;
const day = (at) => at === null ? "" : new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

function line(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The smallest of 1, 2, 5, 10, ... times a power of ten that is not below this.
function niceStep(bound) {
  const power = 10 ** Math.floor(Math.log10(bound));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= bound * 0.999);
}

// A curve with its axes; drawn at the size that it has on the screen, so that letters keep theirs.
function chart(curve, width) {
  const height = 216, left = 52, right = 12, top = 10, bottom = 24;
  const svg = line("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${curve.label} by round` });
  const xs = curve.points.map((point) => point[0]), ys = curve.points.map((point) => point[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
  y0 -= pad; y1 += pad;
  const x = (value) => left + (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5) * (width - left - right);
  const y = (value) => height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom);
  const step = niceStep((y1 - y0) / 6), digits = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(step))));
  for (let k = Math.ceil(y0 / step); k * step <= y1; k += 1) {
    const value = k * step;
    svg.append(line("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(line("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(digits)));
  }
  for (const value of x1 > x0 ? [x0, Math.round((x0 + x1) / 2), x1] : [x0])
    svg.append(line("text", { x: x(value), y: height - 6, "text-anchor": "middle" }, String(value)));
  svg.append(line("polyline", { class: "curve", points: curve.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") }));
  const end = curve.points[curve.points.length - 1];
  svg.append(line("circle", { class: "dot", cx: x(end[0]), cy: y(end[1]), r: 3.5 }));
  const figure = document.createElement("figure");
  const better = curve.label.endsWith("RMSE") ? "lower" : "higher";
  figure.append(make("figcaption", `${curve.label} ${end[1].toFixed(4)} in round ${end[0]} (${better} is better)`), svg);
  return figure;
}
