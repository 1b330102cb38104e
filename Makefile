# Commands for contributors; `make` or `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup quick test lint types unit format docs serve demo notebook bench results dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything installed (the other targets do this if needed)

$(READY): pyproject.toml constraints.txt hatch_build.py src/manyviews/transforms/_image_ops.c
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quick: lint ## Check style and run the fast tests: about a minute, for every save
	$(BIN)/pytest -n auto --dist worksteal -m 'not slow'

test: lint types docs unit ## Check style, types and documentation, and run all tests

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types
	$(BIN)/mypy

unit: $(READY) ## Run all tests, without the other checks
	$(BIN)/pytest -n auto --dist worksteal

format: $(READY) ## Fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Build the documentation into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

serve: $(READY) ## Serve the documentation, with search, at a local address
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

demo: $(READY) ## Train on the bundled photos, evaluate, write a report: about a minute on two cores
	$(BIN)/manyviews train --recipe demo --output runs/demo --overwrite
	$(BIN)/manyviews report runs/demo -o runs/demo/report.html

notebook: $(READY) ## Execute docs/tutorial.ipynb and store its outputs: about a minute
	$(BIN)/python docs/notebook.py

bench: $(READY) ## Measure speed and memory, compared with common alternatives: results/benchmarks.md
	$(BIN)/python -m benchmarks

results: $(READY) ## Make the tables of docs/results; resumes (days of training): make results RESULTS='--jobs 2'
	$(BIN)/python -m benchmarks.results $(RESULTS)

dist: $(READY) ## Build wheel and sdist into dist/, and test each in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	for package in dist/*.whl dist/*.tar.gz; do tests/try_package.sh $(PYTHON) $$package || exit 1; done

clean: ## Remove environment, caches and builds (runs/ and results/ stay)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
