"""The progress of the studies of a store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from initmem.store.causes import failure_causes
from initmem.store.results import Results
from initmem.store.survey import Survey


def store_status(store: Results) -> dict[str, Any]:
    """Counts per study and recipe."""
    survey = Survey.of(store)
    return {
        "store": str(store.path),
        "studies": study_status(survey),
        "damaged": list(survey.damaged),
    }


def study_status(survey: Survey) -> list[dict[str, Any]]:
    """Counts per study and, below it, per recipe."""
    states = {record.id: record.status for record in survey.records}
    studies = []
    for study in survey.studies:
        rows: list[dict[str, Any]] = []
        for recipe, label in zip(study.recipes, study.labels(), strict=True):
            runs = study.runs(recipe)
            counts = Counter(states.get(run.id, "missing") for run in runs)
            rows.append(
                {
                    "recipe": label,
                    "runs": len(runs),
                    "completed": counts["completed"],
                    "diverged": counts["diverged"],
                    "failed": counts["failed"],
                    "training": sum(run.id in survey.training for run in runs),
                    "missing": counts["missing"],
                }
            )
        total = sum(row["runs"] for row in rows)
        done = total - sum(row["missing"] for row in rows)
        asked = {run.id for run in study.all_runs()}
        causes = failure_causes(record for record in survey.records if record.id in asked)
        studies.append(
            {
                "name": study.name,
                "effort": study.effort,
                "runs": total,
                "done": done,
                "recipes": rows,
                "failures": [cause.to_json() for cause in causes],
            }
        )
    return studies
