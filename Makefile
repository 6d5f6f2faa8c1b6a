# Everything runs from these targets, here and in CI. The first use of any of them sets up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test check bench soak test-vllm test-faults format clean

run: $(READY)  ## simulated engines, the gateway, traffic and a live table
	$(BIN)/poise demo

test: $(READY)  ## unit, contract and socket tests, no GPU, no vLLM
	$(BIN)/python -m pytest -n 3 -m "not vllm and not wheel and not alone"
	$(BIN)/python -m pytest -m alone

test-vllm: $(READY)  ## two real vLLM replicas on the CPU behind the gateway; the first use installs them (2.6 GB)
	$(BIN)/python tests/vllm/install.py
	$(BIN)/python -m pytest -m "vllm and not faults" tests/vllm

test-faults: $(READY)  ## one of two real vLLM replicas is stopped, drained, killed, frozen, paused and put to sleep under load, five minutes
	$(BIN)/python tests/vllm/install.py
	$(BIN)/python -m pytest -m faults tests/vllm

bench: $(READY)  ## Poise beside other routers on this machine, about ten minutes; the first use installs them
	$(BIN)/python -m pip install --quiet --editable ".[dev,bench]"
	$(BIN)/python benchmarks/setup_peers.py
	$(BIN)/python benchmarks/run.py

soak: $(READY)  ## two million requests through the wheel, a few minutes: does memory or any table grow
	$(BIN)/python benchmarks/setup_peers.py
	$(BIN)/python benchmarks/soak.py

check: $(READY)  ## lint, types, layers, docs, and that the wheel compiles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/docs tests/wheel

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .vllm .bench benchmarks/build .mypy_cache .ruff_cache .pytest_cache
