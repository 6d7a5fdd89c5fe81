# make demo: see it work.  make test: check it.  Both set up .venv by themselves, from nothing but Python, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A copied folder or a removed interpreter leaves a .venv that no longer works here: forget it, so that it is built anew.
$(shell [ ! -d $(VENV) ] || [ "$$($(BIN)/python -I -c 'import minicl, os; print(os.path.samefile(minicl.__path__[0], "minicl"))' 2>/dev/null)" = True ] || rm -rf $(VENV))

.PHONY: demo test test-all lint coverage clean

demo: $(VENV)/.core
	@mkdir -p demo
	@$(BIN)/minicl audit --masks ar,invicl --plot demo/masks.png
	@echo; echo "training ar and invicl side by side, a few minutes"
	@$(BIN)/python demo.py
	@$(BIN)/minicl evaluate demo/ar demo/invicl --plot demo/curves.png

test: $(VENV)/.test lint
	@$(BIN)/python -m pytest -n 2

test-all: $(VENV)/.test lint
	@$(BIN)/python -m pytest -m ""

lint: $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }

coverage: $(VENV)/.test
	@$(BIN)/python -m pytest --cov=minicl --cov-report=term-missing

$(VENV)/.core: setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "minicl needs Python 3.10 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3")'
	@echo "setting up $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) demo build *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage
