# Everything a person runs from a clone; needs Python 3.11 or newer. Any other interpreter: make setup PYTHON=python3.12
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
SOURCES := src tests bench containers
# Holds megatron.training, which the version of the lock does not; tests of injection run it by its own folder.
MEGATRON_LM := megatron-core-0.19.2

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint lock-check bench

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## install everything into .venv, in the versions of requirements.lock

# torch first and by itself: whatever else asks for torch then finds it, and pulls in no other build.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer: make setup PYTHON=...")'
	$(PYTHON) -m venv .venv
	grep '^torch==' requirements.lock > .venv/torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r .venv/torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
		--target .venv/$(MEGATRON_LM) --upgrade $(subst -0,==0,$(MEGATRON_LM)) \
		|| echo '$(MEGATRON_LM) cannot be installed here: tests that need megatron.training will be skipped'
	@touch $@

demo: setup ## prove the smoke recipe on this machine: every arm, the report, the verdict
	$(BIN)/snakemake --profile profiles/default results/smoke/report.html
	@$(BIN)/samebits verdict results/smoke

test: lint ## lint, then every test, WORKERS (2) at a time
	$(BIN)/pytest -n $(WORKERS)

lint: setup ## format, style, types, workflow
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

lock-check: setup ## does requirements.lock resolve from the bare package index, on each Python? also in `make test`
	$(BIN)/pytest -rs tests/test_lock.py

bench: setup ## measure everything in bench/, against its bars and peers
	@missed=0; for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script" || missed=1; done; exit $$missed
