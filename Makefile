# make demo: the main job on real data. make test: five minutes of tests, before a commit. make test-all: everything that must pass.
# All set themselves up in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
USED := $(VENV)/.set-up-to-use
# Modules are compiled when they are first imported: most never are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup demo test docs test-all test-long test-ray chaos torture lint types rooms unit bench dist clean

setup: $(STAMP)

# What the demo takes; the rest, for those who change plesio, is five times as much.
$(USED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "plesio needs Python 3.11 or later; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[examples]'
	touch $(USED)

$(STAMP): $(USED) packages/plesio-sparse/pyproject.toml
	$(PIP) 'plesio[dev]' -e packages/plesio-sparse
	touch $(STAMP)

demo: $(USED)
	$(BIN)/plesio demo

# make test ROOM=server: only the tests that import from src/plesio/server; so with test-all.
ROOM ?=
test: $(if $(ROOM),,lint types rooms) unit

lint: setup
	$(BIN)/ruff check *.py docs/*.py src packages tests benchmarks examples
	$(BIN)/ruff format --check *.py docs/*.py src packages tests benchmarks examples

types: setup
	$(BIN)/mypy

rooms: setup
	$(BIN)/lint-imports

# Stealing mixes tests that wait with those that compute, and leaves a file's tests together. Kernels are compiled before, once for
# all processes.
PYTEST = PYTHONPATH=tests $(BIN)/python -m support.warm && \
	files=$$($(if $(ROOM),PYTHONPATH=tests $(BIN)/python -m support.rooms $(ROOM))) && \
	$(BIN)/python -m pytest -q -n $(if $(ROOM),6,3) --dist worksteal $$files

unit: setup
	$(PYTEST) --hypothesis-profile=few -m 'not thorough and not slow and not ray'

test-all: setup
	$(PYTEST) -m 'not slow and not ray'

test-long: setup
	$(BIN)/python -m pytest -q --hypothesis-profile=long -m 'not ray'
	export PLESIO_PAUSES=1; $(PYTEST) -m 'not slow and not ray'

# The documentation site, in build/site; a warning is an error.
docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

# Ray takes half a gigabyte, and these tests minutes.
test-ray: setup
	$(PIP) -e '.[ray]'
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m pytest -q -n 0 -m ray tests/on_ray

chaos: setup
	$(BIN)/python -m pytest -q -m slow tests/faults

SEEDS ?= 10000
torture: setup
	PYTHONPATH=tests $(BIN)/python -m torture --seeds $(SEEDS)
	PYTHONPATH=tests $(BIN)/python -m torture --tables --seeds $$(( ($(SEEDS) + 9) / 10 ))
	PYTHONPATH=tests $(BIN)/python -m torture --deaths --seeds $$(( ($(SEEDS) + 9) / 10 ))
	PYTHONPATH=tests $(BIN)/python -m torture --switches --seeds $$(( ($(SEEDS) + 9) / 10 ))

bench: setup
	for name in start exchange network network_faults fold straggler defaults convergence transformer embedding simulator theory whatif choose going_on goodput winners journal hogwild rows tables serving_rows converted codecs gradients local bandwidth overlap lora live actors; do $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || exit 1; done

# A wheel and a source distribution each of plesio and plesio-sparse. Then they are installed from their files alone into a fresh
# environment: plesio, which must do without the other, then plesio-sparse beside it. Both run there, with each of PYTHONS. Every
# extra resolves.
PYTHONS ?= $(PYTHON)
QUIETLY := --quiet --disable-pip-version-check
FRESH := dist/fresh/bin/python
dist: setup
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd packages/plesio-sparse && $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist
	$(BIN)/python -m pip install $(QUIETLY) --dry-run -c constraints.txt '.[dev,ray]'
	for python in $(PYTHONS); do for end in py3-none-any.whl .tar.gz; do \
		rm -rf dist/fresh dist/needs && $$python -m venv dist/fresh && \
		$(FRESH) -m pip download $(QUIETLY) -c constraints.txt -d dist/needs dist/plesio*$$end hatchling && \
		$(FRESH) -m pip install $(QUIETLY) --no-index --find-links dist/needs dist/plesio-*$$end && \
		(cd dist/fresh && bin/plesio --version && bin/plesio strategies >/dev/null && bin/python -I ../../tests/support/fresh.py) && \
		$(FRESH) -m pip install $(QUIETLY) --no-index --find-links dist/needs dist/plesio_sparse-*$$end && \
		(cd dist/fresh && bin/python -I ../../packages/plesio-sparse/tests/fresh.py) || exit 1; \
	done; done
	rm -rf dist/fresh dist/needs

clean:
	rm -rf $(VENV) dist runs demo.html
