# The two commands a newcomer needs are `make run` and `make test`.
PYTHON ?= python3
BIN    := .venv/bin
ROUNDS ?= 1000
WORKS  ?= 10
HARM   ?= 15
TIME   ?= 60
TARGET ?=
DURATION ?= 3600
JOBS   ?= 1000000
EVENTS ?= 1000000

.DEFAULT_GOAL := help
.PHONY: help setup run test coverage lint check format bench bench-memory bench-idle bench-shipping bench-bulk bench-pages crash recovery simulate \
  fuzz abuse soak pipeline cluster pictures lock clean

help:  ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.venv/ready: requirements.lock pyproject.toml
	@echo "setup: building .venv from requirements.lock (once, two minutes: Spark is large)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Millrace needs Python 3.11 or later; set PYTHON=...")'
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Compiled beforehand, the server starts in half the time, also where Python writes no bytecode.
setup: .venv/ready  ## build .venv with everything the project needs
	@$(BIN)/python -m compileall -q src

run: setup  ## start the server on its usual ports, keeping its data in ./data
	@echo "run: starting the server; its data is kept in ./data"
	@exec $(BIN)/millrace serve --data data

lint: setup  ## ruff and mypy --strict
	@echo "lint: ruff, mypy --strict"
	@$(BIN)/ruff format --check src tests bench docs
	@$(BIN)/ruff check src tests bench docs
	@$(BIN)/mypy

check: lint  ## lint, and mypyc's code generation over the compiled modules
	@echo "check: code generation"
	@$(BIN)/python tests/codegen.py

format: setup  ## rewrite the sources in the project's form
	@$(BIN)/ruff format src tests bench docs
	@$(BIN)/ruff check --fix src tests bench docs

test: lint  ## all tests
	@echo "test: all of tests/, two files at a time"
	@$(BIN)/pytest -n 2 --dist loadfile

# Apart from `make test`, which is a third faster without it.
coverage: setup  ## all tests, and which lines they reached
	@rm -f .coverage .coverage.*
	@$(BIN)/pytest -n 2 --dist loadfile --cov

crash: setup  ## kill the server at random moments and check that nothing acknowledged is lost (ROUNDS=1000)
	@$(BIN)/python tests/crash/rounds.py --rounds $(ROUNDS)

recovery: setup  ## recover from every prefix of longer recorded works, and from every flipped byte (WORKS=10)
	@MILLRACE_RECOVERY_SEEDS=$(WORKS) MILLRACE_DAMAGE=all $(BIN)/python -m pytest tests/store/test_recovery.py tests/store/test_damage.py

abuse: setup  ## abuse the server in every way there is, beside a well-behaved client (HARM=15 seconds each)
	@$(BIN)/python tests/abuse/full.py --harm $(HARM)

simulate: setup  ## clients, faults and crashes on a simulated clock, network and disk, until Ctrl-C (SEED=n: that one)
	@$(BIN)/python tests/simulation/run.py $(if $(SEED),--seed $(SEED))

# Apart from .venv, because the fuzzer has wheels for few versions of Python.
.fuzz/venv/ready: requirements-fuzz.lock
	@echo "fuzz: building .fuzz/venv from requirements-fuzz.lock (once, about a minute)"
	@$(PYTHON) -m venv --clear .fuzz/venv
	@.fuzz/venv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
	  -r requirements-fuzz.lock || { $(PYTHON) --version; \
	  echo "fuzz: the fuzzer, atheris, cannot be installed for this Python. It has wheels for 3.11 to 3.13 on"; \
	  echo "      Linux (x86-64): set PYTHON=... to one of them. \`make test\` checks the same targets without it."; exit 1; }
	@touch $@

fuzz: .fuzz/venv/ready  ## look for inputs that break a parser's promises (TIME=60 seconds each, TARGET=faktory for one)
	@.fuzz/venv/bin/python tests/fuzz/guided.py --time $(TIME) $(TARGET)

soak: setup  ## mixed load on all ports while everything is watched that could grow (DURATION=3600 seconds)
	@$(BIN)/python tests/soak/soak.py --duration $(DURATION)

bench: setup  ## measure beside beanstalkd and redis-server (bench/README.md)
	@$(BIN)/python bench/cycles.py

bench-memory: setup  ## memory and recovery time of 1,000,000 waiting jobs
	@$(BIN)/python bench/memory.py

bench-idle: setup  ## what 10,000 idle waiting connections cost
	@$(BIN)/python bench/idle.py

# What `make test` does of the pipeline with fewer events and at chosen points.
pipeline: setup  ## the pipeline's tests in full: a history of EVENTS=1000000, crashes after each write, a cluster
	@PIPELINE=all PIPELINE_EVENTS=$(EVENTS) $(BIN)/python -m pytest -n 2 --dist loadfile tests/pipeline

cluster: setup  ## the pipeline on a Spark master and two workers, beside the same on this machine (some minutes)
	@$(BIN)/python bench/cluster.py

bench-bulk: setup  ## a million jobs from Spark, beside PUSHB from one plain client (JOBS=1000000)
	@$(BIN)/python bench/bulk.py --jobs $(JOBS)

bench-pages: setup  ## what the web pages cost with a million jobs, and what others feel of it (JOBS=1000000)
	@$(BIN)/python bench/lookers.py --jobs $(JOBS)

bench-shipping: setup  ## durable cycles with the journal shipped and without, in one run
	@$(BIN)/python bench/shipping.py

pictures: setup  ## pictures of every page, light, dark and on a phone, into build/pictures
	@$(BIN)/python tests/browser/pictures.py

lock: setup  ## write requirements.lock and requirements-fuzz.lock anew from pyproject.toml
	@$(PYTHON) -m venv .venv/lock && .venv/lock/bin/pip install --quiet pip-tools
	@.venv/lock/bin/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --strip-extras --allow-unsafe --extra dev --extra spark -o requirements.lock pyproject.toml
	@.venv/lock/bin/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --strip-extras --allow-unsafe --extra fuzz -o requirements-fuzz.lock pyproject.toml

clean:  ## remove everything that was built (not your data)
	@rm -rf .venv build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	@rm -rf tests/clients/node/node_modules .fuzz/venv
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
