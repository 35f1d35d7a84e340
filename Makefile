# Everything a newcomer needs: `make demo`, `make test`. Both set up what is missing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo site test test-ray test-gpu lint browser lock sbom release clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# two stamps: a newcomer's demo does not wait for the development tools
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo,serve]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@

setup: $(VENV)/.dev  ## a virtual environment with GENIUS and its development tools

demo: $(VENV)/.demo  ## index 11,600 drawings that pip installed, and search them in every way
	$(BIN)/genius demo

site: setup  ## the documentation as build/site, every link checked
	$(BIN)/python -m lab.site --tab

lint: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests lab
	$(BIN)/typos
	$(BIN)/mypy

browser:  ## Chromium for the page's tests, where the system's package manager has it (no failure where not)
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	  echo "no Chromium: the page's browser tests will be skipped"

# Two processes, a file of tests in one of them. A server's tests measure queues and need the machine for themselves: they come after.
# Waiting threads sleep: beside other work spinning ones take minutes.
# Files of tests lie in memory where 4 GB of it are free for files (the suite takes less than one): every change of an index is synced.
MEMORY = $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 4000000 ] 2>/dev/null && echo /dev/shm || echo /tmp)
test: setup browser lint  ## lint, types and the whole test suite
	TMPDIR=$$(mktemp -d $(MEMORY)/genius-XXXXXX) && export TMPDIR && \
	  OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000 $(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/serve && \
	  OMP_NUM_THREADS=2 GOMP_SPINCOUNT=1000 $(BIN)/python -m pytest tests/serve && \
	  rm -rf "$$TMPDIR"

test-ray: setup  ## indexing on Ray: tests that the suite skips without the extra
	$(PIP) -e '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/scale 'tests/site/test_tutorials.py::test_a_tutorial_runs_from_top_to_bottom[scale]'

test-gpu: setup  ## what only a CUDA device can show; fails where there is none
	GENIUS_GPU=1 $(BIN)/python -m pytest tests/gpu

# torch stays out of the lock: which build of it (CPU, CUDA) is a choice of the machine, made by constraints.txt
lock: setup  ## requirements.lock: the versions that were tested, with hashes
	$(PIP) -e '.[release]'
	$(BIN)/python -m pip freeze --exclude-editable | grep -vE '^torch(==| @)' > $(VENV)/installed.txt
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip compile pyproject.toml --extra all --python-version 3.11 -c constraints.txt -c $(VENV)/installed.txt \
	  --generate-hashes --no-emit-package torch --no-emit-index-url --no-annotate --custom-compile-command "make lock" --quiet -o requirements.lock

sbom: setup  ## sbom.json: what GENIUS is made of, as CycloneDX
	$(PIP) -e '.[release]'
	cat constraints.txt requirements.lock | $(BIN)/cyclonedx-py requirements - --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json

# setuptools builds; a fresh environment installs. No development tools are needed.
release: | $(BIN)/python  ## dist/: check version, changelog and wheel contents, and install the wheel into a fresh environment
	$(PIP) 'setuptools>=77'
	$(BIN)/python -m lab.release $(if $(REPOSITORY),--repository $(REPOSITORY))

clean:  ## remove what make and the demo made
	rm -rf $(VENV) demo.genius runs build dist
