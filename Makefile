# One list of what can be done; `make` alone prints it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test check golden gpu bench size clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## Make .venv with everything the tests and the demo need

$(STAMP): setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[test]'
	touch $(STAMP)

demo: $(STAMP)  ## Compile and tune ResNet-50, check it, time it beside ONNX Runtime
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## Run all tests
	$(BIN)/python -m pytest tests -n auto --dist loadfile

check: $(STAMP)  ## Lint, types and the tests that need no TVM (seconds)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/pure tests/test_rooms.py

golden: $(STAMP)  ## Refresh the pinned plans and log lines
	$(BIN)/python -m pytest tests/golden --update-golden

gpu: $(STAMP)  ## Checks that need a CUDA GPU; says so where there is none
	$(BIN)/python -m pytest tests/gpu

bench: $(STAMP)  ## Compare with ONNX Runtime on the models in bench_models/
	$(BIN)/python benchmarks/compare.py bench_models/*.onnx

size:  ## Lines of code per room
	@for room in tvm_ext tvm_ext/*/; do \
	  printf '%6d  %s\n' "$$(cat $$room/*.py 2>/dev/null | wc -l)" "$$room"; done

clean:  ## Remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
