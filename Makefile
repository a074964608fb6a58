# Everything happens in .venv, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
DEMO_STORE := demo-store

EXTRAS := bench,docs,jax,keras,lightning,mlflow,pandas,ray,slurm,tensorboard,transformers,wandb,test,lint

.PHONY: demo test lint style types tests docs extras clean

demo: .venv/base.stamp  ## train the quickstart, print the verdicts, write the report
	$(BIN)/initmem run quickstart --store $(DEMO_STORE)
	$(BIN)/initmem report $(DEMO_STORE)

test: style  ## all checks; mypy, which keeps one core busy for half a minute, runs beside the tests
	$(MAKE) --no-print-directory -j 2 types tests

lint: style types

style: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.stamp
	$(BIN)/mypy

tests: .venv/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder  # one process imports Keras, JAX or Ray, not three

docs: .venv/dev.stamp  ## the documentation site, in site/; opens from the disk without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

extras: .venv/base.stamp  ## whether all extras together can be installed with constraints.txt; installs nothing
	$(BIN)/pip install --quiet --dry-run --disable-pip-version-check -c constraints.txt '.[$(EXTRAS)]'

.venv/base.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/dev.stamp: .venv/base.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	touch $@

clean:
	rm -rf .venv $(DEMO_STORE) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
