# One list of what can be done; `make` alone prints it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_VENV := .venv-bench
BENCH_BIN := $(BENCH_VENV)/bin
BENCH_STAMP := $(BENCH_VENV)/.installed
MODELS := bench_models
QUICK := light_squeezenet light_shufflenet light_inception_v1 mobilenet_v2 resnet18

.PHONY: help setup demo test lint check golden gpu bench bench-quick bench-ops size clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

setup: $(STAMP)  ## Make .venv with everything the tests and the demo need

$(STAMP): setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[test]'
	touch $(STAMP)

demo: $(STAMP)  ## Compile and tune ResNet-50, check it, time it beside ONNX Runtime
	$(BIN)/python examples/demo.py

# in the order of folders: the short tests come last, and no core waits long for another
test: $(STAMP)  ## Run all tests
	$(BIN)/python -m pytest tests -n auto --dist loadfile --no-loadscope-reorder

lint: $(STAMP)  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## The same, and the tests that need no TVM (under a minute)
	$(BIN)/python -m pytest tests/pure tests/test_rooms.py

golden: $(STAMP)  ## Refresh the pinned plans and log lines
	$(BIN)/python -m pytest tests/golden --update-golden

gpu: $(STAMP)  ## Checks that need a CUDA GPU; says so where there is none
	$(BIN)/python -m pytest tests/gpu

# onnx2torch asks for torchvision, which it hardly uses: see benchmarks/torch_engine.py
$(BENCH_STAMP): setup.py
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_BIN)/pip install --quiet --upgrade pip
	$(BENCH_BIN)/pip install --quiet -e '.[bench]'
	$(BENCH_BIN)/pip install --quiet --no-deps 'onnx2torch>=1.5.15'
	touch $(BENCH_STAMP)

bench: $(BENCH_STAMP)  ## Compare with ONNX Runtime, OpenVINO and torch.compile on whole models
	$(BENCH_BIN)/python benchmarks/models.py --out $(MODELS) --missing
	$(BENCH_BIN)/python benchmarks/compare.py $(MODELS)/*.onnx --json $(MODELS)/bench.json

bench-quick: $(BENCH_STAMP)  ## The same on five small models, without torch, in under 3 minutes
	$(BENCH_BIN)/python benchmarks/models.py --out $(MODELS) --missing $(QUICK)
	$(BENCH_BIN)/python benchmarks/compare.py $(QUICK:%=$(MODELS)/%.onnx) --rounds 3 \
	  --engines tvm_ext,onnxruntime,openvino --json $(MODELS)/bench-quick.json

bench-ops: $(BENCH_STAMP)  ## Single operators: the picker beside the roofline and MetaSchedule (an hour or more)
	mkdir -p $(MODELS)
	$(BENCH_BIN)/python benchmarks/ops.py --json $(MODELS)/bench-ops.json $(ARGS)

size:  ## Lines of code per room
	@for room in tvm_ext tvm_ext/*/; do \
	  printf '%6d  %s\n' "$$(cat $$room/*.py 2>/dev/null | wc -l)" "$$room"; done

clean:  ## Remove the environment and caches
	rm -rf $(VENV) $(BENCH_VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
