// SPDX-License-Identifier: MIT
// The address, and what a change of state paints anew.

// ---- All of it

function sampledText() {
  const many = data.step > 1 ?
    `One of ${data.step} analysed queries is here: ${count(layer.queries)} of ${count(data.analysed)}` :
    `All ${count(layer.queries)} analysed queries are here`;
  const ofAll = data.analysed < data.tokens ? `, of ${count(data.tokens)} tokens` : "";
  const two = data.beside ? `Selectors with${MARK} are of ${data.beside.b}, the others of ${data.beside.a}` + (data.beside
    .apart ? `; what differs: ${data.beside.apart}. ` : ". ") : "";
  return two + many + ofAll + (data.sequences > 1 ? `, of sequence ${data.sequence} alone, of ${data.sequences}` : "") + "." +
    (layer.mass ? " Probabilities are exact to 0.4 percentage points." : "");
}

function address() {
  const fields = new URLSearchParams();
  for (const name of ["layer", "group", "query", "selector", "beside", "block", "find", "colour"])
    if (state[name] !== null && state[name] !== "") fields.set(name, state[name]);
  if (state.view) fields.set("view", view().join("-"));
  if (state.maps) fields.set("maps", [...state.maps].join("+"));
  return `#${fields}`;
}

function readAddress() {
  const fields = new URLSearchParams(location.hash.slice(1)),
    whole = name => {
      const value = fields.get(name);
      return value !== null && /^\d+$/.test(value) ? +value : null;
    };
  if (![...fields.keys()].some(name => name in state)) return {};
  const next = { query: whole("query"), block: whole("block"), find: fields.get("find") ?? "" };
  if (byLayer.has(whole("layer"))) next.layer = whole("layer");
  if (whole("group") < data.groups && whole("group") !== null) next.group = whole("group");
  if (data.selectors.includes(fields.get("selector"))) next.selector = fields.get("selector");
  next.beside = data.selectors.includes(fields.get("beside")) ? fields.get("beside") : null;
  if (fields.get("colour") in COLOURS) next.colour = fields.get("colour");
  const edges = fields.get("view")?.split("-").map(Number);
  next.view = edges?.length === 4 && edges.every(Number.isFinite) && edges[0] < edges[1] && edges[2] < edges[
    3] ? edges : null;
  next.maps = fields.has("maps") ? new Set(fields.get("maps").split(/[ +]/)) : null;
  return next;
}

let saving = 0;

async function set(change, keepAddress = false) {
  const began = performance.now(),
    old = { ...state };
  Object.assign(state, change);
  if (layer === null || state.layer !== layer.layer) layer = await openLayer(state.layer);
  if (state.query !== null) state.query = Math.min(Math.max(state.query, 0), data.tokens - 1);
  if (state.find !== old.find || !layer) search();
  const changed = names => names.some(name => name in change);
  const everything = changed(["layer", "group", "selector", "beside", "start"]);
  if (everything) { part.sampled.textContent = sampledText();
    paintGrids(); }
  if (everything || changed(["maps"])) buildMaps();
  const again = everything || changed(["view", "maps"]);
  for (const map of maps) draw(map, again);
  if (everything || changed(["query"])) paintQuery();
  if (everything || changed(["block"])) paintBlock();
  if ((everything || changed(["query", "block"])) && state.query !== null && state.block !== null)
    tell(rowOf(state.query), Math.min(state.block, layer.blocks - 1));
  if (everything || changed(["query", "find", "block", "colour"])) {
    if (change.query !== undefined && change.query !== null) goTo(state.query);
    if (change.find && found.length) goTo(found[0]);
    paintText();
  }
  for (const [name, input] of Object.entries(inputs))
    if (document.activeElement !== input) input.value = state[name] ?? "";
  if (!keepAddress) { // later, as it takes milliseconds of its own
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState(null, "", address()));
  }
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
  part.under.textContent =
    "Rest on a map: the query and the block stand here. A click or tap pins them; a drag, two fingers, or after a " +
    "click the wheel, zooms; a double click shows the whole.";
  buildBar();
  buildGrids();
  buildTools();
  if (hasText()) buildText();
  await set({ ...readAddress(), start: true }, true);
  root.dataset.ready = performance.now().toFixed(0);
}
addEventListener("hashchange", () => { const next = readAddress(); if (Object.keys(next).length) set({ ...next,
    start: true }, true); });
for (const [event, printed] of [["beforeprint", true], ["afterprint", false]])
  addEventListener(event, () => { isPrinted = printed;
    everythingAgain(); });
dark.addEventListener("change", everythingAgain);
let resized = 0;
addEventListener("resize", () => { cancelAnimationFrame(resized);
  resized = requestAnimationFrame(everythingAgain); });
start().catch(error => { root.textContent = `The microscope cannot be shown: ${error.message}`; });
