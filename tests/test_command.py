"""Programs that write JSON lines: any of them can be measured."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import initmem
from initmem.cli import app
from initmem.engines.provenance import run_notes
from initmem.errors import ConfigError
from initmem.measures.provenance import applied_lines
from initmem.pipeline.command import CommandTrainer, ProgramError, Reader, name_of, parse, study_of
from initmem.recipe import PipelineRecipe
from initmem.store.store import Store
from initmem.study import Run

PYTHON = sys.executable
HEAD = """
import json, sys, time
scale, seed, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
lines = open(out, "w")
def say(**row):
    print(json.dumps(row), file=lines, flush=True)
"""


def program(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "train me.py"
    path.write_text(HEAD + body)
    return (PYTHON, str(path), "{scale}", "{seed}", "{history}")


def run_of(scale: float = 2.0, seed: int = 3, **fields: object) -> Run:
    return Run(PipelineRecipe.parse({"pipeline": "program"} | fields), scale, seed)


def trained(parts: tuple[str, ...], run: Run | None = None, seen: list | None = None) -> initmem.RunRecord:
    rows = [] if seen is None else seen
    (record,) = CommandTrainer(parts)([run or run_of()], lambda run, row: rows.append(row))
    return record


def test_a_program_leaves_a_record(tmp_path: Path) -> None:
    body = """
for epoch in (1, 2, 3):
    say(epoch=epoch, val_loss=abs(epoch - 2), val_accuracy=0.1 * epoch, test_accuracy=0.2 * epoch, norm=scale)
say(final={"calibration": seed / 10})
"""
    seen: list = []
    record = trained(program(tmp_path, body), seen=seen)
    assert record.status == "completed"
    assert (record.summary.epochs, record.summary.tau_best) == (3, 2)
    assert record.summary.test_accuracy == 0.4
    assert record.summary.norm_best == 2.0
    assert dict(record.finals) == {"calibration": 0.3}
    assert [row["epoch"] for row in seen] == [1, 2, 3]


def test_the_tracker_writes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    model = initmem.Init(2.0, 3).apply(nn.Linear(3, 2))
    tracker = initmem.Tracker(out=path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    tracker.attach(model, optimizer, batch_size=4)
    reader = Reader(path, lambda row: None)
    for _ in range(2):
        model.weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.end_epoch(val_loss=1.0)
        reader.read()
    tracker.finish(test_accuracy=0.75)
    reader.read(at_end=True)
    assert reader.tracker.history.keys() == tracker.history.keys()
    assert all((reader.tracker.history[name] == column).all() for name, column in tracker.history.items())
    assert reader.tracker.history["clock_sgd"].tolist() == [0.25**2 / 4, 0.25**2 / 2]
    assert reader.tracker.finals == {"test_accuracy": 0.75}
    assert reader.tracker.norm_init == tracker.norm_init > tracker.history["norm"][0] > 0


def test_what_a_program_did_to_its_model_is_recorded(tmp_path: Path) -> None:
    """The warning of `Init.apply` goes to the output of a program, which nobody reads."""
    body = """
import initmem, torch
from torch import nn
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.mix, self.gate = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
initmem.Init(scale, seed).apply(Own())
initmem.Init(scale, seed).apply(Own())
say(val_loss=1.0)
"""
    record = trained(program(tmp_path, body))
    assert applied_lines([record]) == [
        "scaled 1 of 4 parameters; left alone: fc.bias; not recognized: mix, gate"
    ]


TRAINING = """
import sys
import initmem, torch
from torch import nn

class Unseen(torch.optim.SGD):
    def second_step(self):
        [p.data.mul_(0.9) for group in self.param_groups for p in group["params"]]

def train(kind, init, tracker):
    torch.manual_seed(init.seed)
    order = torch.Generator().manual_seed(0)  # the same for every seed
    model = init.apply(nn.Linear(4, 3))
    model.reset_parameters()  # the scale is gone
    optimizer = (Unseen if kind == "unseen" else torch.optim.SGD)(model.parameters(), 0.1)
    tracker.attach(model, optimizer)
    tracker.end_epoch(val_loss=float("inf"), val_accuracy=0.3)  # nothing is trained yet
    for epoch in range(2):
        loss = model(torch.randn(5, 4, generator=order)).square().mean()
        loss.backward()
        optimizer.second_step() if kind == "unseen" else optimizer.step()
        tracker.end_epoch(val_loss=loss, val_accuracy=0.8 + 0.1 * epoch)

if __name__ == "__main__":
    kind, scale, seed, out = sys.argv[1:]
    train(kind, initmem.Init(float(scale), int(seed)), initmem.Tracker(out=out))
"""
NOTED = ("order", "classes", "updates", "clocks_missing", "applied", "init", "dropped", "diverged", "device")


@pytest.mark.usefixtures("empty_folder", "programs_here")
@pytest.mark.parametrize("kind", ["seen", "unseen"])
def test_a_program_and_a_function_leave_the_same_record(kind: str, tmp_path: Path, monkeypatch) -> None:
    """What only its tracker sees reaches the record of a program, and with it the verdict."""
    (tmp_path / "both.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(tmp_path)
    train = functools.partial(importlib.import_module("both").train, kind)
    monkeypatch.delitem(sys.modules, "both")
    scales, seeds = ([1.0, 2.0], [0, 1]) if kind == "seen" else ([2.0], [3])
    result = initmem.run(train, scales, seeds, tmp_path / "store", engine="inline", progress=False)
    parts = (PYTHON, str(tmp_path / "both.py"), kind, "{scale}", "{seed}", "{history}")
    runs = [run_of(record.run.scale, record.run.seed) for record in result.records]
    records = CommandTrainer(parts)(runs, lambda run, row: None)
    for program, function in zip(records, result.records, strict=True):
        both = [{name: one.provenance.get(name) for name in NOTED} for one in (program, function)]
        assert both[0] == both[1]
        assert (program.status, program.summary) == (function.status, function.summary)
        assert program.history.keys() == function.history.keys()
        assert ("clock_adaptive" in program.history) == (kind == "seen")
    assert any(
        note.startswith("clocks not measured: ") and note in result.notes for note in run_notes(records)
    )
    if kind == "seen":
        memory, expected = initmem.memory(records, "val_accuracy"), result.memory("val_accuracy")
        assert (memory.inapplicable, memory.notes) == (expected.inapplicable, expected.notes)
        assert str(memory) == "not applicable: the scale had no effect on the weights"
        assert any("every seed saw the data in the same order" in note for note in memory.notes)


def test_a_loss_that_is_not_finite_is_a_divergence(tmp_path: Path) -> None:
    record = trained(program(tmp_path, "say(val_loss=1.0)\nsay(val_loss=float('nan'))\nsay(val_loss=0.5)"))
    assert (record.status, record.summary.epochs) == ("diverged", 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('no data at all')", "ended with code 1\nno data at all"),
        ("say(loss=1.0)\nraise ValueError('too big')", "ValueError: too big"),
        ("pass", "the program wrote nothing to {history}"),
    ],
)
def test_what_goes_wrong_is_said(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ProgramError) as error:
        trained(program(tmp_path, body))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"loss": 1}\n{"loss": 0.', "line 2 of the history: not JSON: '{\"loss\": 0.'"),
        ("[1]\n", "line 1 of the history: [1] (allowed: an object of numbers)"),
        ('{"loss": "low"}\n', "line 1 of the history: metric loss = 'low' (allowed: a number)"),
        ('{"test_accuracy": 93}\n', "line 1 of the history: metric test_accuracy = 93"),
        ("{}\n", "line 1 of the history: {} (allowed: an object of numbers)"),
        (
            '{"loss": 1}\n{"epoch": 2}\n',
            "line 2 of the history: {'epoch': 2} (allowed: an object of numbers)",
        ),
        ('{"loss": 1}\n{"final": {}}\n', "line 2 of the history: {'final': {}} (allowed"),
        (
            '{"epoch": 0, "loss": 1}\n',
            "line 1 of the history: epoch = 0, where 1 is next (allowed: 1, 2, 3, ...)",
        ),
        (
            '{"epoch": 1, "loss": 1}\n{"epoch": 3, "loss": 1}\n',
            "line 2 of the history: epoch = 3, where 2 is next",
        ),
        ('{"loss": 1}\n{"error": 1}\n', "line 2 of the history: epoch 2: metric error, loss is not in every"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(ProgramError) as error:
        Reader(path, lambda row: None).read(at_end=True)
    assert words in str(error.value)


def test_a_program_that_starts_over_counts_with_its_last_attempt(tmp_path: Path) -> None:
    path, rows = tmp_path / "history.jsonl", []
    reader = Reader(path, rows.append)
    path.write_text('{"epoch": 1, "loss": 9}\n{"epoch": 2, "loss": 8}\n')
    reader.read()
    path.write_text("")
    reader.read()
    path.write_text('{"epoch": 1, "loss": 3}\n{"epoch": 2, "loss": 2}\n{"epoch": 3, "loss": 1}\n')
    reader.read()
    assert reader.tracker.history["loss"].tolist() == [3, 2, 1]
    path.write_text('{"epoch": 1, "loss": 3}\n')
    reader.read(at_end=True)
    assert reader.tracker.history["loss"].tolist() == [3]


def test_metrics_on_the_final_line_are_finals(tmp_path: Path) -> None:
    body = "say(val_loss=1.0, recall=0.1)\nsay(final={'recall': 0.3}, calibration=0.2)"
    record = trained(program(tmp_path, body))
    assert dict(record.finals) == {"recall": 0.3, "calibration": 0.2}
    assert record.metric("recall") == 0.3
    assert record.history["recall"].tolist() == [0.1]


def test_children_that_outlive_a_program_are_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("initmem.pipeline.command.GRACE_SECONDS", 0.2)
    body = """
import subprocess
stubborn = "from signal import *; signal(SIGTERM, SIG_IGN); print(1, flush=True); pause()"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
say(loss=1.0, pid=child.pid)
"""
    record = trained(program(tmp_path, body))
    state = Path(f"/proc/{int(record.history['pid'][0])}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    body = """
lines.write('{"loss": '); lines.flush(); time.sleep(0.5); lines.write('1.0}\\n{"loss": 2.0}')
"""
    assert trained(program(tmp_path, body)).history["loss"].tolist() == [1.0, 2.0]


def test_arguments_are_filled_one_by_one_and_no_shell_reads_them(tmp_path: Path) -> None:
    command = "echo '{dataset}' {scale}:{seed} '{{\"a\": {learning_rate}}}' $HOME ; rm {history}"
    trainer = CommandTrainer(parse(command))
    run = run_of(dataset="my file; touch x.npz", learning_rate=0.1)
    expected = ["echo", "my file; touch x.npz", "2.0:3", '{"a": 0.1}', "$HOME", ";", "rm", "/tmp/h"]
    assert trainer.arguments(run, Path("/tmp/h")) == expected
    assert name_of(("python", "{scale}.py", "code/train_it.py")) == "train_it"
    assert name_of(("/usr/bin/julia", "{scale}")) == "julia"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "command = ''"),
        ("echo 'half", "No closing quotation"),
        ("echo {scale}", "no {history} in it (needed: scale, history)"),
        ("echo {history}", "no {scale} in it"),
        ("echo {scale} {sead} {history}", "command: {sead} (allowed: scale, seed, history, run"),
        ("no-such-program {scale} {history}", "no program 'no-such-program'"),
    ],
)
def test_mistakes_in_a_command_are_found_first(command: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(command, declared=[])
    assert words in str(caught.value)


def test_the_study_of_a_command(tmp_path: Path) -> None:
    command = "echo {scale} {seed} {history}"
    study, *_ = study_of(command, None, None, None, ())
    assert (study.name, study.recipes[0].pipeline) == ("echo", "echo")
    assert len(study.all_runs()) == 25
    study, *_ = study_of(command, "mine", None, None, ["scales=[1, 2]", "seeds=[7]", "optimizer=adam"])
    assert [(run.scale, run.seed) for run in study.all_runs()] == [(1.0, 7), (2.0, 7)]
    assert study.labels() == ["mine adam"]
    file = tmp_path / "grid.toml"
    file.write_text("scales = [1.0]\nseeds = [0, 1]\n[[grid]]\nlearning_rate = [0.1, 0.2]\n")
    study, *_ = study_of(command, "mine", str(file), None, ())
    assert study.labels() == ["mine lr=0.1", "mine lr=0.2"]
    with pytest.raises(ConfigError, match=r"no {seed} in it"):
        study_of("echo {scale} {history}", "mine", str(file), None, ())
    file.write_text("scales = [1.0]\nseeds = [0]\n[recipe]\nwarmup = 100\n[[grid]]\ndropout = [0.1, 0.5]\n")
    free = "echo {scale} {history} --dropout={dropout} --warmup {warmup}"
    study, _, trainer = study_of(free, "mine", str(file), None, ())
    assert study.labels() == ["mine dropout=0.1 warmup=100", "mine dropout=0.5 warmup=100"]
    (run,) = study.runs(study.recipes[1])
    expected = ["echo", "1.0", "h", "--dropout=0.5", "--warmup", "100"]
    assert trainer.arguments(run, Path("h")) == expected
    with pytest.raises(ConfigError, match=r"command: {momentum} \(allowed: .*dropout"):
        study_of(f"{free} {{momentum}}", "mine", str(file), None, ())
    file.write_text("chaos = true\n[recipe]\nlearning_rate = 0.1\n")
    with pytest.raises(ConfigError, match="chaos, split and pin are not for programs"):
        study_of(command, "mine", str(file), None, ())


def options(tmp_path: Path, body: str) -> list[str]:
    asked = shlex.join(program(tmp_path, body))
    return ["run", "--command", asked, "--store", str(tmp_path / "store"), "--set", "scales=[1.0, 2.0]"]


@pytest.mark.usefixtures("no_workers")
def test_the_command_line_runs_a_program_and_measures_it(tmp_path: Path, command) -> None:
    body = """
if (scale, seed) == (2.0, 1):
    sys.exit("the disk is full")
say(test_accuracy=0.5 + 0.1 * scale + 0.001 * seed)
"""
    code, out, err = command(*options(tmp_path, body), "--set", "seeds=[0, 1, 2]", "--json")
    assert code == 1, err  # not all that was asked for is done
    said = json.loads(out)["summary"]
    assert (said["study"], said["completed"], said["crashed"]) == ("train me", 5, 1)
    (cause,) = said["crashes"]
    assert (cause["cause"], cause["runs"], cause["seed"]) == ("the disk is full", 1, 1)
    records = Store(tmp_path / "store").records()
    (broken,) = [record for record in records if record.status == "crashed"]
    assert (broken.run.scale, broken.run.seed) == (2.0, 1)
    assert broken.error.strip().endswith("the disk is full")
    for record in records:  # of the crashed one, too; what the program itself imports is not known
        assert record.provenance["command"].endswith("'{scale}' '{seed}' '{history}'")
        assert record.provenance["torch"] == "not known"
    assert initmem.memory(records).memory == pytest.approx(10)


def test_a_killed_session_takes_its_programs_with_it(tmp_path: Path) -> None:
    body = f"open('{tmp_path}/alive-0', 'w').write(str(__import__('os').getpid()))\ntime.sleep(600)"
    process = subprocess.Popen(
        [PYTHON, "-m", "initmem", *options(tmp_path, body), "--set", "seeds=[0]", "--workers", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(initmem.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    mark = tmp_path / "alive-0"
    deadline = time.monotonic() + 300
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(mark.read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


# -- a script that somebody else wrote ------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def test_a_script_is_wrapped_in_a_few_lines() -> None:
    script = (ROOT / "examples" / "wrapped_script.py").read_text().splitlines()
    page = (ROOT / "docs" / "wrap-a-script.md").read_text()
    (block,) = re.findall(r"^```diff\n(.*?)^```", page, flags=re.M | re.S)
    lines = [line for line in block.splitlines() if not line.startswith("@")]
    added = [line[1:] for line in lines if line.startswith("+")]
    assert 0 < len(added) <= 8
    unwrapped = "\n".join(line for line in script if line not in added)
    body = unwrapped.partition('"""\n\n')[2]
    assert not re.search("initmem|tracker|scale, history", body)
    compile(unwrapped, "unwrapped", "exec")


@pytest.mark.usefixtures("no_workers", "programs_here")
def test_the_wrapped_script_is_asked_with_its_clocks(tmp_path: Path, capsys, monkeypatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "wrap-a-script.md").read_text()
    (said,) = re.findall(r'--command "python (examples/wrapped_script\.py .*?)"', page)
    said += " --max_iters=6 --eval_interval=2 --eval_iters=1"
    options = ["--set", "scales=[0.5, 2.0]", "--set", "seeds=[3]", "--store", "store", "--json"]
    with contextlib.suppress(SystemExit):
        app(["run", "--command", f"{PYTHON} {said}", *options])
    assert json.loads(capsys.readouterr().out)["summary"]["completed"] == 2
    for record in Store("store").records():
        assert record.run.seed == 3 and record.provenance["scale_used"] is True
        assert record.summary.epochs == 4  # before the first update, and after 2, 4 and 6
        # get_lr of the script: five updates of warm-up, then the start of the cosine
        rates = np.array([1e-2 * (k + 1) / 6 for k in range(5)] + [1e-2])
        sums = np.concatenate([[0], np.cumsum(rates)])[::2]
        squares = np.concatenate([[0], np.cumsum(rates**2)])[::2]
        np.testing.assert_allclose(record.history["clock_adaptive"], sums, rtol=1e-6)
        np.testing.assert_allclose(record.history["clock_sgd"], squares / 16, rtol=1e-6)
        assert record.history["clock_angular"][0] == 0 < record.history["clock_angular"][-1]
        assert "file wrapped_script.py" in record.provenance["fingerprint"]
    small, large = sorted(Store("store").records(), key=lambda record: record.run.scale)
    assert large.summary.norm_init == pytest.approx(4 * small.summary.norm_init, rel=1e-5)


@pytest.mark.usefixtures("no_workers")
def test_a_changed_program_is_refused_and_failures_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = f"{PYTHON} train.py {{scale}} {{seed}} {{history}} --config=run.toml"
    options = ["--store", "store", "--set", "scales=[1.0, 2.0]", "--set", "seeds=[0, 1]"]
    ran = functools.partial(command, "run", "--command", asked, *options)
    script = HEAD + "RATE = 0.1\nsay(val_loss=scale * RATE + 0.01 * seed)\n"
    (tmp_path / "train.py").write_text(script.replace("say(val", "say(test_acc=97, val"))
    (tmp_path / "run.toml").write_text("epochs = 3\n")
    code, out, err = ran()
    assert code == 2
    words = "stopped: the first 3 of 4 runs all crashed with initmem.pipeline.command.ProgramError: "
    assert f"{words}line 1 of the history: metric test_acc = 97 (allowed: a fraction from 0 to 1)" in err
    (tmp_path / "train.py").write_text(script)  # fixed: they are tried again without being asked to
    code, out, err = ran()
    assert code == 0, err
    assert "4 runs trained" in out
    assert "metric: val_loss (no accuracy was recorded)" in out
    assert "forgets" in out or "remembers" in out or "inconclusive" in out
    (tmp_path / "train.py").write_text(script.replace("RATE = 0.1", "RATE = 0.2  # more"))
    code, out, err = ran()
    assert code == 2 and "were trained before this changed: file train.py was edited (keep_old=True" in err
    code, out, err = ran("--keep-old")
    assert code == 0 and "4 of 4 runs were trained before this changed: file train.py was edited" in err
    code, out, err = ran("--name", "second")
    assert code == 0 and "4 runs trained" in out
    (tmp_path / "run.toml").write_text("epochs = 4\n")
    code, _, err = ran("--name", "second", "--watch", "run.toml")
    assert code == 2 and "file run.toml was edited" in err
