# `make run` starts a server. `make check` is the quick test lane, `make test` runs all tests.
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The tests run on the sources; `make check-compiled` repeats those of the hot path compiled.
TESTS   = MILLRACE_PURE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
# Twice the two cores of CI: many tests wait for a process or a timeout.
WORKERS ?= 4
HOT_TESTS = tests/engine tests/protocols tests/store tests/server tests/conformance
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
.PHONY: help build check-compiled codegen setup setup-dev run demo wheel check test coverage lint format bench bench-memory bench-idle bench-shipping bench-bulk \
  bench-pages bench-pipeline bench-sdk crash recovery simulate fuzz abuse soak soak-workers pipeline lake cluster pictures docs recordings tutorial guides lock clean

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

# Only for a build; `make setup-dev` installs the same versions.
.venv/ready-build: .venv/ready requirements-build.lock
	@$(PIP) install --no-deps --require-hashes -r requirements-build.lock
	@touch $@

# `make run` does not wait for the build, which takes 35 s of CPU time. It uses the compiled modules
# if they exist and fit the sources.
build: .venv/ready  ## compile the hot path of the server, if there is a C compiler
	@if command -v $(CC) > /dev/null; then $(MAKE) --no-print-directory .venv/ready-build; fi
	@$(BIN)/python tools/compile.py

setup: .venv/ready build  ## install the server into .venv and compile its hot path

setup-dev: .venv/ready-dev  ## install the server, Spark and the test tools into .venv

run: .venv/ready  ## start a server on the default ports with its data in ./data
	@exec $(BIN)/millrace serve --data data

demo: .venv/ready  ## run a server with the workload of a shop, to look at the pages
	@exec $(BIN)/millrace demo

wheel: build  ## build the pure wheel and, with a C compiler, the compiled wheel in dist/compiled
	@rm -rf build dist
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build
	@if $(BIN)/python tools/compile.py --fresh; then \
	  MILLRACE_WHEEL=compiled $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist/compiled . && rm -rf build; fi
	@ls -l dist

lint: setup-dev  ## check format, lint rules and types
	@$(BIN)/ruff format --check --quiet src tests bench tools docs
	@$(BIN)/ruff check --quiet src tests bench tools docs
	@$(BIN)/mypy

format: setup-dev  ## format the sources and apply automatic fixes
	@$(BIN)/ruff format src tests bench tools docs
	@$(BIN)/ruff check --fix src tests bench tools docs

codegen: setup-dev
	@$(BIN)/python tools/compile.py --check

check:  ## run the quick tests: no server processes, Spark or browser (about a minute)
	@$(MAKE) --no-print-directory -j 2 lint codegen
	@$(TESTS) -n 2 -p no:schemathesis --lane check
	@if $(BIN)/python tools/compile.py --fresh; then $(BIN)/python -m pytest tests/test_compiled.py; fi

check-compiled: setup-dev build  ## repeat the quick tests of the hot path on the compiled modules
	@$(BIN)/python -m pytest -n 2 --dist loadfile -p no:schemathesis --lane check tests/test_compiled.py $(HOT_TESTS)

test: lint  ## run all tests (about ten minutes)
	@$(TESTS)
	@$(MAKE) --no-print-directory check-compiled

coverage: setup-dev  ## run all tests and report the coverage
	@rm -f .coverage .coverage.*
	@$(TESTS) --cov

crash: setup-dev  ## kill a server ROUNDS=1000 times and verify every acknowledged command
	@$(BIN)/python tests/crash/rounds.py --rounds $(ROUNDS)

recovery: setup-dev  ## recover from every prefix and every flipped byte of WORKS=10 recorded runs
	@MILLRACE_RECOVERY_SEEDS=$(WORKS) MILLRACE_DAMAGE=all $(BIN)/python -m pytest tests/store/test_recovery.py tests/store/test_damage.py

abuse: setup-dev  ## run hostile clients for HARM=15 seconds each and measure a well-behaved client
	@$(BIN)/python tests/abuse/full.py --harm $(HARM)
	@$(BIN)/python tests/abuse/slices_full.py --jobs $(JOBS)

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

soak-workers: setup-dev  ## run SDK workers for HOURS=24 of virtual time with lost requests, lost replies and restarts
	@$(BIN)/python tests/client/virtual_soak.py --hours $(or $(HOURS),24) --seed $(or $(SEED),1)

bench: setup-dev  ## compare throughput with beanstalkd and Redis (bench/README.md)
	@$(BIN)/python bench/cycles.py

bench-memory: setup-dev  ## measure memory and recovery time of 1,000,000 waiting jobs
	@$(BIN)/python bench/memory.py

bench-idle: setup-dev  ## measure 10,000 idle waiting connections
	@$(BIN)/python bench/idle.py

pipeline: setup-dev  ## run the pipeline tests in full: EVENTS=1000000, crashes after each write, a cluster
	@PIPELINE=all PIPELINE_EVENTS=$(EVENTS) $(TESTS) tests/pipeline

lake: setup-dev  ## commit 3,000 times to a lake under readers, compaction and vacuum
	@MILLRACE_LONG=1 $(BIN)/python -m pytest tests/journal/test_maintenance.py

cluster: setup-dev  ## compare the pipeline on a Spark cluster of two workers with a local run
	@$(BIN)/python bench/cluster.py

bench-bulk: setup-dev  ## push JOBS=1000000 from Spark and with PUSHB from one client
	@$(BIN)/python bench/bulk.py --jobs $(JOBS)

bench-pipeline: setup-dev  ## measure the tables of EVENTS=1000000 events with Spark, DuckDB and DataFusion
	@$(BIN)/python bench/pipeline/table_bench.py -n $(EVENTS)

bench-pages: setup-dev  ## measure the web pages with JOBS=1000000 and their effect on workers
	@$(BIN)/python bench/page_load.py --jobs $(JOBS)

bench-shipping: setup-dev  ## measure durable cycles with and without shipping
	@$(BIN)/python bench/shipper.py

recordings: setup .docs/venv/ready  ## record top, worker and demo in a terminal, into docs/pictures
	@.docs/venv/bin/python docs/site/recordings.py

tutorial: setup-dev wheel  ## follow docs/tutorial.md in a new environment with only the wheel
	@$(BIN)/python tests/docs/tutorial.py dist

.guides/venv/ready: requirements-guides.lock
	@echo "guides: installing Django, FastAPI and Flask into .guides/venv (once)"
	@$(PYTHON) -m venv --clear .guides/venv
	@.guides/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-guides.lock
	@touch $@

guides: .guides/venv/ready  ## run the examples for Django, FastAPI and Flask with these frameworks
	@PYTHONPATH=src .guides/venv/bin/python tests/docs/web_frameworks.py

.bench/venv/ready: requirements-bench.lock
	@echo "bench-sdk: installing Celery, RQ and Dramatiq into .bench/venv (once)"
	@$(PYTHON) -m venv --clear .bench/venv
	@.bench/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-bench.lock
	@touch $@

bench-sdk: setup-dev .bench/venv/ready  ## compare the Python SDK with Celery, RQ and Dramatiq
	@$(BIN)/python bench/sdk_comparison.py

# A separate environment, so that `make setup-dev` stays small.
.docs/venv/ready: requirements-docs.lock
	@echo "docs: installing mkdocs into .docs/venv (once)"
	@$(PYTHON) -m venv --clear .docs/venv
	@.docs/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.lock
	@touch $@

# Not --quiet: it would also hide the warnings that --strict turns into errors.
docs: .docs/venv/ready  ## build the documentation site into build/docs; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 .docs/venv/bin/python -m mkdocs build --strict --clean
	@echo "docs: open build/docs/index.html, or with search: python3 -m http.server --directory build/docs"

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
	@cp requirements-dev.lock requirements-build.lock
	@echo "mypy[mypyc]" | $(COMPILE) -o requirements-build.lock -
	@$(LIST) fuzz | $(COMPILE) -o requirements-fuzz.lock pyproject.toml -
	@$(LIST) docs | $(COMPILE) -o requirements-docs.lock -
	@$(LIST) guides | $(COMPILE) -o requirements-guides.lock pyproject.toml -
	@$(LIST) bench | $(COMPILE) -o requirements-bench.lock -

clean:  ## remove everything that was built (not ./data)
	@rm -rf .venv build dist src/millrace/_compiled .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	@rm -rf tests/clients/node/node_modules .fuzz/venv .docs .bench .guides
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
