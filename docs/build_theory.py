"""Build docs/theory.md: compute its numbers, draw its pictures, fill its template, run its code.

    python docs/build_theory.py           # all of it, about a minute; needs `initmem` on the path
    python docs/build_theory.py --text    # only the page, from the numbers of the last build

The numbers are kept in docs/theory.json, so that the page can be checked without computing them again.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent
TEMPLATE, PAGE, NUMBERS = HERE / "theory.md.in", HERE / "theory.md", HERE / "theory.json"
OUTPUT = re.compile(r"```python\n(?P<code>.*?)```\n\n<!-- output -->\n", re.DOTALL)

Numbers = dict[str, list[dict[str, Any]]]


def compute() -> Numbers:
    """Every part of the theory, each with its picture."""
    from initmem.theory.show import PARTS, show

    found = {}
    for name, part in PARTS.items():
        picture = HERE / "images" / f"theory-{name}.png" if part.plot else None
        found[name] = show(name, output=picture)
    return found


def render(numbers: Numbers) -> str:
    """Fill the template; a number that it asks for and that is not there is an error."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"sig": significant, "below": power_above, "fixed": fixed, "count": "{:,}".format}
    environment.globals["find"] = find
    return with_outputs(environment.from_string(TEMPLATE.read_text("utf-8")).render(numbers))


def with_outputs(page: str) -> str:
    """Run the page's Python, block by block in one session, and put what it prints where it is asked for."""
    session: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block["code"], session)
        return f"```python\n{block['code']}```\n\n```text\n{printed.getvalue()}```\n"

    return OUTPUT.sub(run, page)


def find(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one row with these values."""
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


def significant(value: float | None, digits: int = 3) -> str:
    """A number to so many digits; a dash for what never happened."""
    return "-" if value is None else f"{value:.{digits}g}"


def fixed(value: float, places: int = 1) -> str:
    """A number to so many decimal places."""
    return f"{value:.{places}f}"


def power_above(value: float) -> str:
    """The power of ten next above the size of a number."""
    return f"1e{math.floor(math.log10(abs(value))) + 1}" if value else "1e-300"


def main() -> None:
    """Build the page, and unless only its text is asked for, its numbers and pictures."""
    if "--text" not in sys.argv[1:]:
        (HERE / "images").mkdir(exist_ok=True)
        NUMBERS.write_text(json.dumps(compute(), indent=1) + "\n")
    PAGE.write_text(render(json.loads(NUMBERS.read_text())), "utf-8")


if __name__ == "__main__":
    main()
