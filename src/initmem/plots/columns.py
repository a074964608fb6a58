"""The columns of what commands list, by the keys of their rows; measures hold those of their own tables.

A column with priority 0 always stays. Of the others the largest number leaves a narrow terminal first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from initmem.clocks import CLOCKS
from initmem.errors import count
from initmem.table import RECIPE, Column, Columns, Table, table_of


def results_table(status: Mapping[str, Any]) -> Table:
    """All studies of a store and how far they are, as one table."""
    rows = [
        {"study": f"{study['name']}, {study['preset']}"} | row
        for study in status["studies"]
        for row in study["recipes"]
    ]
    notes = [f"unreadable: {line}" for line in status["damaged"]]
    columns: Columns = {"study": Column("study", "text", "and its preset"), **STATUS}
    done = sum(row["runs"] - row["missing"] for row in rows)
    return table_of(f"{status['store']}: {count(done, 'record')}", rows, columns, notes)


STATUS: Columns = {
    "recipe": RECIPE,
    "runs": Column("runs", about="runs that the study asks for"),
    "completed": Column("completed", about="trained to the end"),
    "diverged": Column("diverged", about="stopped at a loss that is not finite: a result"),
    "crashed": Column("crashed", about="stopped with an error; --retry-crashed trains them again"),
    "training": Column("training", about="being trained now"),
    "missing": Column("missing", about="without a record yet"),
}
STUDIES: Columns = {
    "study": Column("study", "text", "its name"),
    "title": Column("question", "text", "what it asks", room=46),
    "preset": Column("preset", "text", "for --preset; the first is the default of the study"),
    "runs": Column("runs", about="number of runs"),
    "time": Column("time", "text", "rough estimate for this machine"),
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
    "clock_adaptive": Column("sum of lr", about="of learning rates at the end", form=".3g", priority=1),
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
    "effective_scale": Column("effective_scale", about="scale of a flow with this end", priority=2),
    "l1_norm": Column("l1_norm", about="l1 norm of the solution", priority=3),
    "l2_norm": Column("l2_norm", about="l2 norm of the solution", priority=3),
    "place": Column("place", about="0 at the least l1 norm, 1 at the least l2 norm"),
    "to_closed_form": Column("to_closed_form", about="distance to the closed form", priority=1),
    "r": Column("r", about="resetting rate"),
    "distance": Column("distance", about="of the stationary mean to the ridge solution"),
    "error": Column("error", about="standard error of that distance"),
    "ridge_norm": Column("ridge_norm", about="norm of the ridge solution"),
    "largest_z": Column("largest_z", about="largest deviation in standard errors"),
}
ADVICE: Columns = {  # of recipes, and of what a store recorded
    "recipe": RECIPE,
    "verdict": Column("verdict", "text", "on its runs"),
    "memory": Column("memory", about="of its runs", form=".3g"),
    "unit": Column("unit", "text", "of the memory", priority=4),
    "updates": CLOCK_COLUMNS["updates"]._replace(priority=9),
    **{
        name: CLOCK_COLUMNS[name]._replace(form=".3g", priority=5) for name in CLOCKS if name in CLOCK_COLUMNS
    },
    "family": Column("family", "text", "of recipes with the same clock", priority=3),
    "value": Column("clock", about="of the family, at learning rate / (1 - momentum)", form=".3g"),
    "clock": Column("clock", about="of the family, as recorded", form=".3g"),
    "paper": Column("paper", "text", "the nearest clock that it saw: memory, clock, recipe", room=24),
    "records": Column("records", "text", "their nearest clock: memory, clock, recipe, store", room=24),
    "advice": Column("changes", "text", "each alone reaches the clock of a recipe that forgot", room=30),
}
