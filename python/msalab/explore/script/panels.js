// SPDX-License-Identifier: MIT
// A query, a key block, and the text.

// ---- A query

function chosenBlocks(selector, group, row) {
  const list = [];
  for (let block = 0; block <= ownBlock(row); ++block)
    if (isChosen(selector, group, block, row)) list.push(block);
  return list;
}
const sum = (list, value) => list.reduce((total, one) => total + value(one), 0);

function context(token, before = 40, after = 12) {
  const begin = Math.max(0, token - before),
    end = Math.min(ends.length, token + after + 1);
  return element("div", { className: "ms-context ms-words" }, begin ? "…" : "", rangeText(begin, token),
    element("span", { className: "ms-query" }, tokenText(token) || "∅"), token + 1 < end ? rangeText(token +
      1, end) : "",
    end < ends.length ? "…" : "");
}

function blockButton(block) {
  return element("button", {
    type: "button",
    "data-block": block,
    title: "who looks at this block",
    onclick: () => set({ block })
  }, `${block}`);
}

function paintQuery() {
  const box = part.query;
  box.replaceChildren(element("h3", {}, "Query"));
  if (state.query === null) {
    box.append(element("p", { className: "ms-soft" },
      "Click a map or a word of the text, or type a position: its blocks stand here."));
    return;
  }
  const row = rowOf(state.query),
    position = layer.positions[row],
    group = state.group;
  box.append(element("p", {}, `Token ${count(position)}, in block ${ownBlock(row)}` +
    (position === state.query ? "" :
      `, the nearest to ${count(state.query)} of the queries that this page has`) +
    `; layer ${state.layer}, group ${group}.`));
  if (hasText()) box.append(context(position));
  const own = chosenBlocks(state.selector, group, row),
    best = isApart() ? chosenBlocks(other(), group, row) : [];
  const [ofOwn, ofOther] = alone(), name = other() === oracle ? "the oracle" : other();
  const missed = best.filter(block => !own.includes(block)),
    wasted = own.filter(block => isApart() && !best.includes(block));
  const holds = list => layer.mass ?
    ` with ${percent(sum(list, block => massOf(group, block, row)))} of its probability` : "";
  const sentence = [`${state.selector} chose ${own.length} blocks${holds(own)}`];
  if (isApart()) sentence.push(`${name} ${best.length}${holds(best)}`,
    `${missed.length} ${ofOther}${holds(missed)}`, `${wasted.length} ${ofOwn}${holds(wasted)}`);
  box.append(element("p", { className: "ms-sentence" }, `${sentence.join("; ")}.` +
    (layer.mass ? "" :
      " Probabilities are not known: results with --dump mass, or --activations, have them.")));
  const others = data.selectors.filter(name => name !== state.selector && (name !== other() || !isApart()));
  const list = [...new Set([...own, ...best])].sort((a, b) => layer.mass ?
    massOf(group, b, row) - massOf(group, a, row) || a - b : a - b);
  const rows = list.map(block => {
    const mine = own.includes(block),
      ideal = best.includes(block),
      also = others.filter(name => isChosen(name, group, block, row));
    const verdict = !isApart() ? "" : mine && ideal ? "both" : mine ? ofOwn : ofOther;
    return element("tr", { "data-block": block, "data-verdict": verdict }, element("td", {}, blockButton(
        block)),
      layer.mass ? element("td", {}, percent(massOf(group, block, row)), " ", element("span", {
        className: "ms-amount",
        style: `width: ${Math.max(2, 60 * rootOf(group, block, row))}px`
      })) : null,
      element("td", { className: verdict === ofOther ? "ms-missed" : "" }, verdict || (mine ? "chosen" :
        "")),
      element("td", {}, words(oneLine(blockText(block)) || `tokens ${blockRange(block)}`),
        also.length ? element("div", { className: "ms-soft" }, `also of ${also.join(", ")}`) : null));
  });
  const heads = ["block", ...(layer.mass ? ["probability"] : []), "", hasText() ? "text" : "tokens"];
  box.append(element("div", { className: "ms-scroll", tabIndex: 0 }, element("table", {}, element("thead", {},
    element("tr", {}, heads.map(text => element("th", { scope: "col" }, text)))), element("tbody", {},
    rows))));
}

// ---- A key block

function paintBlock() {
  const box = part.block,
    { block } = state,
    group = state.group;
  box.replaceChildren(element("h3", {}, "Key block"));
  if (block === null || block >= layer.blocks) {
    box.append(element("p", { className: "ms-soft" },
      "Click a map or the number of a block: who looks at it stands here."));
    return;
  }
  const sees = [],
    mass = [];
  for (let row = 0; row < layer.queries; ++row)
    if (ownBlock(row) >= block) sees.push(row);
  box.append(element("p", {}, `Block ${block}, tokens ${blockRange(block)}.`));
  if (hasText()) box.append(element("div", { className: "ms-context ms-words" }, ...tokensOfBlock(block)));
  const looks = selector => sees.filter(row => isChosen(selector, group, block, row)).length;
  const counts = data.selectors.map(name => `${name} ${count(looks(name))}`);
  box.append(element("p", { className: "ms-lookers" },
    `Of ${count(sees.length)} queries that see it, so many chose it: ${counts.join(", ")}.`));
  if (layer.drawn) {
    const tokens = drawnTokens(block), whole = sum(tokens, one => one.share);
    const strongest = tokens.sort((a, b) => b.share - a.share).slice(0, 3);
    box.append(element("p", { className: "ms-strongest" },
      `Its tokens draw ${percent(whole)} of all probability; most of it: `,
      ...strongest.flatMap((one, place) => [place ? ", " : "", words(`“${visible(tokenText(one.token))}”`),
        ` (token ${count(one.token)}) ${percent(one.share / whole)}`
      ]), "."));
  }
  const later = sees.filter(row => ownBlock(row) > block); // its own queries always choose it
  const order = layer.mass ? later.sort((a, b) => massOf(group, block, b) - massOf(group, block, a)) :
    later.filter(row => isChosen(state.selector, group, block, row));
  box.append(element("p", {}, layer.mass ? "Queries of later blocks that give it most:" :
      `Queries of later blocks for which ${state.selector} chose it:`),
    element("div", { className: "ms-list ms-from" }, order.length ? order.slice(0, 12).map(row => element("button", {
        type: "button",
        onclick: () => set({ query: layer.positions[row] })
      }, `${count(layer.positions[row])} `,
      words(visible(tokenText(layer.positions[row]))), layer.mass ?
      ` ${percent(massOf(group, block, row))}` : "")) : "none"));
}

function drawnTokens(block) {
  const begin = block * size, length = Math.min(size, layer.tokens - begin);
  return Array.from({ length }, (_, i) => ({ token: begin + i, share: drawnOf(state.group, begin + i) }));
}

function tokensOfBlock(block) {
  const begin = block * size,
    end = Math.min(begin + size, ends.length),
    spans = [];
  for (let token = begin; token < end; ++token) {
    const span = element("span", {}, tokenText(token));
    if (layer.drawn) light(span, Math.sqrt(drawnOf(state.group, token) / layer.most[state.group]));
    spans.push(span);
  }
  return spans;
}

function light(span, share) { span.style.background = share > 0.04 ?
    `rgba(${lit()}, ${(0.5 * share).toFixed(3)})` : ""; }
const lit = () => isDark() ? "86, 180, 233" : "0, 114, 178";

// ---- The text

const PAGE = 2048; // tokens that are shown at a time
const COLOURS = { tokens: "attention that each token draws", blocks: "how often each block is chosen",
  query: "what the query chose" };
let begins = 0;

function colourKinds() { return Object.keys(COLOURS).filter(kind => kind !== "tokens" || layer.drawn); }

function colourShown() {
  const wanted = state.colour ?? (layer.drawn ? "tokens" : "blocks");
  return wanted === "query" && state.query === null || !colourKinds().includes(wanted) ? colourKinds()[0] :
    wanted;
}
const often = new Map();

function shares(kind) { // of each block, 0 to 1
  const key = `${state.layer} ${state.group} ${state.selector}`;
  if (kind === "blocks" && often.has(key)) return often.get(key);
  const list = new Float32Array(layer.blocks),
    group = state.group;
  const row = state.query === null ? 0 : rowOf(state.query),
    bytes = layer.chosen[state.selector];
  for (let block = 0; block < layer.blocks; ++block) {
    if (kind === "query") {
      list[block] = !isChosen(state.selector, group, block, row) ? 0 : layer.mass ? 0.25 + 0.75 * rootOf(group,
        block, row) : 1;
      continue;
    }
    let chosen = 0,
      seen = 0;
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

let parts = null; // of the text, built once
function buildText() {
  parts = {
    colour: element("select", { "aria-label": "colour of the text", onchange: event => set({ colour: event
          .target.value }) }),
    strip: element("canvas", { className: "ms-strip",
    role: "img", "aria-label": "the whole text from its beginning to its end" }),
    strongest: element("div", { className: "ms-list" }),
    found: element("div", {}),
    page: element("div", { className: "ms-text ms-context ms-words", tabIndex: 0,
    role: "region", "aria-label": "the text" }),
    place: element("span", { className: "ms-soft" })
  };
  const turn = by => () => { begins = Math.min(Math.max(0, begins + by), Math.max(0, ends.length - PAGE));
    paintText(); };
  parts.turning = element("span", {}, element("button", { type: "button", onclick: turn(-
      PAGE), "aria-label": "earlier text" }, "←"),
    " ", element("button", { type: "button", onclick: turn(PAGE), "aria-label": "later text" }, "→"));
  part.text.append(element("h3", {}, "Text"), element("div", { className: "ms-tools" }, element("label", {},
      "coloured by", parts.colour),
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

function goTo(token) { if (token < begins || token >= begins + PAGE) begins = Math.max(0, Math.min(token - 64,
    ends.length - PAGE)); }

function paintText() {
  if (!hasText()) {
    part.text.replaceChildren(element("h3", {}, "Text"), element("p", { className: "ms-soft" },
      "These results come without the text: msalab explore --activations FILE, of a capture that has it, shows it."
      ));
    return;
  }
  const kind = colourShown(),
    of = kind === "tokens" ? null : shares(kind),
    isFound = new Set(found);
  parts.colour.replaceChildren(...colourKinds().map(name => element("option", {
    value: name,
    disabled: name === "query" &&
      state.query === null
  }, name === "tokens" ? COLOURS[name] : `${COLOURS[name]}: ${state.selector}`)));
  parts.colour.value = kind;
  const share = token => of ? of [Math.floor(token / size)] ?? 0 : Math.sqrt(drawnOf(state.group, token) / layer
    .most[state.group]);
  const position = state.query === null ? -1 : layer.positions[rowOf(state.query)];
  fillPage();
  // A click changes few of the words: what is as it was is left alone.
  const look = [kind, state.layer, state.group, kind === "tokens" ? "" : state.selector, kind === "query" ?
    position : "",
    state.find, begins, colours() === LOOKS.dark
  ].join();
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
      const block = Math.floor(token / size),
        sup = element("sup", { title: `block ${block}` }, String(block));
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
  parts.place.textContent = ends.length > PAGE ?
    `tokens ${count(begins)} to ${count(end - 1)} of ${count(ends.length)}` : "";
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
  parts.strongest.append(element("span", { className: "ms-soft" }, "Words that draw most attention here:"), ...
    list.map(one =>
      element("button", { type: "button", title: `${one.times} times in the text; shows where`, onclick: () =>
            set({ find: one.word }) },
        words(one.word), ` ${percent(one.share)}`)));
}

function paintFound() {
  parts.found.replaceChildren();
  if (!state.find) return;
  const blocks = new Map();
  for (const token of found) blocks.set(Math.floor(token / size), (blocks.get(Math.floor(token / size)) ?? 0) +
    1);
  const chosen = shares("blocks");
  parts.found.append(element("p", { className: "ms-found" }, words(`“${state.find}”`),
      ` stands in ${blocks.size} blocks; ${state.selector} chose the block in so many of the queries that see it:`
      ),
    element("div", { className: "ms-list ms-scroll", style: "max-height: 120px" }, [...blocks.keys()].slice(0,
      400).map(block =>
      element("button", { type: "button", "data-block": block, onclick: () => { goTo(block * size);
            set({ block }); } },
        `${block}: ${percent(chosen[block] ?? 0)}`))));
}

function paintStrip(share, isFound, position) {
  const canvas = parts.strip,
    scale = Math.min(devicePixelRatio || 1, 2),
    width = parts.width ||= canvas.clientWidth || 320;
  canvas.width = width * scale;
  canvas.height = 26 * scale;
  const pen = canvas.getContext("2d"),
    look = colours(),
    all = ends.length;
  pen.scale(scale, scale);
  for (let x = 0; x < width; ++x) {
    let most = 0;
    for (let token = Math.floor(x * all / width); token < Math.max((x + 1) * all / width, Math.floor(x * all /
        width) + 1) && token < all; ++token)
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
