# make setup makes .venv; make try shows a real Debian machine being hardened; make test checks everything short.
.DELETE_ON_ERROR:
.PHONY: setup try wedge wedge-report lab-arm test test-long bench lint docs lock clean vm-packages test-packages machine
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

setup: .venv/.installed

# The stamp is newer than what it was made from, so the second run does nothing.
.venv/.installed: pyproject.toml requirements.lock
	.ci/system-packages setup
	$(PIP) --version >/dev/null 2>&1 || "$$(.ci/find-python)" -m venv --clear .venv
	@echo "installing the Python packages of requirements.lock into .venv"
	$(PIP) install --quiet --require-hashes --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

vm-packages:
	.ci/system-packages vm

test-packages:
	.ci/system-packages vm test

# The machine is made beside the installation of the packages, of which the lab needs none for that.
try:
	.ci/system-packages setup vm
	$(MAKE) --no-print-directory --jobs=2 setup machine
	$(BIN)/python -m lab.demo

machine: vm-packages
	@"$$(.ci/find-python)" -m lab.prepare

# Freezes a machine twice, as Debian installs it and with Plimsoll: eight minutes, every time anew.
WEDGE := .lab/wedge/shown.jsonl
wedge: setup vm-packages
	rm -f $(WEDGE)
	$(BIN)/python -m lab wedge --results $(WEDGE)

# docs/wedge.md and its pictures, from the results that `python -m lab wedge --matrix` has left.
wedge-report: setup
	.ci/system-packages report
	$(BIN)/python -m lab wedge --report

# The box is aarch64: builds and boots such a machine, emulated, and does there what `make wedge` does.
lab-arm: setup
	.ci/system-packages vm arm
	$(BIN)/python -m lab wedge --arch aarch64

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two at a time: a test in an emulated machine keeps 0.7 to 1.2 of two cores busy, and waits the rest of its time.
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup
# A machine that freezes answers no login; so does one for whom two others leave no processor.
ALONE := $(BIN)/pytest -n 1 --dist loadgroup

test: lint test-packages
	$(PYTEST) -m "not slow and not bench and not alone"

# Can be interrupted and repeated: what has passed for the same files is not run again.
test-long: lint test-packages
	$(PYTEST) -m "not bench and not alone" --resume; status=$$?; $(ALONE) -m alone --resume || status=$$?; \
		$(BIN)/python -m tests.report && exit $$status

# On a machine that does nothing else. What a deploy is compared with has an environment of its own.
COMPARED := .lab/bench-venv
bench: setup vm-packages $(COMPARED)/.installed
	.ci/system-packages bench
	$(BIN)/pytest -m bench -s

$(COMPARED)/.installed: tests/bench/requirements.txt
	.ci/system-packages setup
	"$$(.ci/find-python)" -m venv --clear $(COMPARED)
	$(COMPARED)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	touch $@

docs: setup
	$(BIN)/python -m plimsoll.controls.docs

# Resolved for every supported Python and both architectures. uv lives in an environment of its own, and neither
# the machine's package index nor its paths leave a trace in the file.
lock:
	.ci/system-packages setup
	test -x .lab/lock-venv/bin/uv || { "$$(.ci/find-python)" -m venv --clear .lab/lock-venv \
		&& .lab/lock-venv/bin/python -m pip --disable-pip-version-check install --quiet uv; }
	.lab/lock-venv/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
		--no-header --extra dev --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .lab/lock-venv $(COMPARED) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
