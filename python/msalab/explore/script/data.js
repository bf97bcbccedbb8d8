// SPDX-License-Identifier: MIT
// The data of the page, unpacked, what is shown of them, and the search in the text.

const root = document.getElementById("microscope");
const data = JSON.parse(document.getElementById("microscope-data").textContent);
const byLayer = new Map(data.layers.map(layer => [layer.layer, layer]));
const size = data.blockSize,
  oracle = data.selectors.includes("oracle") ? "oracle" : null;
const number = new Intl.NumberFormat("en"),
  count = value => number.format(value).replaceAll(",", "\u202f");
const percent = value => value === null || Number.isNaN(value) ? "–" :
  `${(100 * value).toFixed(value > 0.0995 ? 0 : value > 0.00095 ? 1 : 2)}\u00a0%`;

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

let ends = new Uint32Array(0); // of the tokens, in the text
async function unpackLengths() {
  const lengths = new Uint16Array((await unpack(data.lengths)).buffer);
  ends = new Uint32Array(lengths.length);
  for (let i = 0, end = 0; i < lengths.length; ++i) ends[i] = end += lengths[i];
}

const opened = new Map();
async function openLayer(of) {
  if (opened.has(of)) return opened.get(of);
  const about = byLayer.get(of),
    bytes = await unpack(document.getElementById(`microscope-layer-${of}`).textContent);
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

const state = {
  layer: data.first,
  group: 0,
  selector: data.selectors.find(name => name.endsWith(" (B)") && !name.startsWith("oracle")) ?? data.selectors.find(name => name === "index") ??
    data.selectors.find(name => name !== "oracle") ?? data.selectors[0],
  query: null,
  block: null,
  find: "",
  colour: null,
  view: null,
  maps: null,
  beside: null
};
let layer = null;

// What the selector stands beside: what was asked for; of a second run the same selector of the first; else the oracle.
const MARK = " (B)";
function other() {
  if (data.selectors.includes(state.beside)) return state.beside;
  const own = state.selector.endsWith(MARK) ? state.selector.slice(0, -MARK.length) : null;
  return data.selectors.includes(own) ? own : oracle;
}
const isApart = () => other() !== null && other() !== state.selector;
// Words for what one of the two alone chose, as only an oracle says what is right.
const alone = () => other() === oracle ? ["wasted", "missed"] : [`${state.selector} alone`, `${other()} alone`];

const isChosen = (selector, group, block, row) =>
  layer.chosen[selector][(group * layer.blocks + block) * layer.width + (row >> 3)] >> (row & 7) & 1;
const rootOf = (group, block, row) => layer.mass[(group * layer.blocks + block) * layer.queries + row] / 255;
const massOf = (group, block, row) => layer.mass ? rootOf(group, block, row) ** 2 : NaN;
const drawnOf = (group, token) => layer.most[group] * (layer.drawn[group * layer.tokens + token] / 255) ** 2;
const ownBlock = row => Math.floor(layer.positions[row] / size);

function rowOf(position) { // of the stored query nearest to it
  let low = 0,
    high = layer.queries - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layer.positions[middle] < position) low = middle + 1;
    else high = middle;
  }
  return low > 0 && position - layer.positions[low - 1] <= layer.positions[low] - position ? low - 1 : low;
}

const hasText = () => ends.length > 0;
const tokenText = token => hasText() ? data.text.slice(token ? ends[token - 1] : 0, ends[token]) : "";
const rangeText = (begin, end) => hasText() ?
  data.text.slice(begin ? ends[begin - 1] : 0, ends[Math.min(end, ends.length) - 1]) : "";
const blockText = block => rangeText(block * size, (block + 1) * size);
const visible = text => text.trim() || text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") ||
  "∅";
const oneLine = text => text.replace(/\s+/g, " ").trim();
const blockRange = block => `${count(block * size)}–${count(Math.min((block + 1) * size, data.tokens) - 1)}`;

// ---- Search

let found = []; // tokens that a match lies in
const lower = data.text.toLowerCase().length === data.text.length ? data.text.toLowerCase() : data.text;

function search() {
  found = [];
  const wanted = lower === data.text ? state.find : state.find.toLowerCase();
  if (!wanted || !hasText()) return;
  let token = 0;
  const word = /^\w+$/.test(wanted); // "the" is no part of "other"
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, at + wanted.length)) {
    const until = at + wanted.length;
    if (word && (/\w/.test(lower[at - 1] ?? "") || /\w/.test(lower[until] ?? ""))) continue;
    while (ends[token] <= at) ++token;
    for (let i = token; i < ends.length && (i ? ends[i - 1] : 0) < until; ++i) found.push(i);
  }
}
