// SPDX-License-Identifier: MIT
// The maps of queries and key blocks, and what a pointer, fingers and keys do on them.

// ---- Maps

const MARGIN = { left: 60, top: 14, right: 6, bottom: 34 };
const maps = []; // { kind, canvas, image }
const kinds = () => [...data.selectors, ...(data.selectors.length > 1 ? ["difference"] : []), ...(data.layers[0]
  .hasMass ? ["probability"] : [])];

function title(kind) {
  if (kind === "difference") return `${state.selector} minus ${other()}`;
  if (kind === "probability") return "probability of dense attention";
  return `blocks that ${kind} chose`;
}

function shownMaps() {
  const usual = [state.selector, ...(isApart() ? [other(), "difference"] : []), ...(layer.mass ? ["probability"] :
    [])];
  return state.maps ? kinds().filter(kind => state.maps.has(kind) && (kind !== "difference" || isApart())) : usual;
}

function buildTools() {
  const boxes = kinds().map(kind => element("label", {}, element("input", {
    type: "checkbox",
    value: kind,
    onchange: () => {
      set({ maps: new Set([...part.tools.querySelectorAll("input:checked")].map(box => box.value)) });
    }
  }), kind));
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
      const canvas = element("canvas", { tabIndex: 0,
      role: "application", "aria-roledescription": "heat map" });
      const map = { kind, canvas, caption: element("figcaption") };
      listen(map);
      maps.push(map);
      return element("figure", { "data-map": kind }, map.caption, canvas);
    }));
  }
  for (const map of maps) {
    map.caption.replaceChildren(element("b", {}, title(map.kind)), ...legend(map.kind));
    map.canvas.setAttribute("aria-label",
      `${title(map.kind)}, layer ${state.layer}, group ${state.group}: queries down, ` +
      "key blocks across. Arrow keys move the pinned query and block, plus and minus zoom, 0 shows the whole."
      );
  }
  for (const box of part.tools.querySelectorAll("input")) box.checked = wanted.includes(box.value);
}

function legend(kind) {
  const key = (colour, text) => [" ", element("span", { className: "ms-whole" }, element("span", { className: "ms-key",
    style: `background: rgb(${colour})` }), text)];
  const look = colours();
  if (kind === "difference") {
    const isOracle = other() === oracle, [own, best] = alone();
    return [":", key(look.both, "both"), key(look.only, isOracle ? `${state.selector} alone: ${own}` : own), key(look
      .missed, isOracle ? `oracle alone: ${best}` : best)].flat();
  }
  const of = kind === "probability" ? ["0", "¼", "1"] : ["no query", "", "every query"];
  return [":", key(mix(look.ramp, 0), of [0]), of [1] ? key(mix(look.ramp, 0.5), of [1]) : [],
    key(mix(look.ramp, 1), of [2])
  ].flat();
}

function view() {
  const whole = [0, layer.queries, 0, layer.blocks],
    [q0, q1, b0, b1] = state.view ?? whole;
  const span = (low, high, most) => {
    const length = Math.min(Math.max(high - low, 4), most),
      begin = Math.min(Math.max(low, 0), most - length);
    return [Math.round(begin), Math.round(begin + length)];
  };
  return [...span(q0, q1, layer.queries), ...span(b0, b1, layer.blocks)];
}

// Probabilities and colours of bytes, looked up: an image has millions of them.
const SQUARES = Float32Array.from({ length: 256 }, (_, value) => (value / 255) ** 2);
const pixel = ([r, g, b]) => (255 << 24 | Math.round(b) << 16 | Math.round(g) << 8 | Math.round(r)) >>> 0;
const ramps = new Map();
function rampPixels(look) {
  if (!ramps.has(look))
    ramps.set(look, Uint32Array.from({ length: 256 }, (_, value) => pixel(mix(look.ramp, value / 255))));
  return ramps.get(look);
}

// Of a block, for each row y of cells from `from` on, whose queries are edges[y] to edges[y + 1]: how many of them
// chose it, of a byte all eight at once, or how much probability they give it; `most` has the most of several blocks.
const BITS = Uint8Array.from({ length: 256 }, (_, value) => value.toString(2).replaceAll("0", "").length);
function countBits(bytes, at, edges, from, most) {
  for (let y = from; y < most.length; ++y) {
    const last = edges[y + 1];
    let all = 0;
    for (let row = edges[y]; row < last;) {
      const end = Math.min((row & ~7) + 8, last);
      all += BITS[bytes[at + (row >> 3)] & (1 << end - (row & ~7)) - (1 << (row & 7))];
      row = end;
    }
    if (all > most[y]) most[y] = all;
  }
}

function addSquares(bytes, at, edges, from, most) {
  for (let y = from; y < most.length; ++y) {
    const last = at + edges[y + 1];
    let all = 0;
    for (let place = at + edges[y]; place < last; ++place) all += SQUARES[bytes[place]];
    if (all > most[y]) most[y] = all;
  }
}

// The bytes of a map of this kind, of the group alone: of the difference those chosen by the selector alone, by
// what it stands beside alone, and by both, kept until others are asked for.
const apart = { key: "", parts: [] };
function bytesOf(kind) {
  const of = (bytes, length) => bytes.subarray(state.group * layer.blocks * length, (state.group + 1) * layer.blocks *
    length);
  if (kind === "probability") return [of(layer.mass, layer.queries)];
  if (kind !== "difference") return [of(layer.chosen[kind], layer.width)];
  const key = `${state.layer} ${state.group} ${state.selector} ${other()}`;
  if (apart.key === key) return apart.parts;
  const own = of(layer.chosen[state.selector], layer.width), best = of(layer.chosen[other()], layer.width);
  const parts = [0, 1, 2].map(() => new Uint8Array(own.length));
  for (let i = 0; i < own.length; ++i) {
    parts[0][i] = own[i] & ~best[i];
    parts[1][i] = best[i] & ~own[i];
    parts[2][i] = own[i] & best[i];
  }
  Object.assign(apart, { key, parts });
  return parts;
}

function mixed(look, shares) { // of the difference
  const rest = 1 - shares[0] - shares[1] - shares[2];
  return pixel(look.none.map((value, i) => value * rest + look.only[i] * shares[0] + look.missed[i] * shares[1] + look
    .both[i] * shares[2]));
}

// A cell of the image covers whole queries and blocks: the mean over its queries, the most over its blocks.
function render(kind, columns, rows) {
  const [q0, q1, b0, b1] = view(), look = colours(), ramp = rampPixels(look), parts = bytesOf(kind);
  const nx = Math.min(columns, b1 - b0), ny = Math.min(rows, q1 - q0);
  const image = new ImageData(nx, ny), pixels = new Uint32Array(image.data.buffer);
  const none = pixel(look.none), isMass = kind === "probability", width = isMass ? layer.queries : layer.width;
  const edges = Int32Array.from({ length: ny + 1 }, (_, y) => q0 + Math.floor(y * (q1 - q0) / ny));
  const most = parts.map(() => new Float32Array(ny)), add = isMass ? addSquares : countBits;
  pixels.fill(pixel(look.future));
  for (let x = 0, from = 0; x < nx; ++x) {
    const begin = b0 + Math.floor(x * (b1 - b0) / nx), end = b0 + Math.floor((x + 1) * (b1 - b0) / nx);
    while (from < ny && ownBlock(edges[from + 1] - 1) < begin) ++from; // who sees none of them
    for (const [i, bytes] of parts.entries()) {
      most[i].fill(0);
      for (let block = begin; block < end; ++block) add(bytes, block * width, edges, from, most[i]);
    }
    for (let y = from; y < ny; ++y) {
      const n = edges[y + 1] - edges[y], share = most[0][y] / n;
      if (kind !== "difference") pixels[y * nx + x] = ramp[Math.round(255 * Math.min(1, isMass ? Math.sqrt(share) :
        share))];
      else if (!(most[0][y] || most[1][y] || most[2][y])) pixels[y * nx + x] = none;
      else {
        const all = Math.max(n, most[0][y] + most[1][y] + most[2][y]);
        pixels[y * nx + x] = mixed(look, most.map(counts => counts[y] / all));
      }
    }
  }
  return image;
}

function draw(map, again = true) {
  const { canvas } = map, scale = Math.min(devicePixelRatio || 1, 2);
  map.width ||= canvas.clientWidth || 320; // asked for once: each time it lays out the page
  const { width } = map, height = Math.round(Math.min(width, 440)) + MARGIN.bottom;
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const plot = {
    x: MARGIN.left,
    y: MARGIN.top,
    w: width - MARGIN.left - MARGIN.right,
    h: height - MARGIN.top - MARGIN.bottom
  };
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
  const pen = canvas.getContext("2d"),
    look = colours(),
    [q0, q1, b0, b1] = view();
  pen.scale(scale, scale);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(map.image, plot.x, plot.y, plot.w, plot.h);
  const atRow = row => plot.y + (row - q0) / (q1 - q0) * plot.h,
    atBlock = block => plot.x + (block - b0) / (b1 - b0) * plot.w;
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
    const row = rowOf(state.query),
      thick = Math.max(plot.h / (q1 - q0), 2);
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
  const nice = (span, most) => [1, 2, 5].flatMap(n => [0, 1, 2, 3, 4, 5, 6].map(e => n * 10 ** e)).sort(
    (a, b) => a - b).find(step => span / step <= most);
  const low = layer.positions[q0],
    high = layer.positions[q1 - 1],
    step = nice(high - low + 1, plot.h / 36);
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
  pen.fillStyle = look.mark; // of what is searched for
  for (const token of found) {
    const x = atBlock((token + 0.5) / size),
      row = rowOf(token);
    if (x >= plot.x && x <= plot.x + plot.w) pen.fillRect(x - 1, plot.y - 8, 2, 7);
    if (layer.positions[row] === token && row >= q0 && row < q1) pen.fillRect(plot.x - 4, atRow(row), 4, 1.5);
  }
}

// ---- Pointer, touch and keys on a map

function placeOf(map, event) {
  const box = map.canvas.getBoundingClientRect(),
    [q0, q1, b0, b1] = view();
  const x = (event.clientX - box.left - map.plot.x) / map.plot.w,
    y = (event.clientY - box.top - map.plot.y) / map.plot.h;
  const inside = x >= 0 && x < 1 && y >= 0 && y < 1;
  return {
    x,
    y,
    inside,
    row: Math.min(Math.max(q0 + Math.floor(y * (q1 - q0)), q0), q1 - 1),
    block: Math.min(Math.max(b0 + Math.floor(x * (b1 - b0)), b0), b1 - 1)
  };
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
  set({ query: layer.positions[row], block: Math.min(block, ownBlock(row)) });
}

function listen(map) {
  const { canvas } = map, fingers = new Map();
  let began = null,
    pinch = null;
  const local = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event
      .clientY - box.top
    ]; };
  canvas.addEventListener("pointerdown", event => {
    fingers.set(event.pointerId, event);
    if (fingers.size === 1) began = event;
    else { began = null;
      pinch = null; }
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (fingers.size === 2) {
      const [a, b] = fingers.values(), apart = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      const middle = placeOf(map, { clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) /
          2 });
      if (pinch && Math.abs(pinch / apart - 1) > 0.04) { zoom(pinch / apart, middle.x, middle.y);
        pinch = apart; }
      pinch ??= apart;
      return;
    }
    if (began && event.pointerType === "mouse") {
      const [x0, y0] = local(began), [x1, y1] = local(event);
      map.box = Math.hypot(x1 - x0, y1 - y0) > 6 ? [Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0),
        Math.abs(y1 - y0)
      ] : null;
      draw(map, false);
    }
    const place = placeOf(map, event);
    if (place.inside) tell(place.row, place.block);
  });
  canvas.addEventListener("pointerup", event => {
    fingers.delete(event.pointerId);
    const start = began,
      box = map.box;
    began = map.box = null;
    if (!start) return;
    const place = placeOf(map, event);
    if (box) {
      const from = placeOf(map, start),
        [a, b] = [from.row, place.row].sort((m, n) => m - n);
      const [c, d] = [from.block, place.block].sort((m, n) => m - n);
      set({ view: [a, b + 1, c, d + 1] });
    } else if (place.inside && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) < 8)
      pin(place.row, place.block);
  });
  canvas.addEventListener("pointercancel", event => { fingers.delete(event.pointerId);
    began = pinch = map.box = null; });
  canvas.addEventListener("dblclick", () => set({ view: null }));
  canvas.addEventListener("wheel", event => {
    if (document.activeElement !== canvas && !event.ctrlKey)
  return; // the page scrolls until the map was clicked
    event.preventDefault();
    const place = placeOf(map, event);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place.x, place.y);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const step = event.shiftKey ? 10 : 1;
    const row = state.query === null ? view()[0] : rowOf(state.query),
      block = state.block ?? view()[2];
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0,
        step] };
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
  const position = layer.positions[row],
    choosers = data.selectors.filter(name => isChosen(name, state.group, block, row));
  const isFuture = block > ownBlock(row);
  part.under.replaceChildren(`Query ${count(position)} `, words(`“${visible(tokenText(position))}”`),
    ` · block ${block}, tokens `,
    blockRange(block), isFuture ? ": the future" : `: chosen by ${choosers.join(", ") || "none"}` +
    (layer.mass ? `, probability ${percent(massOf(state.group, block, row))}` : ""),
    element("br"), words(oneLine(blockText(block)).slice(0, 150)));
}
