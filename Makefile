# Each target does all the set-up it needs; a second run does no network at all.
#
#   make setup    virtual environment, locked packages, Kafka's jars and Spark's connector
#   make test     all but nightly ones (PYTEST_ARGS="-k split -x" is passed on; WORKERS=0 CLUSTER_WORKERS=0: in one process)
#   make test-core, make test-cluster, make test-load   those without brokers, with brokers or Spark, and under load
#   make nightly  what takes too long for every run: the tests left out above, 10,000 seeds, twenty minutes of chaos
#                 and ten of slow brokers
#   make lint     style, types, import contracts, the shape of the package
#   make demo     the main job, on an embedded three-broker cluster
#   make bench    all benchmarks in less than 40 minutes; writes docs/benchmarks.md (BENCH_ARGS="--only read": some rows;
#                 BENCH=dead_producers, large, open_transaction, pause_rounds, stalled, state_handover, takeover, week: what it leaves out)
#   make chaos    faults on real brokers for a long time (MINUTES=20, CHAOS_ARGS="--seed 7")
#   make audit    known vulnerabilities of the locked packages and the pinned jars; make sbom: what they are (CycloneDX, dist/)
#   make docs     the pages as a site in site/ (MkDocs Material, with an environment of its own)
#   make lock     resolve requirements/*.txt again from pyproject.toml (needs uv)
#   make clean    remove the virtual environment and tool caches (the jars stay in the cache folder)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
UV ?= uv
BENCH ?= table
MINUTES ?= 20
WORKERS ?= 5
CLUSTER_WORKERS ?= 4
# Of the command line, what asks no broker.
OFFLINE_TESTS := tests/cli/test_refusals.py tests/cli/test_usage.py tests/cli/test_reference.py
LOAD_TESTS := tests/demo tests/fault/test_brokers_break.py tests/fault/test_chaos.py
# Spark is one share of minutes. The command line looks at whole clusters, which costs more the more topics are left there.
# Then the longest: a process that began one last would keep the others waiting.
SPARK_AND_CLI := tests/spark $(filter-out $(OFFLINE_TESTS),$(wildcard tests/cli/test_*.py))
LONGEST := $(patsubst %,tests/broker/test_%.py,unenrol slots_change rights producer_operations consumer_groups \
  producer_dropin state_engine operations_recovery) \
  $(filter-out $(LOAD_TESTS),$(wildcard tests/fault/test_*.py))
CLUSTER_TESTS := $(SPARK_AND_CLI) $(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/broker/test_*.py))
CORE_TESTS := $(filter-out tests/spark tests/fault tests/broker tests/cli tests/demo %__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) $(OFFLINE_TESTS)
NOTHING_SELECTED := 5
# Tests start hundreds of Pythons: without it each would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE
# Longer than any test that runs at night only.
NIGHT := -o faulthandler_timeout=2000

# The stamps carry a checksum of what they stand for: a changed lock is installed, an unchanged one is not looked at.
LOCK_SUM := $(shell cat requirements/build.txt requirements/dev.txt | cksum | cut -d' ' -f1)
PROJECT_SUM := $(shell cat pyproject.toml hatch_build.py kpsplit/producer/_fast.c kpsplit/kafka/_messages.c | cksum | cut -d' ' -f1)
LOCKED := $(VENV)/.locked-$(LOCK_SUM)
INSTALLED := $(VENV)/.installed-$(LOCK_SUM)-$(PROJECT_SUM)

# What looks at the locked packages is installed apart from them.
AUDIT := .venv-audit
AUDITORS := $(AUDIT)/.locked

# So is what builds the site.
SITE := .venv-docs
SITE_BUILDERS := $(SITE)/.locked

.PHONY: help setup jars nightly test test-core test-cluster test-load lint demo bench chaos audit sbom docs lock clean

help:
	@sed -n 's/^#   //p' Makefile

setup: jars
	@echo "ready: $(BIN)/kpsplit" >&2

jars: $(INSTALLED)
	@$(BIN)/python -m kpsplit.devcluster.jars >/dev/null
	@$(BIN)/python -c 'from kpsplit.spark_jobs.jars import connector_jars; connector_jars()'

test: test-core test-cluster test-load

test-core: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) $(CORE_TESTS) || [ $$? -eq $(NOTHING_SELECTED) ]

# Processes with a cluster each; one Spark session. More than processors, because most tests wait for brokers; not
# many more: Spark gives a Python worker ten seconds to start, whatever else runs.
test-cluster: jars
	$(BIN)/python -m pytest -n $(CLUSTER_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(CLUSTER_TESTS) || [ $$? -eq $(NOTHING_SELECTED) ]

# One process: they write at a steady rate, whether the machine keeps up or not, and would take it from their neighbours.
test-load: jars
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(LOAD_TESTS) || [ $$? -eq $(NOTHING_SELECTED) ]

nightly: jars
	$(BIN)/python -m pytest -m nightly -n $(CLUSTER_WORKERS) --dist loadfile $(NIGHT) $(PYTEST_ARGS) tests $(LOAD_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -m nightly $(NIGHT) $(PYTEST_ARGS) $(LOAD_TESTS)
	KPSPLIT_SIM_SEEDS=0:10000 $(BIN)/python -m pytest $(NIGHT) $(PYTEST_ARGS) tests/sim/test_simulation.py
	$(MAKE) chaos
	$(MAKE) chaos MINUTES=10 CHAOS_ARGS="--mix slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/shape.py

demo: jars
	$(BIN)/kpsplit demo $(DEMO_ARGS)

bench: jars
	$(BIN)/python -m benchmarks.$(BENCH) $(BENCH_ARGS)

chaos: jars
	$(BIN)/python -m tests.fault.chaos --minutes $(MINUTES) $(CHAOS_ARGS)

audit: $(AUDITORS) $(INSTALLED)
	$(AUDIT)/bin/pip-audit --require-hashes --disable-pip \
	  -r requirements/base.txt -r requirements/dev.txt -r requirements/build.txt
	$(BIN)/python scripts/jars.py audit

sbom: $(AUDITORS)
	@mkdir -p dist
	@for lock in base demo dev build; do \
	  PYTHONWARNINGS=ignore $(AUDIT)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    -o dist/kpsplit-$$lock.cdx.json requirements/$$lock.txt; \
	  echo "dist/kpsplit-$$lock.cdx.json" >&2; \
	done
	@$(BIN)/python scripts/jars.py bill dist

$(AUDITORS): requirements/audit.txt | $(BIN)/python
	$(BIN)/python -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

# Any Python from 3.11 on; PYTHON=/path/to/python overrides the search.
$(BIN)/python:
	@for candidate in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$candidate" >&2; \
	    "$$candidate" -m venv $(VENV) || { rm -rf $(VENV); \
	      echo "this Python cannot create virtual environments; on Debian or Ubuntu install python3-venv" >&2; exit 1; }; \
	    exit 0; \
	  fi; \
	done; \
	echo "no Python >= 3.11 found; install one or run: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1

# First pip itself and the build back ends, because PySpark is a source archive that is built without isolation.
$(LOCKED): | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/build.txt
	$(PIP) install --require-hashes --no-build-isolation -r requirements/dev.txt
	@rm -f $(VENV)/.locked-* $(VENV)/.installed-*
	@touch $@

$(INSTALLED): $(LOCKED)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-*
	@touch $@

LOCK_FLAGS := --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url
docs: $(SITE_BUILDERS)
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict

$(SITE_BUILDERS): requirements/docs.txt | $(BIN)/python
	$(BIN)/python -m venv $(SITE)
	$(SITE)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --group build -o requirements/build.txt
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --extra demo --group dev \
	  -o requirements/dev.txt pyproject.toml
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --constraint requirements/dev.txt \
	  -o requirements/base.txt pyproject.toml
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --constraint requirements/dev.txt --extra demo \
	  -o requirements/demo.txt pyproject.toml
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --group audit -o requirements/audit.txt
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile $(LOCK_FLAGS) --group docs -o requirements/docs.txt

clean:
	rm -rf $(VENV) $(AUDIT) $(SITE) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
