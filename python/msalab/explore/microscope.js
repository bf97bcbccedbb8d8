// SPDX-License-Identifier: MIT
// The block microscope. Its data stand in the page: "microscope-data" is JSON, "microscope-layer-L" the packed piece of
// layer L (python/msalab/explore/data.py). All text goes into the page as text nodes, never as HTML.
(() => {
"use strict";
const root = document.getElementById("microscope");
const data = JSON.parse(document.getElementById("microscope-data").textContent);
const byLayer = new Map(data.layers.map(layer => [layer.layer, layer]));
const size = data.blockSize, oracle = data.selectors.includes("oracle") ? "oracle" : null;
const number = new Intl.NumberFormat("en"), count = value => number.format(value).replaceAll(",", "\u202f");
const percent = value => value === null || Number.isNaN(value) ? "–" :
  `${(100 * value).toFixed(value > 0.0995 ? 0 : value > 0.00095 ? 1 : 2)} %`;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && !key.startsWith("aria")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat(9).filter(child => child !== null && child !== undefined));
  return made;
}
const words = (text, ...classes) => element("span", { className: ["ms-words", ...classes].join(" ") }, text);

// ---- The packed pieces

async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64.trim()), sign => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let ends = new Uint32Array(0);  // of the tokens, in the text
async function unpackLengths() {
  const lengths = new Uint16Array((await unpack(data.lengths)).buffer);
  ends = new Uint32Array(lengths.length);
  for (let i = 0, end = 0; i < lengths.length; ++i) ends[i] = end += lengths[i];
}

const opened = new Map();
async function openLayer(of) {
  if (opened.has(of)) return opened.get(of);
  const about = byLayer.get(of), bytes = await unpack(document.getElementById(`microscope-layer-${of}`).textContent);
  const { queries, blocks } = about, width = Math.ceil(queries / 8);
  let at = 4 * queries;
  const take = length => bytes.subarray(at, at += length);
  const layer = { ...about, positions: new Uint32Array(bytes.buffer, 0, queries), chosen: {}, width };
  for (const selector of data.selectors) layer.chosen[selector] = take(data.groups * blocks * width);
  layer.mass = about.hasMass ? take(data.groups * blocks * queries) : null;
  layer.drawn = about.tokens ? take(data.groups * about.tokens) : null;
  opened.set(of, layer);
  return layer;
}

// ---- What is shown

const state = { layer: data.first, group: 0, selector: data.selectors.find(name => name === "index") ??
  data.selectors.find(name => name !== "oracle") ?? data.selectors[0], query: null, block: null, find: "",
  colour: null, view: null, maps: null };
let layer = null;

const isChosen = (selector, group, block, row) =>
  layer.chosen[selector][(group * layer.blocks + block) * layer.width + (row >> 3)] >> (row & 7) & 1;
const root_of = (group, block, row) => layer.mass[(group * layer.blocks + block) * layer.queries + row] / 255;
const massOf = (group, block, row) => layer.mass ? root_of(group, block, row) ** 2 : NaN;
const drawnOf = (group, token) => layer.most[group] * (layer.drawn[group * layer.tokens + token] / 255) ** 2;
const ownBlock = row => Math.floor(layer.positions[row] / size);

function rowOf(position) {  // of the stored query nearest to it
  let low = 0, high = layer.queries - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layer.positions[middle] < position) low = middle + 1; else high = middle;
  }
  return low > 0 && position - layer.positions[low - 1] <= layer.positions[low] - position ? low - 1 : low;
}

const hasText = () => ends.length > 0;
const tokenText = token => hasText() ? data.text.slice(token ? ends[token - 1] : 0, ends[token]) : "";
const rangeText = (begin, end) => hasText() ?
  data.text.slice(begin ? ends[begin - 1] : 0, ends[Math.min(end, ends.length) - 1]) : "";
const blockText = block => rangeText(block * size, (block + 1) * size);
const visible = text => text.trim() || text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
const oneLine = text => text.replace(/\s+/g, " ").trim();
const blockRange = block => `${count(block * size)}–${count(Math.min((block + 1) * size, data.tokens) - 1)}`;

// ---- Search

let found = [];  // tokens that a match lies in
const lower = data.text.toLowerCase().length === data.text.length ? data.text.toLowerCase() : data.text;
function search() {
  found = [];
  const wanted = lower === data.text ? state.find : state.find.toLowerCase();
  if (!wanted || !hasText()) return;
  let token = 0;
  const word = /^\w+$/.test(wanted);  // "the" is no part of "other"
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, at + wanted.length)) {
    const until = at + wanted.length;
    if (word && (/\w/.test(lower[at - 1] ?? "") || /\w/.test(lower[until] ?? ""))) continue;
    while (ends[token] <= at) ++token;
    for (let i = token; i < ends.length && (i ? ends[i - 1] : 0) < until; ++i) found.push(i);
  }
}

// ---- Parts of the page

const part = {};
for (const name of ["bar", "sampled", "grids", "tools", "maps", "under", "query", "block", "text"])
  part[name] = element("div", { className: `ms-part-${name}` });
part.tools.classList.add("ms-tools");
part.under.setAttribute("aria-live", "polite");

function option(value, text = value) { return element("option", { value: String(value) }, String(text)); }
const inputs = {};
function buildBar() {
  const groups = Array.from({ length: data.groups }, (_, group) => option(group));
  inputs.layer = element("select", { onchange: event => set({ layer: +event.target.value }) },
                         data.layers.map(of => option(of.layer)));
  inputs.group = element("select", { onchange: event => set({ group: +event.target.value }) }, groups);
  inputs.selector = element("select", { onchange: event => set({ selector: event.target.value }) },
                            data.selectors.map(name => option(name)));
  inputs.query = element("input", { type: "number", min: 0, max: data.tokens - 1, placeholder: "position",
    onchange: event => set({ query: event.target.value === "" ? null : +event.target.value }) });
  inputs.find = element("input", { type: "search", placeholder: "a word", disabled: !hasText(),
    oninput: event => set({ find: event.target.value }) });
  for (const [name, input] of Object.entries(inputs))
    part.bar.append(element("label", {}, name === "find" ? "find" : name, input));
}

const MEASURES = [["mass_kept", "Mass kept"], ["block_recall", "Block recall"], ["sink", "Sink"]];
function buildGrids() {
  part.grids.append(element("h3", {}, "All layers"), element("p", { className: "ms-soft" },
    "Layers across, groups of query heads down; " +
    "the sink is the probability on token 0. A click opens the layer and group below; arrow keys move."));
  for (const [measure, title] of MEASURES) {
    const head = element("tr", {}, element("th", {}, "layer"),
                         data.layers.map(of => element("th", { scope: "col" }, String(of.layer))));
    const rows = Array.from({ length: data.groups }, (_, group) => element("tr", {},
      element("th", { scope: "row" }, `group ${group}`), data.layers.map(of => element("td", {}, element("button", {
        type: "button", "data-measure": measure, "data-layer": of.layer, "data-group": group,
        onclick: () => set({ layer: of.layer, group }), onkeydown: moveInGrid })))));
    part.grids.append(element("table", {}, element("caption", {}, title, element("span", { "data-of": measure })),
                              element("thead", {}, head), element("tbody", {}, rows)));
  }
}
function moveInGrid(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const cell = event.target.parentNode, row = cell.parentNode;
  const next = (step[1] ? row.parentNode.rows[row.rowIndex - 1 + step[1]] : row)?.cells[cell.cellIndex + step[0]];
  next?.querySelector("button")?.focus();
}

function paintGrids() {
  const [, ...ramp] = colours().ramp;
  for (const span of part.grids.querySelectorAll("span[data-of]"))
    span.textContent = span.dataset.of === "sink" ? ", dense attention" : `, ${state.selector}`;
  const largest = Math.max(0.05, ...data.layers.flatMap(of => of.sink));
  for (const button of part.grids.querySelectorAll("button")) {
    const { measure } = button.dataset, of = byLayer.get(+button.dataset.layer), group = +button.dataset.group;
    const value = measure === "sink" ? of.sink[group] : of[measure][state.selector][group];
    const [r, g, b] = mix(colours().ramp, value === null ? 0 : measure === "sink" ? value / largest : value);
    button.style.background = `rgb(${r},${g},${b})`;
    button.style.color = luminance(r, g, b) > 0.18 ? "#000" : "#fff";
    button.textContent = data.layers.length > 16 ? "" : value === null ? "–" : value.toFixed(2);
    const text = `layer ${of.layer}, group ${group}: ${measure.replace("_", " ")} ${value === null ? "unknown" : value}`;
    button.title = text;
    button.setAttribute("aria-label", text);
    const here = of.layer === state.layer && group === state.group;
    button.setAttribute("aria-pressed", here);
    button.tabIndex = here ? 0 : -1;
  }
}

// ---- Colours

const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = { light: [[255, 255, 255], [158, 208, 238], [42, 142, 201], [0, 92, 148], [0, 38, 70]],
                dark: [[29, 32, 40], [10, 70, 112], [0, 114, 178], [86, 180, 233], [226, 243, 255]] };
const LOOKS = { light: { ramp: RAMPS.light, only: [0, 114, 178], missed: [213, 94, 0], both: [148, 153, 166],
                         none: [255, 255, 255], future: [233, 235, 240], ink: "#1c1e26", soft: "#5a6072", pin: "#009e73",
                         mark: "#a08a00" },
                dark: { ramp: RAMPS.dark, only: [86, 180, 233], missed: [230, 159, 0], both: [110, 116, 132],
                        none: [29, 32, 40], future: [44, 48, 59], ink: "#e8eaf0", soft: "#a3a9ba", pin: "#2bd4a4",
                        mark: "#f0e442" } };
const isPrinted = matchMedia("print");
const colours = () => dark.matches && !isPrinted.matches ? LOOKS.dark : LOOKS.light;
function mix(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1), low = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[low].map((value, i) => Math.round(value + (place - low) * (ramp[low + 1][i] - value)));
}
const linear = value => value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
const luminance = (r, g, b) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

// ---- Maps

const MARGIN = { left: 60, top: 14, right: 6, bottom: 34 };
const maps = [];  // { kind, canvas, image }
const kinds = () => [...data.selectors, ...(oracle ? ["difference"] : []), ...(data.layers[0].hasMass ? ["probability"] : [])];
function title(kind) {
  if (kind === "difference") return `${state.selector} minus oracle`;
  if (kind === "probability") return "probability of dense attention";
  return `blocks that ${kind} chose`;
}
function shownMaps() {
  const usual = [state.selector, ...(oracle && state.selector !== oracle ? [oracle, "difference"] : []),
                 ...(layer.mass ? ["probability"] : [])];
  return state.maps ? kinds().filter(kind => state.maps.has(kind)) : [...new Set(usual)];
}

function buildTools() {
  const boxes = kinds().map(kind => element("label", {}, element("input", { type: "checkbox", value: kind, onchange: () => {
    set({ maps: new Set([...part.tools.querySelectorAll("input:checked")].map(box => box.value)) });
  } }), kind));
  const zoomed = factor => () => zoom(factor, 0.5, 0.5);
  part.tools.append(element("span", { className: "ms-soft" }, "maps"), ...boxes,
    element("button", { type: "button", "aria-label": "zoom in", onclick: zoomed(0.5) }, "+"),
    element("button", { type: "button", "aria-label": "zoom out", onclick: zoomed(2) }, "−"),
    element("button", { type: "button", onclick: () => set({ view: null }) }, "whole"));
}

function buildMaps() {
  const wanted = shownMaps();
  if (wanted.join() !== maps.map(map => map.kind).join()) {
    maps.length = 0;
    part.maps.replaceChildren(...wanted.map(kind => {
      const canvas = element("canvas", { tabIndex: 0, role: "application", "aria-roledescription": "heat map" });
      const map = { kind, canvas, caption: element("figcaption") };
      listen(map);
      maps.push(map);
      return element("figure", { "data-map": kind }, map.caption, canvas);
    }));
  }
  for (const map of maps) {
    map.caption.replaceChildren(element("b", {}, title(map.kind)), ...legend(map.kind));
    map.canvas.setAttribute("aria-label", `${title(map.kind)}, layer ${state.layer}, group ${state.group}: queries down, ` +
      "key blocks across. Arrow keys move the pinned query and block, plus and minus zoom, 0 shows the whole.");
  }
  for (const box of part.tools.querySelectorAll("input")) box.checked = wanted.includes(box.value);
}
function legend(kind) {
  const key = (colour, text) => [" ", element("span", { className: "ms-key", style: `background: rgb(${colour})` }), text];
  const look = colours();
  if (kind === "difference") return [":", key(look.both, "both"), key(look.only, `${state.selector} alone: wasted`),
                                     key(look.missed, "oracle alone: missed")].flat();
  const of = kind === "probability" ? ["0", "¼", "1"] : ["no query", "", "every query"];
  return [":", key(mix(look.ramp, 0), of[0]), of[1] ? key(mix(look.ramp, 0.5), of[1]) : [],
          key(mix(look.ramp, 1), of[2])].flat();
}

function view() {
  const whole = [0, layer.queries, 0, layer.blocks], [q0, q1, b0, b1] = state.view ?? whole;
  const span = (low, high, most) => {
    const length = Math.min(Math.max(high - low, 4), most), begin = Math.min(Math.max(low, 0), most - length);
    return [Math.round(begin), Math.round(begin + length)];
  };
  return [...span(q0, q1, layer.queries), ...span(b0, b1, layer.blocks)];
}

// A cell of the image covers whole queries and blocks: the mean over its queries, the most over its blocks.
function render(kind, columns, rows) {
  const [q0, q1, b0, b1] = view(), group = state.group, look = colours();
  const nx = Math.min(columns, b1 - b0), ny = Math.min(rows, q1 - q0);
  const image = new ImageData(nx, ny), pixels = image.data, chosen = layer.chosen[kind];
  const best = oracle && layer.chosen[oracle], own = layer.chosen[state.selector], { blocks, width, queries } = layer;
  for (let y = 0; y < ny; ++y) {
    const first = q0 + Math.floor(y * (q1 - q0) / ny), last = q0 + Math.floor((y + 1) * (q1 - q0) / ny);
    const seen = Math.floor(layer.positions[last - 1] / size);
    for (let x = 0; x < nx; ++x) {
      const begin = b0 + Math.floor(x * (b1 - b0) / nx), end = b0 + Math.floor((x + 1) * (b1 - b0) / nx);
      let most = 0, only = 0, missed = 0, both = 0;
      for (let block = begin; block < end; ++block) {
        const at = group * blocks + block;
        let sum = 0, alone = 0, lost = 0, shared = 0;
        for (let row = first; row < last; ++row) {
          if (kind === "probability") { sum += (layer.mass[at * queries + row] / 255) ** 2; continue; }
          const bit = at * width + (row >> 3), mask = 1 << (row & 7);
          if (kind !== "difference") { if (chosen[bit] & mask) ++sum; continue; }
          const a = own[bit] & mask, b = best[bit] & mask;
          if (a && b) ++shared; else if (a) ++alone; else if (b) ++lost;
        }
        most = Math.max(most, sum);
        only = Math.max(only, alone); missed = Math.max(missed, lost); both = Math.max(both, shared);
      }
      const n = last - first;
      let colour = begin > seen ? look.future : look.none;
      if (kind === "probability") colour = most ? mix(look.ramp, Math.sqrt(most / n)) : colour;
      else if (kind !== "difference") colour = most ? mix(look.ramp, most / n) : colour;
      else if (only + missed + both) {
        const all = Math.max(only + missed + both, n), rest = all - only - missed - both;
        colour = look.none.map((value, i) => (value * rest + look.only[i] * only + look.missed[i] * missed +
                                              look.both[i] * both) / all);
      }
      pixels.set([...colour, 255], 4 * (y * nx + x));
    }
  }
  return image;
}

function draw(map, again = true) {
  const { canvas } = map, scale = Math.min(devicePixelRatio || 1, 2);
  map.width ||= canvas.clientWidth || 320;  // asked for once: each time it lays out the page
  const { width } = map, height = Math.round(Math.min(width, 440)) + MARGIN.bottom;
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const plot = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right,
                 h: height - MARGIN.top - MARGIN.bottom };
  map.plot = plot;
  if (again || !map.image) {
    const image = render(map.kind, Math.round(plot.w), Math.round(plot.h));
    map.image ??= document.createElement("canvas");
    map.image.width = image.width;
    map.image.height = image.height;
    map.image.getContext("2d").putImageData(image, 0, 0);
  }
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d"), look = colours(), [q0, q1, b0, b1] = view();
  pen.scale(scale, scale);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(map.image, plot.x, plot.y, plot.w, plot.h);
  const atRow = row => plot.y + (row - q0) / (q1 - q0) * plot.h, atBlock = block => plot.x + (block - b0) / (b1 - b0) * plot.w;
  drawAxes(pen, plot, look, atRow, atBlock);
  pen.strokeStyle = look.soft;
  pen.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
  pen.save();
  pen.beginPath();
  pen.rect(plot.x, plot.y, plot.w, plot.h);
  pen.clip();
  pen.strokeStyle = look.pin;
  pen.lineWidth = 1.5;
  if (state.query !== null) {
    const row = rowOf(state.query), thick = Math.max(plot.h / (q1 - q0), 2);
    pen.strokeRect(plot.x - 2, atRow(row) - 0.5, plot.w + 4, thick + 1);
  }
  if (state.block !== null)
    pen.strokeRect(atBlock(state.block) - 0.5, plot.y - 2, Math.max(plot.w / (b1 - b0), 2) + 1, plot.h + 4);
  if (map.box) pen.strokeRect(...map.box);
  pen.restore();
}

function drawAxes(pen, plot, look, atRow, atBlock) {
  const [q0, q1, b0, b1] = view();
  pen.font = "11.5px system-ui, sans-serif";
  pen.fillStyle = look.soft;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const nice = (span, most) => [1, 2, 5].flatMap(n => [0, 1, 2, 3, 4, 5, 6].map(e => n * 10 ** e)).sort((a, b) => a - b)
    .find(step => span / step <= most);
  const low = layer.positions[q0], high = layer.positions[q1 - 1], step = nice(high - low + 1, plot.h / 36);
  for (let position = Math.ceil(low / step) * step; position <= high; position += step) {
    const y = atRow(rowOf(position) + 0.5);
    pen.fillText(count(position), plot.x - 7, y);
    pen.fillRect(plot.x - 4, y - 0.5, 4, 1);
  }
  pen.textAlign = "center";
  const across = nice((b1 - b0) * size, plot.w / 58);
  for (let token = Math.ceil(b0 * size / across) * across; token <= b1 * size; token += across) {
    const x = atBlock(token / size);
    pen.fillRect(x - 0.5, plot.y + plot.h, 1, 4);
    if (x < plot.x + plot.w - 8) pen.fillText(count(token), x, plot.y + plot.h + 12);
  }
  pen.fillText("key token", plot.x + plot.w / 2, plot.y + plot.h + 26);
  pen.save();
  pen.translate(7, plot.y + plot.h / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText("query token", 0, 0);
  pen.restore();
  pen.fillStyle = look.mark;  // of what is searched for
  for (const token of found) {
    const x = atBlock((token + 0.5) / size), row = rowOf(token);
    if (x >= plot.x && x <= plot.x + plot.w) pen.fillRect(x - 1, plot.y - 8, 2, 7);
    if (layer.positions[row] === token && row >= q0 && row < q1) pen.fillRect(plot.x - 4, atRow(row), 4, 1.5);
  }
}

// ---- Pointer, touch and keys on a map

function placeOf(map, event) {
  const box = map.canvas.getBoundingClientRect(), [q0, q1, b0, b1] = view();
  const x = (event.clientX - box.left - map.plot.x) / map.plot.w, y = (event.clientY - box.top - map.plot.y) / map.plot.h;
  const inside = x >= 0 && x < 1 && y >= 0 && y < 1;
  return { x, y, inside, row: Math.min(Math.max(q0 + Math.floor(y * (q1 - q0)), q0), q1 - 1),
           block: Math.min(Math.max(b0 + Math.floor(x * (b1 - b0)), b0), b1 - 1) };
}
function zoom(factor, x, y) {
  const [q0, q1, b0, b1] = view();
  const span = (low, high, share) => {
    const at = low + share * (high - low);
    return [at - share * (high - low) * factor, at + (1 - share) * (high - low) * factor];
  };
  const next = [...span(q0, q1, y), ...span(b0, b1, x)];
  const whole = next[1] - next[0] >= layer.queries && next[3] - next[2] >= layer.blocks;
  set({ view: whole ? null : next });
}
function pin(row, block) {
  tell(row, Math.min(block, ownBlock(row)));
  set({ query: layer.positions[row], block: Math.min(block, ownBlock(row)) });
}

function listen(map) {
  const { canvas } = map, fingers = new Map();
  let began = null, pinch = null;
  const local = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", event => {
    fingers.set(event.pointerId, event);
    if (fingers.size === 1) began = event;
    else { began = null; pinch = null; }
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (fingers.size === 2) {
      const [a, b] = fingers.values(), apart = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      const middle = placeOf(map, { clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 });
      if (pinch && Math.abs(pinch / apart - 1) > 0.04) { zoom(pinch / apart, middle.x, middle.y); pinch = apart; }
      pinch ??= apart;
      return;
    }
    if (began && event.pointerType === "mouse") {
      const [x0, y0] = local(began), [x1, y1] = local(event);
      map.box = Math.hypot(x1 - x0, y1 - y0) > 6 ? [Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0)] : null;
      draw(map, false);
    }
    const place = placeOf(map, event);
    if (place.inside) tell(place.row, place.block);
  });
  canvas.addEventListener("pointerup", event => {
    fingers.delete(event.pointerId);
    const start = began, box = map.box;
    began = map.box = null;
    if (!start) return;
    const place = placeOf(map, event);
    if (box) {
      const from = placeOf(map, start), [a, b] = [from.row, place.row].sort((m, n) => m - n);
      const [c, d] = [from.block, place.block].sort((m, n) => m - n);
      set({ view: [a, b + 1, c, d + 1] });
    } else if (place.inside && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) < 8)
      pin(place.row, place.block);
  });
  canvas.addEventListener("pointercancel", event => { fingers.delete(event.pointerId); began = pinch = map.box = null; });
  canvas.addEventListener("dblclick", () => set({ view: null }));
  canvas.addEventListener("wheel", event => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;  // the page scrolls until the map was clicked
    event.preventDefault();
    const place = placeOf(map, event);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place.x, place.y);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const step = event.shiftKey ? 10 : 1;
    const row = state.query === null ? view()[0] : rowOf(state.query), block = state.block ?? view()[2];
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    if (moves[event.key]) {
      const to = (value, most) => Math.min(Math.max(value, 0), most - 1);
      pin(to(row + moves[event.key][0], layer.queries), to(block + moves[event.key][1], layer.blocks));
    } else if (event.key === "+" || event.key === "=") zoom(0.5, 0.5, 0.5);
    else if (event.key === "-") zoom(2, 0.5, 0.5);
    else if (event.key === "0") set({ view: null });
    else return;
    event.preventDefault();
  });
}

function tell(row, block) {
  const position = layer.positions[row], choosers = data.selectors.filter(name => isChosen(name, state.group, block, row));
  const isFuture = block > ownBlock(row);
  part.under.replaceChildren(`Query ${count(position)} `, words(`“${visible(tokenText(position))}”`), ` · block ${block}, tokens `,
    blockRange(block), isFuture ? ": the future" : `: chosen by ${choosers.join(", ") || "none"}` +
    (layer.mass ? `, probability ${percent(massOf(state.group, block, row))}` : ""),
    element("br"), words(oneLine(blockText(block)).slice(0, 150)));
}

// ---- A query

function chosenBlocks(selector, group, row) {
  const list = [];
  for (let block = 0; block <= ownBlock(row); ++block) if (isChosen(selector, group, block, row)) list.push(block);
  return list;
}
const sum = (list, value) => list.reduce((total, one) => total + value(one), 0);

function context(token, before = 40, after = 12) {
  const begin = Math.max(0, token - before), end = Math.min(ends.length, token + after + 1);
  return element("div", { className: "ms-context ms-words" }, begin ? "…" : "", rangeText(begin, token),
    element("span", { className: "ms-query" }, tokenText(token) || "∅"), token + 1 < end ? rangeText(token + 1, end) : "",
    end < ends.length ? "…" : "");
}

function blockButton(block) {
  return element("button", { type: "button", "data-block": block, title: "who looks at this block",
                             onclick: () => set({ block }) }, `${block}`);
}

function paintQuery() {
  const box = part.query;
  box.replaceChildren(element("h3", {}, "Query"));
  if (state.query === null) {
    box.append(element("p", { className: "ms-soft" }, "Click a map or a word of the text, or type a position: its blocks stand here."));
    return;
  }
  const row = rowOf(state.query), position = layer.positions[row], group = state.group;
  box.append(element("p", {}, `Token ${count(position)}, in block ${ownBlock(row)}` +
    (position === state.query ? "" : `, the nearest to ${count(state.query)} of the queries that this page has`) +
    `; layer ${state.layer}, group ${group}.`));
  if (hasText()) box.append(context(position));
  const own = chosenBlocks(state.selector, group, row), best = oracle ? chosenBlocks(oracle, group, row) : [];
  const missed = best.filter(block => !own.includes(block)), wasted = own.filter(block => oracle && !best.includes(block));
  const holds = list => layer.mass ? ` with ${percent(sum(list, block => massOf(group, block, row)))} of its probability` : "";
  const sentence = [`${state.selector} chose ${own.length} blocks${holds(own)}`];
  if (oracle && state.selector !== oracle) sentence.push(`the oracle ${best.length}${holds(best)}`,
    `${missed.length} missed${holds(missed)}`, `${wasted.length} wasted${holds(wasted)}`);
  box.append(element("p", { className: "ms-sentence" }, `${sentence.join("; ")}.` +
    (layer.mass ? "" : " Probabilities are not known: results with --dump mass, or --activations, have them.")));
  const others = data.selectors.filter(name => name !== state.selector && name !== oracle);
  const list = [...new Set([...own, ...best])].sort((a, b) => layer.mass ?
    massOf(group, b, row) - massOf(group, a, row) || a - b : a - b);
  const rows = list.map(block => {
    const mine = own.includes(block), ideal = best.includes(block), also = others.filter(name => isChosen(name, group, block, row));
    const verdict = !oracle || state.selector === oracle ? "" : mine && ideal ? "both" : mine ? "wasted" : "missed";
    return element("tr", { "data-block": block, "data-verdict": verdict }, element("td", {}, blockButton(block)),
      layer.mass ? element("td", {}, percent(massOf(group, block, row)), " ", element("span", { className: "ms-amount",
        style: `width: ${Math.max(2, 60 * root_of(group, block, row))}px` })) : null,
      element("td", { className: verdict === "missed" ? "ms-missed" : "" }, verdict || (mine ? "chosen" : "")),
      element("td", {}, words(oneLine(blockText(block)) || `tokens ${blockRange(block)}`),
        also.length ? element("div", { className: "ms-soft" }, `also of ${also.join(", ")}`) : null));
  });
  const heads = ["block", ...(layer.mass ? ["probability"] : []), "", hasText() ? "text" : "tokens"];
  box.append(element("div", { className: "ms-scroll", tabIndex: 0 }, element("table", {}, element("thead", {},
    element("tr", {}, heads.map(text => element("th", { scope: "col" }, text)))), element("tbody", {}, rows))));
}

// ---- A key block

function paintBlock() {
  const box = part.block, { block } = state, group = state.group;
  box.replaceChildren(element("h3", {}, "Key block"));
  if (block === null || block >= layer.blocks) {
    box.append(element("p", { className: "ms-soft" }, "Click a map or the number of a block: who looks at it stands here."));
    return;
  }
  const sees = [], mass = [];
  for (let row = 0; row < layer.queries; ++row) if (ownBlock(row) >= block) sees.push(row);
  box.append(element("p", {}, `Block ${block}, tokens ${blockRange(block)}.`));
  if (hasText()) box.append(element("div", { className: "ms-context ms-words" }, ...tokensOfBlock(block)));
  const looks = selector => sees.filter(row => isChosen(selector, group, block, row)).length;
  const counts = data.selectors.map(name => `${name} ${count(looks(name))}`);
  box.append(element("p", { className: "ms-lookers" }, `Of ${count(sees.length)} queries that see it, so many chose it: ${counts.join(", ")}.`));
  if (layer.drawn) {
    const strongest = tokensByDrawn(block * size, Math.min((block + 1) * size, layer.tokens)).slice(0, 3);
    const whole = sum(strongest.all, one => one.share);
    box.append(element("p", { className: "ms-strongest" }, `Its tokens draw ${percent(whole)} of all probability; most of it: `,
      ...strongest.flatMap(one => [words(`“${visible(tokenText(one.token))}”`), ` (token ${count(one.token)}) ${percent(one.share / whole)}; `])));
  }
  const order = layer.mass ? [...sees].sort((a, b) => massOf(group, block, b) - massOf(group, block, a)) :
    sees.filter(row => isChosen(state.selector, group, block, row));
  box.append(element("p", {}, layer.mass ? "Queries that give it most:" : `Queries of ${state.selector} that chose it:`),
    element("div", { className: "ms-list" }, order.slice(0, 12).map(row => element("button", { type: "button",
      onclick: () => set({ query: layer.positions[row] }) }, `${count(layer.positions[row])} `,
      words(visible(tokenText(layer.positions[row]))), layer.mass ? ` ${percent(massOf(group, block, row))}` : ""))));
}
function tokensByDrawn(begin, end) {
  const list = [];
  for (let token = begin; token < end; ++token) list.push({ token, share: drawnOf(state.group, token) });
  const sorted = [...list].sort((a, b) => b.share - a.share);
  sorted.all = list;
  const slice = sorted.slice.bind(sorted);
  sorted.slice = (...of) => Object.assign(slice(...of), { all: list });
  return sorted;
}
function tokensOfBlock(block) {
  const begin = block * size, end = Math.min(begin + size, ends.length), spans = [];
  for (let token = begin; token < end; ++token) {
    const span = element("span", {}, tokenText(token));
    if (layer.drawn) light(span, Math.sqrt(drawnOf(state.group, token) / layer.most[state.group]));
    spans.push(span);
  }
  return spans;
}
function light(span, share) { span.style.background = share > 0.04 ? `rgba(${lit()}, ${(0.5 * share).toFixed(3)})` : ""; }
const lit = () => dark.matches && !isPrinted.matches ? "86, 180, 233" : "0, 114, 178";

// ---- The text

const PAGE = 2048;  // tokens that are shown at a time
const COLOURS = { tokens: "attention that each token draws", blocks: "how often each block is chosen", query: "what the query chose" };
let begins = 0;
function colourKinds() { return Object.keys(COLOURS).filter(kind => kind !== "tokens" || layer.drawn); }
function colourShown() {
  const wanted = state.colour ?? (layer.drawn ? "tokens" : "blocks");
  return wanted === "query" && state.query === null || !colourKinds().includes(wanted) ? colourKinds()[0] : wanted;
}
const often = new Map();
function shares(kind) {  // of each block, 0 to 1
  const key = `${state.layer} ${state.group} ${state.selector}`;
  if (kind === "blocks" && often.has(key)) return often.get(key);
  const list = new Float32Array(layer.blocks), group = state.group;
  const row = state.query === null ? 0 : rowOf(state.query), bytes = layer.chosen[state.selector];
  for (let block = 0; block < layer.blocks; ++block) {
    if (kind === "query") {
      list[block] = !isChosen(state.selector, group, block, row) ? 0 : layer.mass ? 0.25 + 0.75 * root_of(group, block, row) : 1;
      continue;
    }
    let chosen = 0, seen = 0;
    for (let row = 0; row < layer.queries; ++row) {
      if (ownBlock(row) < block) continue;
      ++seen;
      chosen += bytes[(group * layer.blocks + block) * layer.width + (row >> 3)] >> (row & 7) & 1;
    }
    list[block] = seen ? chosen / seen : 0;
  }
  if (kind === "blocks") often.set(key, list);
  return list;
}

let parts = null;  // of the text, built once
function buildText() {
  parts = { colour: element("select", { "aria-label": "colour of the text", onchange: event => set({ colour: event.target.value }) }),
            strip: element("canvas", { className: "ms-strip", role: "img", "aria-label": "the whole text from its beginning to its end" }),
            strongest: element("div", { className: "ms-list" }), found: element("div", {}),
            page: element("div", { className: "ms-text ms-context ms-words", tabIndex: 0, role: "region", "aria-label": "the text" }),
            place: element("span", { className: "ms-soft" }) };
  const turn = by => () => { begins = Math.min(Math.max(0, begins + by), Math.max(0, ends.length - PAGE)); paintText(); };
  parts.turning = element("span", {}, element("button", { type: "button", onclick: turn(-PAGE), "aria-label": "earlier text" }, "←"),
    " ", element("button", { type: "button", onclick: turn(PAGE), "aria-label": "later text" }, "→"));
  part.text.append(element("h3", {}, "Text"), element("div", { className: "ms-tools" }, element("label", {}, "coloured by", parts.colour),
    parts.turning, parts.place), parts.found, parts.strongest, parts.strip, parts.page);
  parts.strip.addEventListener("click", event => {
    const token = Math.floor(event.offsetX / parts.strip.clientWidth * ends.length);
    goTo(token);
    paintText();
  });
  parts.page.addEventListener("click", event => {
    const { token, block } = event.target.dataset;
    if (block !== undefined) set({ block: +block });
    else if (token !== undefined) set({ query: +token });
  });
}
function goTo(token) { if (token < begins || token >= begins + PAGE) begins = Math.max(0, Math.min(token - 64, ends.length - PAGE)); }

function paintText() {
  if (!hasText()) {
    part.text.replaceChildren(element("h3", {}, "Text"), element("p", { className: "ms-soft" },
      "These results come without the text: msalab explore --activations FILE, of a capture that has it, shows it here."));
    return;
  }
  const kind = colourShown(), of = kind === "tokens" ? null : shares(kind), isFound = new Set(found);
  parts.colour.replaceChildren(...colourKinds().map(name => element("option", { value: name, disabled: name === "query" &&
    state.query === null }, name === "tokens" ? COLOURS[name] : `${COLOURS[name]}: ${state.selector}`)));
  parts.colour.value = kind;
  const share = token => of ? of[Math.floor(token / size)] ?? 0 : Math.sqrt(drawnOf(state.group, token) / layer.most[state.group]);
  const position = state.query === null ? -1 : layer.positions[rowOf(state.query)];
  fillPage();
  // A click changes few of the words: what is as it was is left alone.
  const look = [kind, state.layer, state.group, kind === "tokens" ? "" : state.selector, kind === "query" ? position : "",
                state.find, begins, colours() === LOOKS.dark].join();
  if (look !== parts.look) {
    parts.look = look;
    for (const span of parts.spans) {
      const token = +span.dataset.token;
      light(span, share(token));
      span.style.boxShadow = isFound.has(token) ? `inset 0 -3px 0 ${colours().mark}` : "";
    }
  }
  parts.spans[parts.query - begins]?.classList.remove("ms-query");
  parts.spans[position - begins]?.classList.add("ms-query");
  parts.query = position;
  for (const sup of parts.sups) sup.classList.toggle("ms-in", +sup.dataset.block === state.block);
  paintStrongest();
  paintFound();
  paintStrip(share, isFound, position);
}

function fillPage() {
  if (parts.filled === begins) return;
  const end = Math.min(begins + PAGE, ends.length);
  Object.assign(parts, { filled: begins, spans: [], sups: [], query: -1 });
  const pieces = [];
  for (let token = begins; token < end; ++token) {
    if (token % size === 0 || token === begins) {
      const block = Math.floor(token / size), sup = element("sup", { title: `block ${block}` }, String(block));
      sup.dataset.block = block;
      parts.sups.push(sup);
      pieces.push(sup);
    }
    const span = document.createElement("span");
    span.textContent = tokenText(token);
    span.dataset.token = token;
    parts.spans.push(span);
    pieces.push(span);
  }
  parts.page.replaceChildren(...pieces);
  parts.place.textContent = ends.length > PAGE ? `tokens ${count(begins)} to ${count(end - 1)} of ${count(ends.length)}` : "";
  parts.turning.hidden = ends.length <= PAGE;
}

let strongestOf = "";
function paintStrongest() {
  if (strongestOf === `${state.layer} ${state.group}`) return;
  strongestOf = `${state.layer} ${state.group}`;
  parts.strongest.replaceChildren();
  if (!layer.drawn) return;
  const byWord = new Map();
  for (let token = 0; token < Math.min(layer.tokens, ends.length); ++token) {
    const word = visible(tokenText(token));
    const one = byWord.get(word) ?? { word, share: 0, times: 0 };
    one.share += drawnOf(state.group, token);
    ++one.times;
    byWord.set(word, one);
  }
  const list = [...byWord.values()].sort((a, b) => b.share - a.share).slice(0, 10);
  parts.strongest.append(element("span", { className: "ms-soft" }, "Words that draw most attention here:"), ...list.map(one =>
    element("button", { type: "button", title: `${one.times} times in the text; shows where`, onclick: () => set({ find: one.word }) },
      words(one.word), ` ${percent(one.share)}`)));
}

function paintFound() {
  parts.found.replaceChildren();
  if (!state.find) return;
  const blocks = new Map();
  for (const token of found) blocks.set(Math.floor(token / size), (blocks.get(Math.floor(token / size)) ?? 0) + 1);
  const chosen = shares("blocks");
  parts.found.append(element("p", { className: "ms-found" }, words(`“${state.find}”`),
    ` stands in ${blocks.size} blocks; ${state.selector} chose the block in so many of the queries that see it:`),
    element("div", { className: "ms-list ms-scroll", style: "max-height: 120px" }, [...blocks.keys()].slice(0, 400).map(block =>
      element("button", { type: "button", "data-block": block, onclick: () => { goTo(block * size); set({ block }); } },
        `${block}: ${percent(chosen[block] ?? 0)}`))));
}

function paintStrip(share, isFound, position) {
  const canvas = parts.strip, scale = Math.min(devicePixelRatio || 1, 2), width = parts.width ||= canvas.clientWidth || 320;
  canvas.width = width * scale;
  canvas.height = 26 * scale;
  const pen = canvas.getContext("2d"), look = colours(), all = ends.length;
  pen.scale(scale, scale);
  for (let x = 0; x < width; ++x) {
    let most = 0;
    for (let token = Math.floor(x * all / width); token < Math.max((x + 1) * all / width, Math.floor(x * all / width) + 1) && token < all; ++token)
      most = Math.max(most, share(token));
    pen.fillStyle = `rgb(${mix(look.ramp, most)})`;
    pen.fillRect(x, 5, 1, 16);
  }
  pen.fillStyle = look.mark;
  for (const token of isFound) pen.fillRect(token / all * width, 0, 1.5, 4);
  pen.fillStyle = look.pin;
  if (position >= 0) pen.fillRect(position / all * width - 1, 0, 2, 26);
  pen.strokeStyle = look.soft;
  pen.strokeRect(begins / all * width + 0.5, 4.5, Math.min(PAGE, all) / all * width - 1, 17);
}

// ---- All of it

function sampledText() {
  const many = data.step > 1 ? `One of ${data.step} analysed queries is here: ${count(layer.queries)} of ${count(data.analysed)}` :
    `All ${count(layer.queries)} analysed queries are here`;
  return many + (data.sequences > 1 ? `, of sequence ${data.sequence} alone, of ${data.sequences}` : "") + "." +
    (layer.mass ? " Probabilities are exact to 0.4 percentage points." : "");
}

function address() {
  const fields = new URLSearchParams();
  for (const name of ["layer", "group", "query", "selector", "block", "find", "colour"])
    if (state[name] !== null && state[name] !== "") fields.set(name, state[name]);
  if (state.view) fields.set("view", view().join("-"));
  if (state.maps) fields.set("maps", [...state.maps].join("+"));
  return `#${fields}`;
}
function readAddress() {
  const fields = new URLSearchParams(location.hash.slice(1)), whole = name => {
    const value = fields.get(name);
    return value !== null && /^\d+$/.test(value) ? +value : null;
  };
  if (![...fields.keys()].some(name => name in state)) return {};
  const next = { query: whole("query"), block: whole("block"), find: fields.get("find") ?? "" };
  if (byLayer.has(whole("layer"))) next.layer = whole("layer");
  if (whole("group") < data.groups && whole("group") !== null) next.group = whole("group");
  if (data.selectors.includes(fields.get("selector"))) next.selector = fields.get("selector");
  if (fields.get("colour") in COLOURS) next.colour = fields.get("colour");
  const edges = fields.get("view")?.split("-").map(Number);
  next.view = edges?.length === 4 && edges.every(Number.isFinite) && edges[0] < edges[1] && edges[2] < edges[3] ? edges : null;
  next.maps = fields.has("maps") ? new Set(fields.get("maps").split(/[ +]/)) : null;
  return next;
}

async function set(change, keepAddress = false) {
  const began = performance.now(), old = { ...state };
  Object.assign(state, change);
  if (layer === null || state.layer !== layer.layer) layer = await openLayer(state.layer);
  if (state.query !== null) state.query = Math.min(Math.max(state.query, 0), data.tokens - 1);
  if (state.find !== old.find || !layer) search();
  const changed = names => names.some(name => name in change);
  const everything = changed(["layer", "group", "selector", "start"]);
  if (everything) { part.sampled.textContent = sampledText(); paintGrids(); }
  if (everything || changed(["maps"])) buildMaps();
  const again = everything || changed(["view", "maps"]);
  for (const map of maps) draw(map, again);
  if (everything || changed(["query"])) paintQuery();
  if (everything || changed(["block"])) paintBlock();
  if (everything || changed(["query", "find", "block", "colour"])) {
    if (change.query !== undefined && change.query !== null) goTo(state.query);
    if (change.find && found.length) goTo(found[0]);
    paintText();
  }
  for (const [name, input] of Object.entries(inputs)) if (document.activeElement !== input) input.value = state[name] ?? "";
  if (!keepAddress) history.replaceState(null, "", address());
  root.dataset.took = (performance.now() - began).toFixed(1);
  root.dataset.layer = state.layer;
}

const everythingAgain = () => {
  if (parts) parts.width = 0;
  for (const map of maps) map.width = 0;
  if (layer) set({ start: true }, true);
};
async function start() {
  await unpackLengths();
  root.replaceChildren(part.sampled, part.bar, part.grids, part.tools, part.maps, part.under,
                       element("div", { className: "ms-panels" }, part.query, part.block), part.text);
  part.sampled.classList.add("ms-soft");
  part.under.textContent = "Rest on a map: the query and the block stand here. A click pins them; a drag, or after a click the " +
    "wheel, zooms; a double click shows the whole.";
  buildBar();
  buildGrids();
  buildTools();
  if (hasText()) buildText();
  await set({ ...readAddress(), start: true }, true);
  root.dataset.ready = performance.now().toFixed(0);
}
addEventListener("hashchange", () => { const next = readAddress(); if (Object.keys(next).length) set({ ...next, start: true }, true); });
addEventListener("beforeprint", everythingAgain);
addEventListener("afterprint", everythingAgain);
dark.addEventListener("change", everythingAgain);
let resized = 0;
addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(everythingAgain); });
start().catch(error => { root.textContent = `The microscope cannot be shown: ${error.message}`; });
})();
