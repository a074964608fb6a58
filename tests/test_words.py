"""User-facing text uses the field's own terms, in American spelling, and the same term everywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import typer.main

from initmem.cli import app

ROOT = Path(__file__).parents[1]

# What to write instead, by pattern. The patterns match only forms without a legitimate use in this project:
# words such as "floor", "part", "cut" and "sure" are too common to be forbidden as such.
TERMS = {
    r"\bsurely\b": "significant at the 5% level; the 95% interval lies below 2 pp",
    r"\blargest (less|minus) (the )?smallest\b": "range; max - min",
    r"\b(the|its|their|a) cover\b": "coverage",
    r"\bfore(tell|tells|telling|told)\b": "predict",
    r"\bwhat came\b": "observed",
    r"\bit held\b": "correct",
    r"\bsummands?\b": "scale and shift",
    r"\bslopes? (at|of) (the )?(loss|outputs?)\b": "grad_output",
    r"(?<!decimal )\bplaces\b": "pixels, positions",
    r"\boriginal stack\b": "Keras 3",
    r"\b(code|pipeline|program|script|loop|study) of (a user's|the user's|your) own\b": "user code; your own",
    r"\b(a|the) user's own (training )?code\b|\bof (a|the) user's(?! \w)": "user code; the user's ...",
    r"\b(go|goes|going|gone|went) on (from|where|with|elsewhere|later|when|without)\b": "resume, continue",
    r"\b(command|runs?|others|`keep_going=True`) (again )?go(es)? on\b|\bin going on\b": "resume, continue",
    r"\bpok(e|es|ed|ing)\b": "perturbation",
    r"\btwins?\b": "perturbed replicate",
    r"\b(company|companies|teams?)\b": "group, pack",
    r"\bcuts? (of|into) (runs|replicas|packs|groups)\b|\bpieces of (a|the) pack\b": "group, pack",
    r"\b(floor|foot) of (a|the) (schedule|learning rate)\b": "lr_floor",
    r"\bprobes\b|\b(a|the|this) probe\b|`probe`|\bprobe ?= ?": "scaled",
    r"\bkiller of the operating system\b": "the OOM killer",
    r"^sure$": "significant",
    r"\b(beside|besides) (it|them) stands?\b": "next to",
    r"\bbeyond doubt\b|\btakes? .{,20} off the memory": "significant; reduces",
}
SPELLING = {
    r"\b\w*(ali|ari|eli|erni|oni|tili|gni|gani|nimi|ximi|timi)s(e|es|ed|er|ing|ation)\b": "-ize, -ization",
    r"\b\w*(colour|behaviour|favour|neighbour)\w*\b": "-or",
    r"\blicence\b": "license",
    r"\b(centre|artefact|grey)s?\b": "center, artifact, gray",
}

NAMES = {
    r"(^|_)(team|company)s?(_|$)": "pack, group",
    r"(^|_)(poke|twin)s?(_|$)": "perturbation, perturbed replicate",
    r"^_?cuts?$": "pack, group",
    r"^found$": "what it is: rows, spread, records",
    r"(^|_)slopes?_(at|of)(_|$)|^(d|grad)_slope$": "grad_output",
    r"(^|_)(summand|foretold|surely)s?(_|$)": "shift, predicted, significant",
}

# Where a local variable still has this name: take a module off the list when you edit it.
FOUND = (
    "engines/engine", "recipe", "register", "report/verdicts",
    "study_file",
)  # fmt: skip

# (path, matched text): names that old files use.
ALLOWED = {
    ("src/initmem/study.py", "poke"),  # the former name of perturbation, in ids and stored files
    *((f"src/initmem/{path}.py", "found") for path in FOUND),
}


# On pages for users as well: the name of the thing instead of a pronoun, and words of the field.
PROSE = {
    r"\b(that|those) of\b": "name the thing",
    r"\bbeside\b": "next to",
    r"\bpredictors?\b": "model, checkpoint",
    r"\bpenalt(y|ies)\b": "L2",
    r"(?<!learning) \brates? x\b|\b(at|with) (a|the) (constant|usual|large|small) rate\b": "learning rate",
    r", too\b|\btoo[.)]": "also",
    r"\banew\b": "again",
    r"(?<!half-)\b(says|knows|asks|tells|lives)\b": "states, shows, prints, contains",
    r"\b(looks?|efforts?)\b(?! (at|like)\b)": "interim analysis; preset",
    r"\btests?/test_\w+|\btest_\w+\.py\b": "the promise, not the name of its test",
}
GENERATED = ("results.md", "transformers.md")  # tables and what they show

PAGES = ["README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "docs/*.md.in"]
TEMPLATES = ["src/initmem/**/*.j2", "src/initmem/**/*.html", "src/initmem/**/*.js", "src/initmem/**/*.toml"]
SOURCES = sorted((ROOT / "src" / "initmem").rglob("*.py"))
Text = tuple[str, int, str]  # path, line, text


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def lines(path: Path) -> Iterator[Text]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        yield str(path.relative_to(ROOT)), number, line


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def literals(path: Path) -> Iterator[Text]:
    """Docstrings and string literals, f-strings included; not names and not comments."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield str(path.relative_to(ROOT)), node.lineno, " ".join(node.value.split())


def names(path: Path) -> Iterator[Text]:
    """The names that a module defines: functions, classes, arguments, variables and attributes."""
    for node in nodes(path):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield str(path.relative_to(ROOT)), node.lineno, name


def help_texts(command: Any, name: str = "initmem") -> Iterator[Text]:
    """The help of a command, of its options and of its subcommands."""
    yield f"{name} --help", 0, " ".join((command.help or "").split())
    for parameter in command.params:
        yield f"{name} --help", 0, f"{parameter.name}: {getattr(parameter, 'help', None) or ''}"
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from help_texts(subcommand, f"{name} {child}")


def findings(texts: Iterable[Text], patterns: dict[str, str]) -> list[str]:
    """What is written where, and what to write instead."""
    any_of_them = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags=re.IGNORECASE)
    return [
        f"{path}:{number}: {hit[0]!r}, write: {instead}"
        for path, number, text in texts
        if any_of_them.search(text)
        for pattern, instead in patterns.items()
        for hit in re.finditer(pattern, text, flags=re.IGNORECASE)
        if (path, hit[0]) not in ALLOWED
    ]


def test_pages_messages_and_help() -> None:
    pages = (text for path in files(*PAGES, *TEMPLATES) for text in lines(path))
    messages = (text for path in SOURCES for text in literals(path))
    helps = list(help_texts(typer.main.get_command(app)))
    assert any(path == "initmem data get --help" for path, _, _ in helps)
    assert findings(chain(pages, messages, helps), TERMS | SPELLING) == []


def test_prose_of_user_pages() -> None:
    patterns = ("README.md", "docs/*.md", "docs/*.md.in", "src/initmem/paper/studies/*.toml")
    pages = [path for path in files(*patterns) if path.name not in GENERATED]
    assert len(pages) > 20
    assert findings((text for path in pages for text in lines(path)), PROSE) == []


def test_names_in_code() -> None:
    assert findings((text for path in SOURCES for text in names(path)), NAMES) == []


BAD = [
    "surely within 2 points",
    "the largest less smallest mean",
    "what the clocks foretold, and what came",
    "how often it held",
    "a factor and a summand per channel",
    "the slopes at the outputs",
    "at a quarter of the places",
    "the original stack's momentum",
    "training code of your own",
    "all of a user's own code is measured",
    "a file of the user's, filled in later",
    "cuts of runs that train together",
    "the floor of the schedule",
    "all comparisons are beyond doubt",
    "The same command goes on.",
    "goes on from the last checkpoint",
    "a poked twin",
    "what the probe multiplies",
    "the killer of the operating system",
    "sure",
    "initialise the colour",
]
GOOD = [
    "the noise floor",
    "the folder is the user's own",
    "only the user's data have to be read",
    "four decimal places",
    "what the clocks predicted and what was observed",
    "your own training code",
    "rerunning the same command resumes",
    "the 95% interval covers zero",
    "make sure that it is there",
    "a precise comparison, otherwise noise",
    "beta, the slope of the norm against the scale",
]


def test_the_patterns_of_prose_find_what_they_are_for() -> None:
    bad = [
        "rate x penalty?",
        "at the constant rate",
        "The board shows it, too.",
        "drawn anew",
        "as the paper says",
        "at every look",
    ]
    assert [text for text in bad if not findings([("page", 1, text)], PROSE)] == []
    good = [
        "at a constant learning rate",
        "learning rate x L2",
        "too short to show memory",
        "at a rate of 20%",
        "Half-lives, and what forgetting looks like",
    ]
    assert [text for text in good if findings([("page", 1, text)], PROSE)] == []


def test_the_patterns_find_what_they_are_for_and_leave_good_text_alone() -> None:
    found = [text for text in BAD + GOOD if findings([("page", 1, text)], TERMS | SPELLING)]
    assert found == BAD
