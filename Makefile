# `make run` starts a server. `make check` is the quick test lane, `make test` runs all tests.
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
TESTS   = $(BIN)/python -m pytest -n 2 --dist loadfile
ROUNDS ?= 1000
WORKS  ?= 10
HARM   ?= 15
TIME   ?= 60
TARGET ?=
DURATION ?= 3600
JOBS   ?= 1000000
EVENTS ?= 1000000

# Tests rewrite their assertions; with bytecode files they do it once, not in every process.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev run check test coverage lint format bench bench-memory bench-idle bench-shipping bench-bulk \
  bench-pages bench-pipeline crash recovery simulate fuzz abuse soak pipeline cluster pictures docs lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# --no-deps: the lock files are complete, and pip's resolver fails on some of their packages.
.venv/ready: requirements.lock pyproject.toml
	@echo "setup: installing the server into .venv"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Millrace requires Python 3.11 or later. Set PYTHON=...")'
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --no-deps --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

.venv/ready-dev: .venv/ready requirements-dev.lock
	@echo "setup-dev: installing Spark and the test tools into .venv (about two minutes, once)"
	@$(PIP) install --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

setup: .venv/ready  ## install the server into .venv

setup-dev: .venv/ready-dev  ## install the server, Spark and the test tools into .venv

run: setup  ## start a server on the default ports with its data in ./data
	@exec $(BIN)/millrace serve --data data

lint: setup-dev  ## check format, lint rules and types
	@$(BIN)/ruff format --check --quiet src tests bench docs
	@$(BIN)/ruff check --quiet src tests bench docs
	@$(BIN)/mypy

format: setup-dev  ## format the sources and apply automatic fixes
	@$(BIN)/ruff format src tests bench docs
	@$(BIN)/ruff check --fix src tests bench docs

check: lint  ## run the quick tests: no server processes, Spark or browser (about a minute)
	@$(BIN)/python tests/codegen.py
	@$(TESTS) --lane check

test: lint  ## run all tests (about ten minutes)
	@$(TESTS)

coverage: setup-dev  ## run all tests and report the coverage
	@rm -f .coverage .coverage.*
	@$(TESTS) --cov

crash: setup-dev  ## kill a server ROUNDS=1000 times and verify every acknowledged command
	@$(BIN)/python tests/crash/rounds.py --rounds $(ROUNDS)

recovery: setup-dev  ## recover from every prefix and every flipped byte of WORKS=10 recorded runs
	@MILLRACE_RECOVERY_SEEDS=$(WORKS) MILLRACE_DAMAGE=all $(BIN)/python -m pytest tests/store/test_recovery.py tests/store/test_damage.py

abuse: setup-dev  ## run hostile clients for HARM=15 seconds each and measure a well-behaved client
	@$(BIN)/python tests/abuse/full.py --harm $(HARM)

simulate: setup-dev  ## simulate clients, faults and crashes until interrupted (SEED=n runs one seed)
	@$(BIN)/python tests/simulation/run.py $(if $(SEED),--seed $(SEED))

# A separate environment, because atheris has wheels for few versions of Python.
.fuzz/venv/ready: requirements-fuzz.lock
	@echo "fuzz: installing the fuzzer into .fuzz/venv (about a minute, once)"
	@$(PYTHON) -m venv --clear .fuzz/venv
	@.fuzz/venv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps --require-hashes \
	  -r requirements-fuzz.lock || { $(PYTHON) --version; \
	  echo "fuzz: atheris cannot be installed for this Python. It has wheels for Python 3.11 to 3.13 on"; \
	  echo "      Linux (x86-64). Set PYTHON=... to one of them. \`make test\` runs the same targets without it."; exit 1; }
	@touch $@

fuzz: .fuzz/venv/ready  ## fuzz the parsers (TIME=60 seconds each, TARGET=faktory for one)
	@.fuzz/venv/bin/python tests/fuzz/guided.py --time $(TIME) $(TARGET)

soak: setup-dev  ## run mixed load on all ports for DURATION=3600 seconds and watch for growth
	@$(BIN)/python tests/soak/soak.py --duration $(DURATION)

bench: setup-dev  ## compare throughput with beanstalkd and Redis (bench/README.md)
	@$(BIN)/python bench/cycles.py

bench-memory: setup-dev  ## measure memory and recovery time of 1,000,000 waiting jobs
	@$(BIN)/python bench/memory.py

bench-idle: setup-dev  ## measure 10,000 idle waiting connections
	@$(BIN)/python bench/idle.py

pipeline: setup-dev  ## run the pipeline tests in full: EVENTS=1000000, crashes after each write, a cluster
	@PIPELINE=all PIPELINE_EVENTS=$(EVENTS) $(TESTS) tests/pipeline

cluster: setup-dev  ## compare the pipeline on a Spark cluster of two workers with a local run
	@$(BIN)/python bench/cluster.py

bench-bulk: setup-dev  ## push JOBS=1000000 from Spark and with PUSHB from one client
	@$(BIN)/python bench/bulk.py --jobs $(JOBS)

bench-pipeline: setup-dev  ## measure the tables of EVENTS=1000000 events with Spark and DuckDB
	@$(BIN)/python bench/pipeline/table_bench.py -n $(EVENTS)

bench-pages: setup-dev  ## measure the web pages with JOBS=1000000 and their effect on workers
	@$(BIN)/python bench/lookers.py --jobs $(JOBS)

bench-shipping: setup-dev  ## measure durable cycles with and without shipping
	@$(BIN)/python bench/shipping.py

pictures: setup-dev  ## take screenshots of every page (light, dark, phone) into build/pictures
	@$(BIN)/python tests/browser/pictures.py

# Both start from the pinned versions; `make lock UPGRADE=--upgrade` takes the newest.
COMPILE = .venv/lock/bin/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
  --no-header --no-annotate --strip-extras --allow-unsafe $(UPGRADE)
LIST = $(PYTHON) -c 'import sys, tomllib; d = tomllib.load(open("pyproject.toml", "rb")); \
  print("\n".join(d["build-system"]["requires"] + [r for g in sys.argv[1:] for r in d["dependency-groups"][g]]))'

lock: setup  ## regenerate the lock files from pyproject.toml
	@$(PYTHON) -m venv .venv/lock && .venv/lock/bin/pip install --quiet pip-tools
	@$(LIST) dev | $(COMPILE) --extra spark -o requirements-dev.lock pyproject.toml -
	@cp requirements-dev.lock requirements.lock
	@$(LIST) | $(COMPILE) --extra lake -o requirements.lock pyproject.toml -
	@$(LIST) fuzz | $(COMPILE) -o requirements-fuzz.lock pyproject.toml -

clean:  ## remove everything that was built (not ./data)
	@rm -rf .venv build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	@rm -rf tests/clients/node/node_modules .fuzz/venv
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
