"""Any program that writes JSON lines joins in: `initmem run --command "python train.py --scale {scale} ..."`.

The program is started once for every run, with the placeholders of its arguments filled in: `{scale}`,
`{seed}`, `{history}` (the file it writes), `{run}` (the id of the run), every setting that is declared, such
as `{learning_rate}`, and with `--gpus N` `{gpu}`, from 0 to N - 1: of the programs that run at the same time
each has its own. A literal brace is doubled. No shell is involved.

To the history it appends one line per epoch, an object of numbers with the same names in every line, and at
the end, if it likes, one line `{"final": {...}}` with metrics of the predictor it returns, and one with the
classes that it predicts for the test examples (`initial_predictions`: before training). `epoch`, where it is
among the numbers, counts from 1. A program that starts its file over counts with what is there at the end:

    {"val_loss": 0.71, "val_accuracy": 0.72, "test_accuracy": 0.70}
    {"val_loss": 0.55, "val_accuracy": 0.81, "test_accuracy": 0.79}
    {"final": {"calibration": 0.03}}
    {"predictions": [3, 7, 1, 0]}

In Python, `initmem.Tracker(out=path)` writes these lines, with kernel norm and clocks in them.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from initmem.engines.engine import GPU_SLOT
from initmem.errors import ConfigError, allowed
from initmem.files import temporary_folder
from initmem.measures.provenance import MOST_MODELS
from initmem.pipeline.init import INIT_FILE, TOLD, TRACKER_FILE
from initmem.pipeline.opened import environment_of, opened_by_program
from initmem.pipeline.run import OnEpoch, own_record
from initmem.pipeline.source import Fingerprint, note_files
from initmem.pipeline.tracker import Row, Tracker
from initmem.pipeline.workdir import own_workdir, project_of
from initmem.record import RunRecord
from initmem.store.encoding import decode_array
from initmem.study import SCALES, SEEDS, Run, Study
from initmem.study_file import listed, load_study, override, own_study

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")
GIVEN = ("scale", "seed", "history", "run", "gpu")
TAIL = 4000  # characters of the last output of a failed program
POLL_SECONDS = 0.2  # between two reads of what a program has written
GRACE_SECONDS = 5.0  # that a program has to end after SIGTERM
# Bound before any fork: the child may do next to nothing there.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class ProgramError(Exception):
    """A program failed, or wrote what cannot be read: a fault of its run, not of the study."""


def parse(command: str, *, n_seeds: int = 1, declared: Iterable[str] | None = None) -> tuple[str, ...]:
    """Split a command into arguments, and find mistakes in it before anything is run."""
    try:
        parts = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"command = {command!r} ({error})") from None
    if not parts:
        raise ConfigError("command = '' (allowed: a program and its arguments)")
    used = placeholders(parts)
    names = [*GIVEN, *(used if declared is None else declared)]
    for name in sorted(used - set(names)):
        hint = f"--set {name}=... declares it; a literal brace is doubled"
        raise ConfigError(f"command: {{{name}}} ({allowed(names)}; {hint})")
    needed = ["scale", "history", *(["seed"] if n_seeds > 1 else [])]
    for name in needed:
        if name not in used:
            raise ConfigError(f"command = {command!r}: no {{{name}}} in it (needed: {', '.join(needed)})")
    if shutil.which(parts[0]) is None:
        raise ConfigError(f"command: no program {parts[0]!r}")
    return parts


def placeholders(parts: Iterable[str]) -> set[str]:
    """The names in braces."""
    return {name for part in parts for name in PLACEHOLDER.findall(part) if name}


def name_of(parts: Sequence[str]) -> str:
    """A name for what a command runs: its script, or its program."""
    scripts = (Path(part).stem for part in parts if part.endswith(".py") and "{" not in part)
    return next(scripts, Path(parts[0]).name)


@dataclass(frozen=True, slots=True)
class CommandTrainer:
    """Trains runs by starting a program."""

    parts: tuple[str, ...]
    project: Path | None = None  # what working directories mirror; None: programs share the present one

    def __call__(self, runs: list[Run], on_epoch: OnEpoch) -> list[RunRecord]:
        """Train runs, one after the other."""
        return [self._one(run, on_epoch) for run in runs]

    def _one(self, run: Run, on_epoch: OnEpoch) -> RunRecord:
        started, began = time.perf_counter(), time.time()
        with own_workdir(self.project, run.id) as workdir, temporary_folder() as folder:
            history, stderr, log = (folder / name for name in ("history.jsonl", "stderr", "opened"))
            arguments = self.arguments(run, history)
            reader = Reader(history, lambda row: on_epoch(run, row))
            with stderr.open("wb") as errors:
                environment = environment_of(log) | {TOLD: str(folder)}
                code = _run(arguments, errors, reader.read, workdir.path if workdir else None, environment)
            if code != 0:
                tail = stderr.read_bytes()[-TAIL:].decode(errors="replace").strip() or "nothing on stderr"
                raise ProgramError(f"{shlex.join(arguments)}\nended with code {code}\n{tail}")
            reader.read(at_end=True)
            # What `Init.apply` and the tracker of a program left for its record; it need not have them.
            init, tracker = (folder / name for name in (INIT_FILE, TRACKER_FILE))
            models = list(dict.fromkeys(init.read_text().splitlines())) if init.exists() else []
            about: dict[str, Any] = json.loads(tracker.read_text()) if tracker.exists() else {}
            about |= {"scale_used": True, "applied": bool(models)}  # {scale} is in the command
            about["init"] = [json.loads(line) for line in models[:MOST_MODELS]]
            about |= opened_by_program(log, workdir, began)
            return own_record(run, reader.tracker, started, workdir, **about)

    def arguments(self, run: Run, history: Path) -> list[str]:
        """The command with its placeholders filled in, each argument for itself."""
        given = (run.scale, run.seed, history, run.id, os.environ.get(GPU_SLOT))
        values = run.recipe.settings() | dict(zip(GIVEN, given, strict=True))

        def filled(match: re.Match[str]) -> str:
            return str(values[match[1]]) if match[1] else match[0][0]

        return [PLACEHOLDER.sub(filled, part) for part in self.parts]


class Reader:
    """Follows the history that a program writes. If the program starts its file over, so does the reader."""

    def __init__(self, path: Path, on_epoch: Callable[[Row], None]) -> None:
        self.path, self._on_epoch = path, on_epoch
        self._start_over()

    def _start_over(self) -> None:
        self.tracker = Tracker(on_epoch=self._on_epoch)
        self._text, self._epochs = b"", 0  # what was read, and how many epochs are in it

    def read(self, *, at_end: bool = False) -> None:
        """Take in the complete lines; at the end also a last one without a newline."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            text = b""
        if not at_end:
            text = text[: text.rfind(b"\n") + 1]
            if self._text.startswith(text):
                return  # nothing new, or the file is being written again
        if not text.startswith(self._text):
            self._start_over()
        new, first = text[len(self._text) :], self._text.count(b"\n") + 1
        self._text = text
        for number, line in enumerate(new.split(b"\n"), first):
            try:
                if line.strip():
                    self._take(line)
            except (ConfigError, TypeError) as error:  # TypeError: a metric is there twice
                raise ProgramError(f"line {number} of the history: {error}") from None
        has_content = self.tracker.history or self.tracker.finals or self.tracker.diverged
        if at_end and not has_content:
            raise ProgramError("the program wrote nothing to {history}")

    def _take(self, line: bytes) -> None:
        try:
            content = json.loads(line)
        except ValueError:
            shown = line[:80].decode(errors="replace")
            raise ConfigError(f"not JSON: {shown!r}") from None
        row = dict(content) if isinstance(content, dict) else {}
        name, given = next(iter(row.items()), ("", None))
        if name in ("predictions", "initial_predictions") and isinstance(given, list | dict):
            classes = decode_array(given) if isinstance(given, dict) else given  # a dict is of a tracker
            self.tracker.predictions(classes, initial=name == "initial_predictions")
            return
        final, epoch = row.pop("final", None), row.pop("epoch", None)
        if not (final or row):
            raise ConfigError(f"{content!r} (allowed: an object of numbers)")
        if isinstance(final, dict):
            self.tracker.finish(**row, **final)
            return
        self._epochs += 1
        if epoch not in (None, self._epochs):
            raise ConfigError(f"epoch = {epoch!r}, where {self._epochs} is next (allowed: 1, 2, 3, ...)")
        self.tracker.add_row(row if final is None else row | {"final": final})


def _run(
    arguments: Sequence[str],
    errors: Any,
    poll: Callable[[], None],
    cwd: Path | None,
    environment: Mapping[str, str],
) -> int:
    """Run a program to its end; if anything is raised meanwhile, end it."""
    with subprocess.Popen(
        arguments,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
        # A killed worker takes its program with it (1: PR_SET_PDEATHSIG).
        preexec_fn=partial(_prctl, 1, signal.SIGTERM) if _prctl else None,
    ) as program:
        try:
            while True:
                try:
                    return program.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    poll()
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    """Terminate a program and the processes that it has started; kill those that do not end."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + GRACE_SECONDS
        with suppress(ProcessLookupError, PermissionError):  # none are left
            os.killpg(program.pid, signal_number)
            while time.monotonic() < end:
                program.poll()
                os.killpg(program.pid, 0)
                time.sleep(0.02)
            continue
        return


def study_of(
    command: str,
    name: str | None,
    study: str | None,
    preset: str | None,
    settings: Sequence[str],
    watched: Sequence[Path] = (),
    workdir: str = "own",
) -> tuple[Study, dict[str, Fingerprint], CommandTrainer]:
    """The study that a command trains: one from a file, or five scales and five seeds.

    Also what the program of each recipe is made of, by the recipe's id, and its trainer. Files that are
    `watched` count as a part of the code, as do those that the command names.
    """
    called = name or name_of(parse(command))
    if study is not None:
        asked = load_study(study, preset, [*settings, f"pipeline={json.dumps(called)}"])
        if asked.perturbation != 1.0 or asked.split or asked.pins:
            raise ConfigError("chaos, split and pin are not for programs (allowed: initmem.run)")
    else:
        given = dict(map(override, settings))
        scales, seeds = given.pop("scales", [*SCALES]), given.pop("seeds", [*SEEDS])
        asked = own_study(called, given, listed("scales", scales), listed("seeds", seeds))
    shared = set.intersection(*(set(recipe.settings()) for recipe in asked.recipes))
    parts = parse(command, n_seeds=len(asked.seeds), declared=sorted(shared))
    code = {recipe.id: command_fingerprint(parts, watched, recipe.settings()) for recipe in asked.recipes}
    return asked, code, CommandTrainer(parts, project_of(workdir))


def command_fingerprint(
    parts: Sequence[str], watched: Iterable[str | Path] = (), settings: Mapping[str, Any] | None = None
) -> Fingerprint:
    """The arguments of a command, and the files that it or a setting names, or that are `watched`."""
    names = [*parts, *(part.partition("=")[2] for part in parts)]
    names += [value for value in (settings or {}).values() if isinstance(value, str)]
    for before, part in pairwise(parts):
        if before == "-m":
            module = part.replace(".", "/")
            names += [f"{module}.py", f"{module}/__main__.py"]
    files = [name for name in names if os.path.isfile(name)]  # noqa: PTH113 - it never raises
    entries = dict(_arguments(parts))
    note_files(entries, [*files, *watched], set())
    return dict(sorted(entries.items()))


def _arguments(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Arguments by name where they have one: `--lr 0.1`, `--lr=0.1` and `lr=0.1`."""
    option = None
    for index, part in enumerate(parts):
        name, sign, value = part.partition("=")
        if sign and name:
            yield f"argument {name}", value
        elif option is not None and not part.startswith("--"):
            yield f"argument {option}", part
        elif index:
            yield f"argument {index}", part
        option = part if part.startswith("-") and not sign else None
