# Everything a contributor runs. `make help` lists it; a fresh clone needs Python 3.11 or later, and Java 17 or 21 for Spark.

PYTHON ?= python3
HOURS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Narrow a test run: make test ARGS="tests/store -k fence"
ARGS ?=
# `no`: `make test-all` tests the versions of `make setup` alone.
VERSIONS ?=
# What the tests of a tier see of this environment, and how many processes run them, is in .ci/tests.
TESTS = $(BIN)/python .ci/tests
# Hundreds of processes import the same modules: each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java demo test test-fast test-slice test-all soak test-k8s check format bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## virtual environment and dependencies (again only if pyproject.toml or constraints.txt has changed)

$(STAMP): pyproject.toml constraints.txt .ci/setup .ci/bytecode
	@.ci/setup "$(PYTHON)" "$(VENV)"
	@touch $@

java: ## find Java 17 or 21, or install it with apt-get where that is possible
	@.ci/java

demo: $(STAMP) ## the sales pipeline in a real Airflow, checked at the end; ONCE=1 exits then; DAG=logio_daily
	@JAVA_HOME="$$(.ci/java)" && export JAVA_HOME && exec $(BIN)/python -m demo

test: $(STAMP) ## the tests that CI runs, in at most 15 minutes on two cores (ARGS="tests/unit -k name" for some)
	@JAVA_HOME="$$(.ci/quick-java $(VENV))" && export JAVA_HOME && exec $(TESTS) test $(ARGS)

test-fast: $(STAMP) ## the tests that need no JVM, no server and no Airflow, in two minutes
	@exec $(TESTS) fast $(ARGS)

test-slice: $(STAMP) ## a tenth of what `make test` leaves out, another one for each commit: CI runs it, too
	@JAVA_HOME="$$(.ci/quick-java $(VENV))" && export JAVA_HOME && exec $(TESTS) slice $(ARGS)

test-all: $(STAMP) ## all tests except those that take hours, in an hour, then other versions (not with VERSIONS=no, or ARGS)
	@JAVA_HOME="$$(.ci/quick-java $(VENV))" && export JAVA_HOME && $(TESTS) all $(ARGS)
	@[ -n "$(ARGS)" ] || [ "$(VERSIONS)" = no ] || exec $(BIN)/python .ci/versions

soak: $(STAMP) ## what needs hours: campaigns, storms, all crash points, and sales with kills for HOURS=8 (1 by default)
	@JAVA_HOME="$$(.ci/quick-java $(VENV))" && export JAVA_HOME && LOGIO_SOAK_HOURS="$(HOURS)" exec $(TESTS) soak $(ARGS)

test-k8s: $(STAMP) ## drivers on the Kubernetes that KUBECONFIG names; docker/k8s/README.md says what it needs
	@JAVA_HOME="$$(.ci/java)" && export JAVA_HOME && exec $(BIN)/python -m tests.k8s

check: $(STAMP) ## format, quotes, generated pages, the page's built files (where there is Node), lint, types, imports
	$(BIN)/ruff format --check .
	@$(BIN)/python .ci/quote --check
	@$(BIN)/python .ci/reference --check
	@$(BIN)/python .ci/promises --check
	@$(BIN)/python .ci/wings --check
	@if command -v node >/dev/null; then .ci/page --check; else echo "no Node: the page's built files are not checked"; fi
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python .ci/quote
	$(BIN)/python .ci/reference
	$(BIN)/python .ci/promises
	$(BIN)/python .ci/wings

bench: $(STAMP) ## the figures of docs/performance.md (ARGS="--only spark" for some, ARGS=--help lists them)
	@JAVA_HOME="$$(.ci/java)" && export JAVA_HOME && exec $(BIN)/python -m tests.bench $(ARGS)

clean: ## remove the virtual environment, the demo's files and all caches
	rm -rf $(VENV) .demo .logio build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
