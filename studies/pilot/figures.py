# SPDX-License-Identifier: MIT
"""Pictures of a pilot sweep. Thin lines are seeds, thick ones their mean; an arm has one colour in
all of them."""

from __future__ import annotations

import numpy as np

from msalab.plots import style
from msalab.table import Table

from .runs import STALLED, Records, Run, masses_of

SEED = {"linewidth": 0.7, "alpha": 0.5, "marker": "", "linestyle": "-"}
MEGA = 1e6
NONE_LEARNED = f"no run has learned: none ends below {STALLED:.2f} nats a byte"
KEPT = {"score_recall": "score recall", "mass_kept": "mass kept"}
NORMS = {"gradient_norm": "gradient norm", "index_gradient_norm": "of the Index Branch"}
LOOKS = {"kl": "KL, nats", "score_recall": "score recall", "block_recall": "block recall",
         "mass_kept": "mass kept", "entropy_dense": "entropy dense, nats",
         "entropy_sparse": "entropy sparse, nats", "entropy_index": "entropy index, nats",
         "sink_mass_dense": "mass on token 0", "first_block_rate": "block 0 rate",
         "local_rate": "local rate", "far_overlap": "far overlap",
         "learned_sink_mass": "learnable sink"}


def _done(records: Records, arm: str) -> dict[int, Run]:
    return {seed: run for seed, run in records.get(arm, {}).items() if not run.diverged}


def _draw(axes, curves: dict[int, tuple[np.ndarray, np.ndarray]], look: dict, label: str):
    """Lines over the same x, and their mean."""
    for seed, (x, y) in curves.items():
        line, = axes.plot(x, y, **{**look, **SEED})
        style.name_on_hover(line, f"{label}, seed {seed}")
    ends = [x for x, _ in curves.values()]
    if ends and all(np.array_equal(x, ends[0]) for x in ends):
        axes.plot(ends[0], np.mean([y for _, y in curves.values()], axis=0), label=label, **look)


def _looks(records: Records) -> dict[str, dict]:
    """Colour, marker and dashes of each arm: where colours come again, dashes change."""
    return {arm: {**style.series_style(place),
                  "linestyle": ("-", "--", ":")[place // style.COLOURS % 3]}
            for place, arm in enumerate(records)}


def _lines(looks: dict[str, dict]) -> dict[str, dict]:
    """The same without markers, for curves of many points."""
    return {arm: {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.4}
            for arm, look in looks.items()}


def _learned(records: Records) -> Records:
    """Without runs that stalled, whose loss hides what parts the others."""
    learned = {arm: {seed: run for seed, run in _done(records, arm).items()
                     if not run.values["stalled"]} for arm in records}
    return {arm: runs for arm, runs in learned.items() if runs}


def _figure(panel_height: float, panels: int, records: Records):
    """A figure with room for a legend of all arms above its panels."""
    return style.new_figure(panel_height * panels + 0.4 + 0.2 * -(-len(records) // 3))


def _legend(figure, *panels):
    """One legend above the panels: each arm once."""
    handles = {label: handle for axes in panels
               for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)


def _over_bytes(run: Run, name: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
    steps, values = run.curves[name, part]
    return steps * run.bytes_per_step / MEGA, values


def _pairs(records: Records, against: str, curve):
    """(arm, seed -> difference to the run of `against` with this seed)."""
    for arm in records:
        if arm == against:
            continue
        both = {seed: (curve(run), curve(records[against][seed]))
                for seed, run in _done(records, arm).items() if seed in _done(records, against)}
        yield arm, {seed: (ours[0], ours[1] - theirs[1]) for seed, (ours, theirs) in both.items()
                    if np.array_equal(ours[0], theirs[0])}


def reference_of(records: Records) -> str:
    """Full attention where there is any."""
    return "full" if "full" in records else next(iter(records))


def _rows(kind: str, arm: str, curves):
    for seed, (x, y) in curves.items():
        yield from ((kind, arm, seed, *point) for point in zip(x.tolist(), y.tolist()))


@style.styled
def training_loss(records: Records):
    """(figure, table): loss in training, and its difference to the reference within a seed, of the
    runs that learn."""
    against, bare = reference_of(records), _lines(_looks(records))
    records = _learned(records)
    figure = _figure(2.5, 2, records)
    loss, difference = figure.subplots(2, 1, sharex=True)
    rows = []
    for arm in records:
        curves = {seed: _over_bytes(run, "loss") for seed, run in _done(records, arm).items()}
        _draw(loss, curves, bare[arm], arm)
        rows += _rows("loss", arm, curves)
    for arm, curves in _pairs(records, against, lambda run: _over_bytes(run, "loss")):
        _draw(difference, curves, bare[arm], arm)
        rows += _rows(f"loss − {against}", arm, curves)
    difference.axhline(0, color=style.REFERENCE, linewidth=0.8)
    if not records:
        style.say_instead(loss, NONE_LEARNED)
    loss.set_ylabel("training loss, nats")
    difference.set_ylabel(f"loss − {against}, nats")
    difference.set_xlabel("megabytes read")
    _legend(figure, loss)
    return figure, Table.from_rows(("curve", "arm", "seed", "megabytes", "value"), rows)


def _by_position(run: Run) -> tuple[np.ndarray, np.ndarray]:
    rows = run.answer["positions"].records()
    return (np.array([row["end_position"] for row in rows]),
            np.array([row["bits_per_byte"] for row in rows], float))


@style.styled
def bits_by_position(records: Records):
    """(figure, table): bits per byte at the end of training by the byte's position, and the
    difference to the reference within a seed, of the runs that learn."""
    against, looks = reference_of(records), _looks(records)
    records = _learned(records)
    figure = _figure(2.5, 2, records)
    bits, difference = figure.subplots(2, 1, sharex=True)
    rows = []
    for arm in records:
        curves = {seed: _by_position(run) for seed, run in _done(records, arm).items()}
        _draw(bits, curves, looks[arm], arm)
        rows += _rows("bits_per_byte", arm, curves)
    for arm, curves in _pairs(records, against, _by_position):
        _draw(difference, curves, looks[arm], arm)
        rows += _rows(f"bits_per_byte − {against}", arm, curves)
    difference.axhline(0, color=style.REFERENCE, linewidth=0.8)
    if not records:
        style.say_instead(bits, NONE_LEARNED)
    ticks = sorted({row[3] for row in rows})
    difference.set_xscale("log", base=2)
    difference.set_xticks(ticks, [str(tick) for tick in ticks])
    difference.set_xlabel("position, up to")
    bits.set_ylabel("bits per byte")
    difference.set_ylabel(f"bits per byte − {against}")
    _legend(figure, bits)
    return figure, Table.from_rows(("curve", "arm", "seed", "position", "value"), rows)


@style.styled
def retrieval_curves(records: Records):
    """(figure, table): share of right answers in training, a panel for each task."""
    looks = _looks(records)
    tasks = list(dict.fromkeys(task for arm in records for run in _done(records, arm).values()
                               for task in run.parts("exact_match")))
    figure = _figure(1.5, len(tasks), records)
    panels = np.atleast_1d(figure.subplots(len(tasks), 1, sharex=True, sharey=True))
    rows = []
    for axes, task in zip(panels, tasks):
        for arm in records:
            curves = {seed: _over_bytes(run, "exact_match", task)
                      for seed, run in _done(records, arm).items()}
            _draw(axes, curves, looks[arm], arm)
            rows += _rows(task, arm, curves)
        axes.set_title(task, loc="left")
        axes.set_ylim(-0.05, 1.05)
    panels[len(tasks) // 2].set_ylabel("right answers")
    panels[-1].set_xlabel("megabytes read")
    _legend(figure, *panels)
    return figure, Table.from_rows(("task", "arm", "seed", "megabytes", "exact_match"), rows)


@style.styled
def index_by_layer(records: Records, arm: str = "msa"):
    """(figure, table): score recall and mass kept by layer over the steps of an arm."""
    runs = _done(records, arm)
    layers = sorted({part for run in runs.values() for part in run.parts("score_recall")}, key=int)
    figure = style.new_figure(5.2)
    rows = []
    for axes, (name, label) in zip(figure.subplots(2, 1, sharex=True), KEPT.items()):
        for place, layer in enumerate(layers):
            curves = {seed: _over_bytes(run, name, layer) for seed, run in runs.items()}
            _draw(axes, curves, style.series_style(place), f"layer {layer}")
            rows += _rows(name, layer, curves)
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.03)
    axes.set_xlabel("megabytes read")
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("measure", "layer", "seed", "megabytes", "value"), rows)


@style.styled
def held_out_loss(records: Records):
    """(figure, table): bits per byte on held-out text at every evaluation."""
    looks = _looks(records)
    figure = _figure(3.2, 1, records)
    axes = figure.subplots()
    rows = []
    for arm in records:
        curves = {seed: _over_bytes(run, "bits_per_byte")
                  for seed, run in _done(records, arm).items()}
        _draw(axes, curves, looks[arm], arm)
        rows += _rows("bits_per_byte", arm, curves)
    axes.set_xlabel("megabytes read")
    axes.set_ylabel("bits per byte, held out")
    _legend(figure, axes)
    return figure, Table.from_rows(("curve", "arm", "seed", "megabytes", "value"), rows)


def _panels(records: Records, names: dict[str, str], curves_of):
    """(figure, panels, table): a panel for each of the names that a run has, arms in each."""
    looks = _lines(_looks(records))
    shown = {name: label for name, label in names.items()
             if any(run.parts(name) for arm in records for run in _done(records, arm).values())}
    figure = _figure(1.5, max(1, len(shown)), records)
    panels = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False)[:, 0]
    rows = []
    for axes, (name, label) in zip(panels, shown.items()):
        for arm in records:
            curves = {seed: curves_of(run, name) for seed, run in _done(records, arm).items()
                      if run.parts(name)}
            _draw(axes, curves, looks[arm], arm)
            rows += _rows(name, arm, curves)
        axes.set_title(label, loc="left")
    panels[-1].set_xlabel("megabytes read")
    _legend(figure, *panels)
    return figure, panels, Table.from_rows(("curve", "arm", "seed", "megabytes", "value"), rows)


@style.styled
def gradient_norms(records: Records):
    """(figure, table): norm of the gradient, and of the Index Branch's part, in training."""
    figure, panels, table = _panels(records, NORMS, _over_bytes)
    for axes in panels:
        axes.set_yscale("log")
    return figure, table


def _over_layers(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the layers that have the measure."""
    parts = [_over_bytes(run, name, part) for part in run.parts(name)]
    return parts[0][0], np.mean([values for _, values in parts], axis=0)


@style.styled
def probed_curves(records: Records):
    """(figure, table): what the probes find in training, mean over layers, a panel a measure."""
    figure, _, table = _panels(records, LOOKS, _over_layers)
    return figure, table


def with_sink(records: Records) -> dict[str, dict[int, Run]]:
    """Arm -> its runs that have a learnable sink, and probes of it by head."""
    found = {arm: {seed: run for seed, run in _done(records, arm).items()
                   if not np.isnan(run.answer["heads"]["head_learned_sink_mass"]).all()} for arm in records}
    return {arm: runs for arm, runs in found.items() if runs}


@style.styled
def sink_by_head(records: Records):
    """(figure, table): what the learnable sink takes, and beside it token 0, by layer and head at the end of training, in
    the attention that the layer does (fig:prelim-learnable-sink-vis). Seeds are averaged."""
    arms = with_sink(records)
    figure = style.new_figure(1.3 + 2.4 * len(arms))
    panels = figure.subplots(len(arms), 2, sharex=True, sharey=True, squeeze=False)
    rows = []
    for arm, runs in arms.items():
        heads = next(iter(runs.values())).answer["heads"]
        masses = zip(*(masses_of(run.answer["heads"]) for run in runs.values()))
        rows += [(arm, *row) for row in zip(heads["layer"].tolist(), heads["head"].tolist(),
                                            *(np.mean(one, axis=0).tolist() for one in masses))]
    table = Table.from_rows(("arm", "layer", "head", "learnable_sink", "token_0"), rows)
    most = max(table["learnable_sink"].max(), table["token_0"].max())
    for line, arm in zip(panels, arms):
        own = table.where(arm=arm)
        for axes, (name, label) in zip(line, (("learnable_sink", "learnable sink"), ("token_0", "token 0"))):
            image = axes.imshow(own[name].reshape(int(own["layer"].max()) + 1, -1), cmap=style.MAGNITUDE, vmin=0, vmax=most,
                                aspect="auto", interpolation="nearest")
            axes.grid(False)
            axes.set_title(f"{arm}: {label}", loc="left")
            axes.locator_params(integer=True)
    figure.supxlabel("query head")
    figure.supylabel("layer")
    figure.colorbar(image, ax=panels, location="top", aspect=40, pad=0.02).set_label("mean probability")
    return figure, table


def pictures(records: Records):
    """Name and (figure, table) of what the records have."""
    yield "pilot_loss", training_loss(records)
    yield "pilot_by_position", bits_by_position(records)
    yield "pilot_retrieval", retrieval_curves(records)
    yield "pilot_held_out", held_out_loss(records)
    yield "pilot_gradient", gradient_norms(records)
    yield "pilot_probes", probed_curves(records)
    for arm in records:
        if any(run.parts("score_recall") for run in _done(records, arm).values()):
            yield f"pilot_index_{arm}", index_by_layer(records, arm)
    if with_sink(records):
        yield "pilot_sink_by_head", sink_by_head(records)
