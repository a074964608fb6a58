"""The columns of everything that commands print as a table, by the keys of their rows.

A column with priority 0 always stays. Of the others the largest number leaves a narrow terminal first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from initmem.clocks import CLOCK_NAMES, CLOCKS, FAMILY_NAMES
from initmem.errors import count
from initmem.plots.table import Column, Key, Table, table_of

Columns = dict[Key, Column]

RECIPE = Column("recipe", "text", "the settings in which the recipes differ")
SCALE = Column("scale", about="initialization scale", form="g")
N_RUNS = Column("runs", about="number of runs behind the row", priority=5)

MEASURES: dict[str, tuple[str, Columns]] = {
    "beta": (
        "Slope of the metric on the initialization scale",
        {
            "recipe": RECIPE,
            "metric": Column("metric", "text", "followed over epochs", priority=3),
            "peak": Column("peak", about="slope of the largest size over training", form=".3g"),
            "peak_epoch": Column("peak epoch", about="when it was reached", priority=4),
            "last": Column("last", about="slope at the last epoch", form=".3g"),
            ("low", "high"): Column("95% interval", about="of the slope at the last epoch", form=".3g"),
            "last_epoch": Column("epochs", about="until the first run ended", priority=6),
            "n_runs": N_RUNS,
        },
    ),
    "half-life": (
        "Half-life of the slope on the scale",
        {
            "recipe": RECIPE,
            "metric": Column("metric", "text", "followed over epochs", priority=3),
            "unit": Column("unit", "text", "epochs, or the clock of the recipe's family"),
            "value": Column(
                "half-life", about="how long |slope| stays above half its peak; empty: to the end", form=".4g"
            ),
            "low": Column("low", about="lower 95% limit", form=".4g"),
            "high": Column("high", about="upper 95% limit; empty: beyond the end", form=".4g"),
        },
    ),
    "difference": (
        "Differences between recipes that differ in one field",
        {
            "field": Column("field", "text", "the field in which two recipes differ", priority=2),
            "from": Column("from", "text", "the first recipe"),
            "to": Column("to", "text", "the second recipe"),
            "before": Column(
                "before", about="memory of the first; debiased unless paired", form=".1f~", priority=4
            ),
            "after": Column(
                "after", about="memory of the second; debiased unless paired", form=".1f~", priority=3
            ),
            "difference": Column("difference", about="second minus first", form=".1f~"),
            ("low", "high"): Column("interval", about="of the difference (95% unless interim)", form=".1f~"),
            "significant": Column("significant", "text", "yes: the interval excludes 0"),
            "p": Column("p", about="of no difference", form=".2g", priority=2),
            "p_adjusted": Column("p (adjusted)", about="for the number of pairs", form=".2g", priority=7),
            "method": Column("method", "text", "how the interval was found", priority=8),
            "n_scales": Column("scales", about="number of scales that both recipes have", priority=6),
            "n_seeds": Column("seeds", about="number of seeds that both recipes have", priority=5),
        },
    ),
    "collapse": (
        "Collapse: the exponent of the batch size that makes the curves of |slope| agree",
        {
            "family": Column("family", "text", "recipes that differ in batch size alone"),
            "alpha": Column("alpha", about="0: epochs, 1: sum of eta, 2: the SGD clock", form=".2f"),
            ("low", "high"): Column("95% interval", about="of alpha, from seeds", form=".2f"),
            "reading": Column("reading", "text", "what that says; cannot tell: the curves do not overlap"),
            "n_curves": Column("curves", about="number of batch sizes", priority=5),
            "n_levels": Column("levels", about="levels of |slope| that at least two curves pass", priority=6),
            **{
                f"apart_{axis}": Column(
                    "by sum of lr" if axis == "adaptive" else f"by {axis}",
                    about=f"decades between the curves against {CLOCK_NAMES.get(axis, axis)}",
                    form=".2f",
                    priority=7,
                )
                for axis in ("epochs", *CLOCKS)
            },
        },
    ),
    "fit": (
        "Change from the smallest to the largest scale, and memory at equal fit",
        {
            "recipe": RECIPE,
            "verdict": Column("verdict", "text", "of the memory, with its mode"),
            "test": Column("test", about="change of the metric: train - gap", form="+.1f~"),
            ("test_low", "test_high"): Column(
                "test: 95% interval", about="of this change", form=".1f~", priority=10
            ),
            "train": Column("train", about="change of the train metric", form="+.1f~"),
            ("train_low", "train_high"): Column(
                "train: 95% interval", about="of this change", form=".1f~", priority=10
            ),
            ("train_smallest", "train_largest"): Column(
                "fit", "text", "train metric of the selected models at these two scales", form=".1f~"
            ),
            "gap": Column("gap", about="change of train - test", form="+.1f~", priority=2),
            ("gap_low", "gap_high"): Column(
                "gap: 95% interval", about="of this change", form=".1f~", priority=10
            ),
            "matched_memory": Column(
                "at equal fit",
                about="memory when each run first reaches a common train accuracy",
                form=".1f~",
            ),
            ("matched_low", "matched_high"): Column("95% interval", about="of it", form=".1f~"),
            "matched_p": Column("p", about="of no memory at equal fit", form=".2g", priority=6),
            "matched_level": Column(
                "level", about="the highest train accuracy (%) that all runs reach", form=".3g"
            ),
            "by_loss_memory": Column(
                "at equal loss", about="the same, by train loss", form=".1f~", priority=7
            ),
            ("by_loss_low", "by_loss_high"): Column(
                "loss: 95% interval", about="of the memory at equal loss", form=".1f~", priority=9
            ),
            "by_loss_p": Column("loss: p", about="of no memory at equal loss", form=".2g", priority=9),
            "by_loss_level": Column(
                "loss", about="the lowest train loss that all runs reach", form=".2g", priority=8
            ),
            "time_ratio": Column(
                "time", about="to fit: epochs of the slowest scale over the fastest", form=".2f", priority=3
            ),
            ("time_low", "time_high"): Column(
                "time: 95% interval", about="of this ratio", form=".2f", priority=5
            ),
            "metric": Column("metric", "text", "of the memory", priority=12),
            "train_metric": Column("train metric", "text", "that measures the fit", priority=12),
            "n_scales": Column("scales", about="number of scales", priority=11),
            "n_seeds": Column("seeds", about="number of seeds that have them all", priority=11),
        },
    ),
    "scale": (
        "What every scale reached",
        {
            "recipe": RECIPE,
            "metric": Column("metric", "text", "accuracies in percent", priority=2),
            "scale": SCALE,
            "mean": Column("mean", about="over seeds", form=".4g"),
            "deviation": Column("s.d.", about="standard deviation over seeds", form=".2g"),
            "n": Column("n", about="number of runs"),
            "n_crashed": Column("crashed", about="runs that crashed", priority=1),
        },
    ),
    "failures": (
        "Untrained runs: at chance, or diverged",
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "untrained": Column("untrained", about="runs at chance, or diverged"),
            "n": Column("n", about="number of runs"),
            ("low", "high"): Column("95% interval", about="of the rate (Clopper-Pearson)", form=".2f"),
            "p": Column("p", about="of a rate that does not depend on the scale", form=".2g"),
            "counts_as_chance": Column(
                "chance", about="accuracy that counts as chance", form=".3g", priority=4
            ),
        },
    ),
    "clocks": (
        "Norm elasticity of recipes against their clocks: 1 / (1 + (clock / half)^steepness)",
        {
            "family": Column("family", "text", "of recipes"),
            "clock": Column("clock", "text", "at the effective learning rate eta / (1 - momentum)"),
            "error": Column("error", about="root mean square, for a recipe left out of the fit", form=".3f"),
            "error_of_mean": Column("of the mean", about="error of the other recipes' mean", form=".3f"),
            "residual": Column("residual", about="root mean square of the fit", form=".3f", priority=3),
            "half": Column("half", about="clock that leaves half of the elasticity", form=".3g", priority=1),
            "steepness": Column("steepness", about="of the curve, in log clock", form=".2g", priority=4),
            "n_recipes": Column("recipes", about="number of recipes behind the row", priority=2),
        },
    ),
    "radial": (
        "Radial memory: elasticity of the selected norm in the initial norm",
        {
            "recipe": RECIPE,
            "elasticity": Column("elasticity", about="1: the norm is carried over; 0: forgotten", form=".3f"),
            ("low", "high"): Column("95% interval", about="of the elasticity", form=".3f"),
            "n_runs": N_RUNS,
            "n_seeds": Column("seeds", about="number of seeds", priority=6),
        },
    ),
    "interpolation": (
        "Interpolation epoch: when train accuracy reaches 99.5%",
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "median": Column(
                "median", about="median epoch; empty: half of the runs never got there", form=".4g"
            ),
            "low": Column("low", about="lower 95% limit", form=".4g"),
            "high": Column("high", about="upper 95% limit; empty: beyond the last epoch", form=".4g"),
            "n": Column("runs", about="number of runs"),
            "n_censored": Column("never", about="runs that never interpolated"),
        },
    ),
    "repair": (
        "Repair gap: accuracy gained after interpolation",
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "repair_gap_pp": Column("gap", about="selected minus at interpolation", unit="pp", form=".2f"),
            "standard_error": Column("s.e.", about="standard error of the gap", form=".2f"),
            "n": Column("runs", about="number of runs that interpolated"),
            "n_never_interpolated": Column("never", about="runs that never interpolated"),
        },
    ),
    "sharpness": (
        "Sharpness: the largest Hessian eigenvalue of the training objective, means over seeds",
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "first": Column("first", about="after the first epoch", form=".3g"),
            "last": Column("last", about="at the last measurement", form=".3g"),
            "epoch": Column("epoch", about="of the last measurement", priority=5),
            "limit": Column(
                "2/eta", about="2 (1 + momentum) / eta: where gradient descent turns unstable", form=".3g"
            ),
            "ratio": Column("last / limit", about="1: at the edge of stability", form=".2f"),
            "largest_ratio": Column("largest", about="ratio over all measurements", form=".2f", priority=4),
            "n": Column("n", about="number of runs"),
        },
    ),
    "chaos": (
        "Chaos: how far a run moves when one weight is perturbed",
        {
            "recipe": RECIPE,
            "metric": Column("metric", "text", "what is compared", priority=2),
            "deviation": Column("deviation", about="standard deviation of a run due to chaos", form=".2f~"),
            "largest": Column("largest", about="largest difference within a pair", form=".2f~"),
            "floor": Column("floor", about="memory expected from chaos alone", form=".2f~"),
            "n_pairs": Column("pairs", about="number of runs with a perturbed replicate"),
        },
    ),
    "seeds": (
        "Standard deviation by seed role",
        {
            "recipe": RECIPE,
            "role": Column("role", "text", "the only source of randomness that varies; all: every one"),
            "deviation": Column("deviation", about="standard deviation over seeds", form=".2f~"),
            ("low", "high"): Column("95% interval", about="of the deviation", form=".2f~"),
            "share": Column("share", about="of the variance over whole seeds", form=".2f"),
            "n": Column("seeds", about="number of seeds"),
            "unit": Column("unit", "text", "of the deviation", priority=2),
        },
    ),
}


def results_table(status: Mapping[str, Any]) -> Table:
    """All studies of a store and how far they are, as one table."""
    rows = [
        {"study": f"{study['name']}, {study['effort']}"} | row
        for study in status["studies"]
        for row in study["recipes"]
    ]
    notes = [f"unreadable: {line}" for line in status["damaged"]]
    columns: Columns = {"study": Column("study", "text", "and its effort"), **STATUS}
    done = sum(row["runs"] - row["missing"] for row in rows)
    return table_of(f"{status['store']}: {count(done, 'record')}", rows, columns, notes)


def measure_table(what: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of one measure other than memory, with families and clocks as people call them."""
    title, columns = MEASURES[what]
    names = {"clock": CLOCK_NAMES, "unit": CLOCK_NAMES} | (
        {"family": FAMILY_NAMES} if what == "clocks" else {}
    )
    named = [
        dict(row) | {key: names[key].get(row[key], row[key]) for key in names if key in row} for row in rows
    ]
    if what == "fit" and all(row["train_metric"].endswith("accuracy") for row in rows):  # all in points
        columns = {key: head._replace(form=head.form.removesuffix("~")) for key, head in columns.items()}
    return table_of(title, named, columns)


STATUS: Columns = {
    "recipe": RECIPE,
    "runs": Column("runs", about="runs that the study asks for"),
    "completed": Column("completed", about="trained to the end"),
    "diverged": Column("diverged", about="stopped at a loss that is not finite: a result"),
    "failed": Column("failed", about="stopped with an error; --retry-failed trains them again"),
    "training": Column("training", about="being trained now"),
    "missing": Column("missing", about="without a record yet"),
}
TIME = Column("time", "text", "rough estimate for this machine")
STUDIES: Columns = {
    "study": Column("study", "text", "its name"),
    "title": Column("question", "text", "what it asks", room=46),
    "runs": Column("runs", about="number of runs at its default effort"),
    "time": TIME,
}
EFFORTS: Columns = {
    "study": Column("study", "text", "its name"),
    "effort": Column("effort", "text", "for --effort; the first of a study is its default"),
    "runs": Column("runs", about="number of runs"),
    "time": TIME,
    "flops": Column("operations", about="floating-point operations of all runs", form=".1e", priority=1),
    "about": Column("about", "text", "what it trains", room=36),
}
PLAN: Columns = {
    "recipe": RECIPE,
    "runs": Column("runs", about="number of runs"),
    "hours": Column("time", about="for all its runs, here"),
    "pack": Column("pack", about="replicas trained together", priority=4),
    "note": Column("note", "text", "why runs are trained alone, and what the scale leaves as it is", room=32),
    "updates": Column("updates", about="optimizer updates per run"),
    "flops": Column("operations", about="floating-point operations of all its runs", form=".1e", priority=5),
    "clock_sgd": Column("sgd", about="SGD clock at the last epoch", form=".3g", priority=3),
    "clock_l2": Column("l2", about="L2 clock at the last epoch", form=".3g", priority=2),
    "clock_adaptive": Column(
        "sum of lr", about="sum of learning rates at the last epoch", form=".3g", priority=1
    ),
}
POWER: Columns = {
    "recipe": RECIPE,
    "noise": Column("noise", about="standard deviation over seeds of one run", form=".2g"),
    "noise_from": Column("from", "text", "where the noise was taken from", priority=4),
    "scales": Column("scales", about="number of scales", priority=3),
    "memory": Column("memory", about="to be detected", form=".3g"),
    "seeds_to_find": Column("seeds", about="that detect it; empty: more than a hundred"),
    "tolerance": Column("tolerance", about="range that counts as forgotten", form=".3g"),
    "seeds_to_forget": Column("seeds to forget", about="that show it is forgotten, if there is none"),
    "planned": Column("planned", about="seeds of the study", priority=1),
    "found_as_planned": Column("power", about="share of studies that detect it as planned", form=".0%"),
}
CLOCK_COLUMNS: Columns = {
    "recipe": RECIPE,
    "updates": Column("updates", about="optimizer updates", form=",.0f"),
    "sgd": Column("sgd", about="sum of (learning rate)^2 / batch size"),
    "l2": Column("l2", about="sum of learning rate x (L2 + weight decay / 2)"),
    "adaptive": Column("sum of lr", about="sum of learning rates"),
    "momentum": Column("momentum", about="the sgd clock at learning rate / (1 - momentum)"),
    "paper_sgd": Column("sgd, paper", about="published; computed as if the learning rate were constant"),
    "paper_l2": Column("l2, paper", about="published; computed as if the learning rate were constant"),
}
MODELS: Columns = {
    "name": Column("network", "text", "for `model` in a recipe"),
    "width": Column("width", about="channels of the first layer"),
    "trainable": Column("trainable", about="trained variables"),
    "total": Column("total", about="with the moving statistics of batch normalization"),
    "paper": Column("paper", about="published, in millions"),
    "options": Column("options", "text", "fields of a recipe that this network adds, with their defaults"),
}
DATASETS: Columns = {
    "dataset": Column("dataset", "text", "for `dataset` in a recipe"),
    "n_train": Column("train", about="training examples"),
    "n_val": Column("val", about="validation examples"),
    "n_test": Column("test", about="test examples"),
    "channels": Column("channels", about="color channels", priority=3),
    "height": Column("height", about="in pixels", priority=2),
    "width": Column("width", about="in pixels or tokens", priority=2),
    "classes": Column("classes", about="number of classes", priority=1),
    "vocabulary": Column("tokens", about="different tokens; 0 for images and tables", priority=4),
    "labels": Column("labels", about="per example", priority=5),
    "place": Column("place", "text", "where it is"),
}
THEORY: Columns = {
    "proposition": Column("proposition", about="its number"),
    "statement": Column("statement", "text", "the equation that is checked"),
    "trials": Column("trials", about="random networks tried", priority=2),
    "discrepancy": Column("discrepancy", about="largest difference between its two sides"),
    "tolerance": Column("tolerance", about="largest difference that rounding explains", priority=1),
    "holds": Column("holds", "text", "whether the discrepancy is within the tolerance"),
    "name": Column("name", "text", "the effect whose order is fitted"),
    "against": Column("against", "text", "the variable of the power law"),
    "expected": Column("expected", about="exponent from theory"),
    "value": Column("value", about="fitted exponent"),
    "low": Column("low", about="lower 99% limit"),
    "high": Column("high", about="upper 99% limit"),
    "n": Column("n", about="number of points", priority=1),
    "agrees": Column("agrees", "text", "whether the interval holds the expected exponent"),
    "panel": Column("panel", "text", "of figure 9"),
    "eta": Column("eta", about="learning rate"),
    "D": Column("D", about="imbalance a^2 - b^2 at the end"),
    "order": Column("order", "text", "how samples are visited"),
    "steps": Column("steps", about="number of updates"),
    "paper": Column("paper", about="published D, to the nearest whole number"),
    "method": Column("method", "text", "how the network is trained"),
    "scale": Column("scale", about="initialization scale"),
    "effective_scale": Column(
        "effective_scale", about="scale of the flow that ends at the same point", priority=2
    ),
    "l1_norm": Column("l1_norm", about="l1 norm of the solution", priority=3),
    "l2_norm": Column("l2_norm", about="l2 norm of the solution", priority=3),
    "place": Column("place", about="0 at the least l1 norm, 1 at the least l2 norm"),
    "to_closed_form": Column("to_closed_form", about="distance to the closed form", priority=1),
    "r": Column("r", about="resetting rate"),
    "distance": Column("distance", about="of the stationary mean to the ridge solution"),
    "error": Column("error", about="standard error of that distance"),
    "ridge_norm": Column("ridge_norm", about="norm of the ridge solution"),
    "largest_z": Column("largest_z", about="largest deviation in standard errors"),
    "recipe": RECIPE,
    "clock": Column("clock", "text", "the clock of its family"),
    "clock_end": Column("clock_end", about="its value at the last epoch", priority=5),
    "beta_start": Column("beta_start", about="slope of the norm on the scale at the start"),
    "beta_end": Column("beta_end", about="slope at the last epoch"),
    "epochs_to_quarter": Column("epochs_to_quarter", about="epochs until a quarter is left", priority=3),
    "clock_to_quarter": Column("clock_to_quarter", about="clock until a quarter is left", priority=4),
    "apart_epochs": Column("apart_epochs", about="disagreement of the family against epochs", priority=1),
    "apart_clock": Column("apart_clock", about="disagreement of the family against its clock", priority=1),
}
ADVICE: Columns = {
    "recipe": RECIPE,
    "updates": CLOCK_COLUMNS["updates"]._replace(priority=9),
    **{
        name: CLOCK_COLUMNS[name]._replace(form=".3g", priority=5) for name in CLOCKS if name in CLOCK_COLUMNS
    },
    "family": Column("family", "text", "of recipes with the same clock", priority=3),
    "value": Column("clock", about="of the family, at learning rate / (1 - momentum)", form=".3g"),
    "paper": Column("paper", "text", "the nearest clock that it saw: memory, clock, recipe", room=24),
    "advice": Column("changes", "text", "each alone reaches the clock of a recipe that forgot", room=30),
}
SEEN: Columns = {
    "asked": Column("recipe", "text", "that was asked for"),
    "clock": Column("clock", about="of the recipe that was seen, at its last epoch", form=".3g"),
    "text": Column("memory", "text", "of its runs"),
    "verdict": Column("verdict", "text", "on its runs"),
    "recipe": Column("seen", "text", "recipe of the same family, the nearest clock first", room=30),
    "source": Column("in", "text", "the store or archive", priority=2),
}
