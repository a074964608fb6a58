"""What to know next to a verdict: the runs of one recipe, how they compare, and how they were analyzed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from initmem.errors import count, first_of
from initmem.intervention import Intervention
from initmem.measures.design import Analysis, plain
from initmem.measures.fit import has_moving_averages
from initmem.measures.scales import Failures
from initmem.measures.statistics import ALPHA
from initmem.measures.verdict import Memory, scales_text
from initmem.recipe import Recipe
from initmem.record import RunRecord

NEARLY_ALL = 0.9
FEW_SEEDS = 3  # up to so many miss most memories
SHOWN = 4  # files or versions in a note


def notes_of(row: Memory, records: Sequence[RunRecord], analysis: Analysis, failures: Failures) -> list[str]:
    """What is unusual about the runs of one recipe and about their analysis."""
    notes = []
    if 1 < row.n_seeds <= FEW_SEEDS:
        notes.append(f"{row.n_seeds} seeds miss most memories of a few standard deviations")
    runs = Counter(record.run.seed for record in plain(records))
    left_out: dict[str, list[str]] = {}
    for seed in row.dropped_seeds:
        why = "is not trained yet" if runs[seed] < row.n_scales else "has no finite value"
        left_out.setdefault(why, []).append(str(seed))
    for why, seeds in left_out.items():
        notes.append(f"left out, because a scale {why}: seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}")
    if row.noise_range == 0:
        same = "all seeds gave the same differences between scales"
        notes.append(f"{same}, so no noise was measured: is the seed used?")
    if analysis.alpha < ALPHA:
        notes.append(
            f"interim analysis {analysis.number}: tested at {100 * analysis.alpha:.2g}%, interval at "
            f"{100 * (1 - analysis.alpha):.3g}%; {100 * analysis.spent:.2g}% of alpha spent"
        )
    if analysis.unplanned:
        counts = ", then ".join(map(str, sorted({*analysis.unplanned, row.n_seeds})))
        notes.append(
            f"seeds were added after a first analysis ({counts}) without a plan: the error rate of the "
            f"verdict is above {100 * ALPHA:.2g}%"
        )
    if failures.untrained:
        notes.append(str(failures))
    if row.unclear_scales and row.verdict != "untrained":
        where = scales_text(row.unclear_scales)
        notes.append(
            f"chance is not known, and at {where} the metric did not improve on its first epoch by more than "
            'the tolerance: `forgets` is not possible (declare recipe={"classes": 10})'
        )
    kinds = (_intervention_notes, _early_notes, _length_notes, order_notes, provenance_notes)
    return notes + [note for more in kinds for note in more(records)]


def _intervention_notes(records: Sequence[RunRecord]) -> list[str]:
    """What to know about runs with interventions: mixed levels, early selection, lagging statistics."""
    touched = [record for record in plain(records) if record.run.intervention]
    notes = []
    if touched and len(touched) < len(plain(records)):
        notes.append("scales and interventions are compared together (--scales chooses some)")
    epochs = [(record, Intervention.parse(record.run.intervention).epoch) for record in touched]
    before = [record for record, epoch in epochs if epoch and (record.summary.tau_best or 0) <= epoch]
    if before:
        notes.append(f"{count(len(before), 'run')} returned a model from before the intervention")
    if any(epoch for _, epoch in epochs) and has_moving_averages(records[0].run.recipe):
        notes.append(
            "the moving averages of batch norm lag behind an intervention "
            '(batch_statistics = "re-estimated" avoids that)'
        )
    return notes


def _length_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether runs of user code still improve in the last epoch, and whether their lengths differ."""
    runs = [r for r in plain(records) if r.status == "completed" and r.run.recipe.is_pipeline]
    lasts = [r for r in runs if r.summary.tau_best == r.summary.epochs > 2 and not r.summary.tau_interp]
    selects = any(name in r.history for r in runs[:1] for name in ("val_loss", "val_accuracy"))
    notes = []
    if selects and len(lasts) >= NEARLY_ALL * len(runs):
        notes.append(
            f"still improving: the last epoch is selected in {len(lasts)} of {len(runs)} runs (train longer)"
        )
    updates = [r.provenance.get("updates") or 0 for r in runs]
    unit, lengths = ("updates", updates) if all(updates) else ("epochs", [r.summary.epochs for r in runs])
    if runs and min(lengths) < max(lengths):
        notes.append(f"runs of {min(lengths)} to {max(lengths)} {unit} are compared")
    return notes


def _early_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether runs were stopped before the last epoch of their schedule."""
    recipe = records[0].run.recipe
    if not isinstance(recipe, Recipe):
        return []
    ends = [r.summary.epochs for r in records if r.status == "completed"]
    early = sorted(epochs for epochs in ends if epochs < recipe.epochs)
    if not early:
        return []
    span = " to ".join(dict.fromkeys((str(early[0]), str(early[-1]))))
    return [
        f"{count(len(early), 'run')} stopped after {span} of {recipe.epochs} epochs: "
        f"the validation loss had not fallen for {recipe.patience} (patience)"
    ]


def order_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether the first training batches of user code were the same for all seeds."""
    orders = {r.run.seed: r.provenance.get("order") for r in plain(records) if r.status != "crashed"}
    batches = [tuple(order) for order in orders.values() if isinstance(order, list) and len(order) > 1]
    if len(orders) < 2 or len(batches) < len(orders) or len(set(batches)) > 1:
        return []
    if len(set(batches[0])) == 1:
        return ["every update used the same batch: the order of the data adds no noise over seeds"]
    return [
        "every seed saw the data in the same order: noise is understated "
        "(set the seed of the loader or Trainer from init.seed)"
    ]


def provenance_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether runs may have read each other's files, or differ in data, libraries, code or machines."""
    about = [record.provenance for record in records if record.status != "crashed"]
    changed = sorted({name for one in about for name in one.get("shared_files_changed", ())})
    edited = [name for name, digests in _texts(about, "opened").items() if len(digests) > 1]
    versions = _texts(about, "versions").items()
    mixed = [f"{name} {' and '.join(sorted(kinds))}" for name, kinds in versions if len(kinds) > 1]
    lines = {
        "runs changed files that all runs share: {}; a run may have read another's": changed,
        "runs read different versions of files: {}": edited,
        "runs used different versions: {}": mixed,
    }
    notes = [line.format(first_of(names, SHOWN)) for line, names in lines.items() if names]
    prints = [one["fingerprint"] for one in about if isinstance(one.get("fingerprint"), dict)]
    codes = Counter(str(sorted(one.items())) for one in prints)
    if len(codes) > 1:
        runs = " and ".join(str(n) for _, n in codes.most_common())
        notes.append(f"trained by {len(codes)} versions of the code ({runs} runs): the fingerprints differ")
    layers = Counter("in C" if one["native"] else "of PyTorch" for one in about if "native" in one)
    devices = Counter(str(one["device"]).partition(":")[0] for one in about if "device" in one)
    for words, counts in (("with layers", layers), ("on", devices)):
        if len(counts) > 1:
            each = " and ".join(f"{name} ({count(n, 'run')})" for name, n in counts.most_common())
            notes.append(f"trained {words} {each}")
    return notes


def _texts(about: Sequence[Mapping[str, Any]], key: str) -> dict[str, set[str]]:
    """The different texts that records hold for each name."""
    texts: dict[str, set[str]] = {}
    for name, text in (item for one in about for item in one.get(key, {}).items()):
        texts.setdefault(name, set()).add(text)
    return dict(sorted(texts.items()))
