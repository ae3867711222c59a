# The few verbs of this project. `make demo` and `make test` are all a newcomer needs.
#
#   PYTHON   the interpreter for .venv, 3.10 to 3.13            make test PYTHON=python3.12
#   TORCH    what to install when PYTHON has no torch >= 2.11   make env TORCH=torch==2.14.1

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin

export OMP_NUM_THREADS ?= 1
export PYTHONPATH :=

#   CASES    a folder of failures as small scripts, run beside tests/cases, see bench/cases.py
#   TIMES    how often `make lookalikes` runs each of its scripts
#   EXAMPLES how many inputs `make fuzz` makes for each parser
CASES ?= ../shared/cases
TIMES ?= 2
EXAMPLES ?= 20000

.PHONY: env demo docs test test-slow fuzz cases lookalikes chaos-smoke chaos-full check screenshots fmt proto gpu-check

env: $(BIN)/harness

# The target is what the last step makes: once it is there, nothing runs and nothing is fetched.
$(BIN)/harness:
	@$(PYTHON) scripts/make_env.py .venv "$(TORCH)"

demo: env
	@$(BIN)/python -m harness.chaos.demo

# The site in site/, to be read from the disk. What makes it is installed once; then it builds offline.
docs: $(BIN)/mkdocs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "open site/index.html"

$(BIN)/mkdocs: | $(BIN)/harness
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"

test: env
	$(BIN)/python -m pytest -m "not slow"

test-slow: env
	$(BIN)/python -m pytest -m slow --exitfirst

fuzz: env
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --timeout 0 tests/fuzz

cases: env
	@$(BIN)/python bench/cases.py tests/cases $(wildcard $(CASES))

lookalikes: env
	@$(BIN)/python bench/lookalikes.py --times $(TIMES)

chaos-smoke: env
	@$(BIN)/harness chaos campaign --series 6 --workloads ddp --ranks 1 --minutes 3 --kinds \
	  kill,exception,stop,flip_parameter,loader_stuck,checkpoint_truncate,collective_skip,exit_zero

# 3 ranks of each layout, two faults at once, and the plain DDP script: for a night.
chaos-full: env
	@$(BIN)/harness chaos campaign --shrink 6 --workloads ddp,dp8,tp2pp2dp2,pp4dp2,fsdp4
	@$(BIN)/harness chaos campaign --shrink 6 --workloads ddp,dp4 --combined

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p harness
	$(BIN)/lint-imports

# Pictures for docs/img, of a training that is broken for them.
screenshots: env
	@$(BIN)/python scripts/screenshots.py

fmt: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# From the root, so that the generated code says `from harness.wire import ...`.
proto: env
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
	  harness/wire/control.proto

# All that fits one GPU, in under six minutes; one line where there is none.
gpu-check: env
	@$(BIN)/python scripts/gpu_check.py
