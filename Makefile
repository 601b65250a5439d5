# `make demo` and `make test` do all the set-up they need in .venv; Python 3.11 and make are enough to start.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each process that a test starts compiles the package anew: a third of a second.
unexport PYTHONDONTWRITEBYTECODE
# What CI and people install is locked, so that a release elsewhere can't turn main red.
CONSTRAINTS ?= --constraint constraints.txt

.PHONY: demo test lint types tests long bench docs release-check lock newest clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python -m distmetrics demo

test: $(VENV)/.installed
	$(MAKE) --jobs 4 lint types docs tests

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/distlint check --extend-exclude distmetrics/cli/data,tests/sample,lint/distlint/examples,tests/guard/agreement/programs .  # all but programs with faults

types: $(VENV)/.installed
	$(BIN)/mypy

tests: $(VENV)/.installed
	$(BIN)/python -m pytest -n 6 --dist loadgroup -m "not long and not release"  # most wait for processes: six at a time for two cores

long: $(VENV)/.installed
	$(BIN)/python -m pytest -m long --hypothesis-profile long

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.sync
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.log
	$(BIN)/python -m benchmarks.log_plan
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.trainer
	$(BIN)/python -m benchmarks.trainer_memory
	$(BIN)/python -m benchmarks.kit
	$(BIN)/python -m benchmarks.guard
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.plots

# The site, into docs/_build/index.html: offline, and a warning is an error.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir build/docs docs docs/_build
	! grep --recursive --files-with-matches --fixed-strings --include='*.html' --include='*.js' --include='*.txt' '$(CURDIR)/' docs/_build  # nothing of this machine is published

# What can be done before a release without an index: the site and its external links, both wheels and sdists, and each
# page's programs in an empty environment, after the page's own install lines. Five minutes on two cores.
release-check: $(VENV)/.installed docs
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist lint
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -n 2 tests/test_wheels.py

# Renew the lock, with the pins of constraints.in, in an environment of its own. Which build of torch is the machine's choice.
lock:
	rm -rf .venv-lock
	$(MAKE) .venv-lock/.installed VENV=.venv-lock CONSTRAINTS='--constraint constraints.in'
	.venv-lock/bin/python -m pip install --quiet --constraint constraints.in --editable '.[release]'
	.venv-lock/bin/python -m pip freeze --exclude-editable > .venv-lock/versions
	(echo '# What the Makefile and CI install, never users. Made from constraints.in by: make lock'; sed 's/+.*//' .venv-lock/versions) > constraints.txt
	rm -rf .venv-lock

# The suite with the newest of everything: what fails here would fail with the next lock, and fails for users today.
newest:
	rm -rf .venv-newest
	$(MAKE) --keep-going test VENV=.venv-newest CONSTRAINTS=

$(VENV)/.installed: pyproject.toml lint/pyproject.toml lint/distlint/__init__.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "distmetrics needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ./lint --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-lock .venv-newest dist build docs/_build docs/reference .pytest_cache .mypy_cache .ruff_cache
