# Every target makes what it needs inside this folder and can be run again.
# Assumed on the machine: python3 (3.11 or newer, with its venv module), gcc, git, make.

PYTHON ?= python3
ARGS ?=
# What `make bench` holds against its start, flags, NumPy and a bare read: adopt a kernel first (make demo, run).
OPERATORS ?= reduction
# Test files side by side; none of them judges a time.
JOBS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help demo test check bench lock clean tools
.NOTPARALLEL:

# A virtual environment holds absolute paths, so the stamps carry the folder: a moved checkout makes a new one.
HERE := $(shell pwd | cksum | cut -d' ' -f1)
BIN := .venv/bin
CORE := .venv/core-$(HERE)
TEST := .venv/test-$(HERE)
DEV := .venv/dev-$(HERE)
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c requirements-lock.txt

help:
	@echo "make demo   set up, then let the team work on the reduction operator; ends with what it found"
	@echo "make test   set up, then run the tests            (make test ARGS='-k git' passes options to pytest)"
	@echo "make check  lint, types and tests"
	@echo "make bench  the figures that the README speaks of"
	@echo "make lock   resolve the newest versions into requirements-lock.txt"
	@echo "make clean  remove what was set up; results in .kernelcrew stay"

demo: $(CORE) | tools
	$(BIN)/kernelcrew run reduction --workdir . --budget-min 2.75 $(ARGS)

test: $(TEST) | tools
	$(BIN)/pytest $(JOBS) $(ARGS)

# mypy reads an installed copy: the folder names of the checkout are not the import names.
check: $(DEV) | tools
	$(BIN)/ruff check .
	rm -rf build
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --target build/installed .
	cd build/installed && ../../$(BIN)/mypy --strict --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p kernelcrew
	$(BIN)/pytest $(JOBS) $(ARGS)

bench: $(CORE) | tools
	@for operator in $(OPERATORS); do $(BIN)/kernelcrew bench $$operator --workdir . $(ARGS) || exit 1; done
	@cat .venv/setup

$(CORE): pyproject.toml setup.py requirements-lock.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null) || found="not on the PATH"; \
	  echo "kernelcrew needs Python 3.11 or newer; '$(PYTHON)' is $$found."; \
	  echo "  fix: install one and name it, for example: make PYTHON=python3.12 demo"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' has no venv module."; echo "  fix: apt-get install python3-venv"; exit 1; }
	@echo "setting up .venv (about a minute, 600 MB)"
	rm -rf .venv
	@mkdir .venv && date +%s > .venv/began
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	@echo "set up in $$(( $$(date +%s) - $$(cat .venv/began) )) s, $$(du -sm .venv | cut -f1) MB" | tee .venv/setup
	@touch $@

$(TEST): $(CORE)
	$(INSTALL) -e '.[test]'
	@touch $@

$(DEV): $(TEST)
	$(INSTALL) -e '.[dev]'
	@touch $@

tools:
	@for tool in gcc git; do command -v $$tool >/dev/null || { \
	  echo "$$tool is not here."; echo "  fix: apt-get install $$tool"; exit 1; }; done

lock:
	rm -rf build
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check --no-compile '.[dev]'
	{ head -n 1 requirements-lock.txt; build/lock/bin/pip freeze --all --exclude pip --exclude kernelcrew; } > build/requirements-lock.txt
	mv build/requirements-lock.txt requirements-lock.txt

clean:
	rm -rf .venv build dist kernelcrew.egg-info .pytest_cache .mypy_cache .ruff_cache
