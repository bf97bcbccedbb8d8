// SPDX-License-Identifier: MIT
// The parts of the page, the grid of all layers, and the colours.

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
  inputs.beside = element("select", { onchange: event => set({ beside: event.target.value || null }) },
    element("option", { value: "" }, data.beside ? "the other run" : oracle ?? "nothing"),
    data.selectors.map(name => option(name)));
  inputs.query = element("input", {
    type: "number",
    min: 0,
    max: data.tokens - 1,
    placeholder: "position",
    onchange: event => set({ query: event.target.value === "" ? null : +event.target.value })
  });
  inputs.find = element("input", {
    type: "search",
    placeholder: "a word",
    disabled: !hasText(),
    oninput: event => set({ find: event.target.value })
  });
  for (const [name, input] of Object.entries(inputs))
    part.bar.append(element("label", {}, name, input));
}

const MEASURES = [
  ["mass_kept", "Mass kept"],
  ["block_recall", "Block recall"],
  ["difference", "Mass kept"],
  ["sink", "Sink"]
];

const hasNumbers = () => data.layers.length <= 16; // there is room for them

function buildGrids() {
  part.grids.append(element("h3", {}, "All layers"), element("p", { className: "ms-soft" },
    "Layers across, groups of query heads down; " +
    "the sink is the probability on token 0. A click opens the layer and group below; arrow keys move."));
  for (const [measure, title] of MEASURES) {
    const head = element("tr", {}, element("th", {}, "layer"),
      data.layers.map(of => element("th", { scope: "col" }, String(of.layer))));
    const rows = Array.from({ length: data.groups }, (_, group) => element("tr", {},
      element("th", { scope: "row" }, `group ${group}`), data.layers.map(of => element("td", {}, element(
        "button", {
          type: "button",
          "data-measure": measure,
          "data-layer": of.layer,
          "data-group": group,
          onclick: () => set({ layer: of.layer, group }),
          onkeydown: moveInGrid
        })))));
    part.grids.append(element("table", { className: hasNumbers() ? "" : "ms-many" }, element("caption", {}, title, element(
      "span", { "data-of": measure })),
      element("thead", {}, head), element("tbody", {}, rows)));
  }
}

function moveInGrid(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] } [event.key];
  if (!step) return;
  event.preventDefault();
  const cell = event.target.parentNode,
    row = cell.parentNode;
  const next = (step[1] ? row.parentNode.rows[row.rowIndex - 1 + step[1]] : row)?.cells[cell.cellIndex + step[
    0]];
  next?.querySelector("button")?.focus();
}

function paintGrids() {
  for (const span of part.grids.querySelectorAll("span[data-of]"))
    span.textContent = span.dataset.of === "sink" ? ", dense attention" : span.dataset.of === "difference" ?
      `, ${state.selector} minus ${other() ?? "nothing"}` : `, ${state.selector}`;
  const apart = (of, group) => {
    const [own, best] = [state.selector, other()].map(name => of.mass_kept[name]?.[group] ?? null);
    return own === null || best === null ? null : own - best;
  };
  const far = Math.max(0.01, ...data.layers.flatMap(of => of.sink.map((_, group) => Math.abs(apart(of, group)))));
  const largest = Math.max(0.05, ...data.layers.flatMap(of => of.sink));
  for (const button of part.grids.querySelectorAll("button")) {
    const { measure } = button.dataset, of = byLayer.get(+button.dataset.layer), group = +button.dataset.group;
    const value = measure === "sink" ? of.sink[group] : measure === "difference" ? apart(of, group) : of[measure][state
      .selector][group];
    const look = colours();
    const [r, g, b] = measure === "difference" ? mix([look.missed, look.none, look.only], 0.5 + (value ?? 0) / far / 2) :
      mix(look.ramp, value === null ? 0 : measure === "sink" ? value / largest : value);
    button.style.background = `rgb(${r},${g},${b})`;
    button.style.color = luminance(r, g, b) > 0.18 ? "#000" : "#fff";
    button.textContent = !hasNumbers() ? "" : value === null ? "–" : value.toFixed(2);
    const text =
      `layer ${of.layer}, group ${group}: ${measure === "difference" ? "difference in mass kept" : measure.replace("_",
        " ")} ${value === null ? "unknown" : +value.toFixed(4)}`;
    button.title = text;
    button.setAttribute("aria-label", text);
    const here = of.layer === state.layer && group === state.group;
    button.setAttribute("aria-pressed", here);
    button.tabIndex = here ? 0 : -1;
  }
}

// ---- Colours

const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = {
  light: [
    [255, 255, 255],
    [158, 208, 238],
    [42, 142, 201],
    [0, 92, 148],
    [0, 38, 70]
  ],
  dark: [
    [29, 32, 40],
    [10, 70, 112],
    [0, 114, 178],
    [86, 180, 233],
    [226, 243, 255]
  ]
};
const LOOKS = {
  light: {
    ramp: RAMPS.light,
    only: [0, 114, 178],
    missed: [213, 94, 0],
    both: [148, 153, 166],
    none: [255, 255, 255],
    future: [233, 235, 240],
    soft: "#5a6072",
    pin: "#009e73",
    mark: "#a08a00"
  },
  dark: {
    ramp: RAMPS.dark,
    only: [86, 180, 233],
    missed: [230, 159, 0],
    both: [110, 116, 132],
    none: [29, 32, 40],
    future: [44, 48, 59],
    soft: "#a3a9ba",
    pin: "#2bd4a4",
    mark: "#f0e442"
  }
};
let isPrinted = false; // paper is white
const isDark = () => dark.matches && !isPrinted;
const colours = () => isDark() ? LOOKS.dark : LOOKS.light;

function mix(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1),
    low = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[low].map((value, i) => Math.round(value + (place - low) * (ramp[low + 1][i] - value)));
}
const linear = value => value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
const luminance = (r, g, b) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
