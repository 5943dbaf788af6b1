# Everything a newcomer runs. Each target installs what it needs, once: stamps remember what pyproject.toml asked for.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
PROMPT ?= What is the capital of France?
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PROJECT := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint format docs web golden bench constraints clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
	  printf '  make %-12s %s\n' "$$name" "$$text"; done

run: $(VENV)/.stamp-run  ## install, fetch the 98 MB demo model, answer a question with it
	@$(BIN)/pumice run smollm2 "$(PROMPT)" --temperature 0 --max-tokens 96

test: $(VENV)/.stamp-dev  ## install the test tools, run the tests
	@tools/install-test-deps.sh
	@$(BIN)/python -m pytest -n $(WORKERS) -q -rR -m "not slow"

test-all: $(VENV)/.stamp-dev  ## the slow tests too
	@tools/install-test-deps.sh emulator
	@$(BIN)/python -m pytest -n $(WORKERS) -q -rR

lint: $(VENV)/.stamp-dev  ## style, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/generate_docs.py --check

format: $(VENV)/.stamp-dev  ## rewrite the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.stamp-dev  ## write the generated pages
	@$(BIN)/python tools/generate_docs.py

web: web/node_modules/.package-lock.json  ## build the runtime and the page for browsers from web/; needs node and npm
	@cd web && node_modules/.bin/tsc -p . && node build.mjs && node build.mjs --server

golden: $(VENV)/.stamp-dev  ## accept the kernels and plans that are emitted now
	@$(BIN)/python -m pytest -q tests/golden tests/plan/test_golden_plans.py --update-golden

bench: $(VENV)/.stamp-run  ## measure this machine against its peers; PUMICE_BENCH_PYTHON names a Python that has them
	@[ -n "$$PUMICE_BENCH_PYTHON" ] || PYTHON=$(PYTHON) bench/peers.sh
	@$(BIN)/python bench/cpu.py
	@$(BIN)/python bench/scaling.py
	@$${PUMICE_BENCH_PYTHON:-.bench-venv/bin/python} bench/plot.py

constraints: $(VENV)/.stamp-dev  ## resolve the pinned versions anew
	@$(PIP) install --dry-run --ignore-installed --report $(VENV)/resolved.json '.[cpu,llm,grammar,examples,serve,packs,vulkan,ray,assist,mcp,pdf,langchain,llama-index,llm-plugin,sklearn,dev]'
	@$(BIN)/python tools/write_constraints.py $(VENV)/resolved.json > $(VENV)/constraints.new
	@mv $(VENV)/constraints.new constraints.txt

clean:  ## remove the environment, caches and builds
	@rm -rf $(VENV) .bench-venv web/node_modules web/dist build dist src/*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	@find src tests examples bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Pumice needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -1). Try: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt-get install -y python3-venv" >&2; exit 1; }

web/node_modules/.package-lock.json: web/package-lock.json
	@command -v npm >/dev/null || { echo "npm is missing. On Debian or Ubuntu: sudo apt-get install -y nodejs npm" >&2; exit 1; }
	@cd web && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(VENV)/.stamp-run: $(PROJECT) | $(BIN)/python
	@echo "installing pumice into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[cpu,llm]'
	@touch $@

$(VENV)/.stamp-dev: $(PROJECT) | $(BIN)/python
	@echo "installing pumice and its test tools into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[cpu,llm,dev]'
	@touch $@ $(VENV)/.stamp-run
