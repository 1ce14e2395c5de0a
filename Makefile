# SparkServe. `make help` lists the targets.
SHELL      := /bin/bash
PYTHON     ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3 || echo python3)
VENV       := $(or $(SPARKSERVE_VENV),.venv)
PY         := $(VENV)/bin/python
FIXTURES   := $(or $(SPARKSERVE_FIXTURES),build/fixtures)
PRESET     ?=
PORT       ?= 30000
TARGET     ?= process
PROFILE    ?= quick
PYTEST     := $(PY) -m pytest

export PYTHONPATH :=
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env fixtures serve demo test test-pure test-engine test-container test-gpu contracts lint format \
        lock wheel docs image image-report smoke bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## make or repair .venv: locked packages and the patched engine
	@$(PYTHON) -m launch.environment

fixtures: env ## build the fixture checkpoints (about 2 minutes, cached)
	@$(VENV)/bin/sparkserve fixtures build $(FIXTURES)

serve: fixtures ## serve PRESET on 127.0.0.1:PORT (without a GPU: a fixture model on the CPU engine)
	@$(VENV)/bin/sparkserve serve $(PRESET) --port $(PORT)

demo: fixtures ## serve the fixture model, ask it one question, check the answer, stop
	@$(PY) -m smoke.demo

test: test-env ## rings one and two: all that needs no GPU
	@$(PYTEST) -n 2 --dist loadscope -m "not gpu"

test-pure: test-env ## ring one: under a minute
	@$(PYTEST) -n 3 --dist worksteal -m "not engine and not contract and not suite and not container and not gpu"

test-engine: test-env ## ring two, first half: the patched engine on the CPU, contracts on both wheels, every smoke check against its fault
	@$(PYTEST) -m "(engine or contract or suite) and not gpu"

test-container: test-env ## ring two, second half: real containers (needs a Docker engine)
	@$(PYTEST) -m "container and not gpu"

test-gpu: test-env ## ring three: needs a CUDA GPU
	@$(PYTEST) -m gpu

.PHONY: test-env
test-env: fixtures

contracts: env ## every patch contract against the released and the patched engine
	@$(PY) -m patches contracts

wheel: env ## the patched wheel, in build/wheels
	@ls build/wheels/sglang-*+spark.*.whl

lint: env ## ruff and mypy
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

format: env ## let ruff rewrite
	@$(PY) -m ruff check --fix . ; $(PY) -m ruff format .

lock: env ## compile docker/locks again, keeping pins that still hold (UPGRADE=1 takes new releases)
	@PATH=$(abspath $(VENV))/bin:$$PATH $(PY) docker/lock.py $(if $(UPGRADE),--upgrade)

docs: env ## write the generated parts of README.md and docs/
	@$(PY) -m launch.docs && $(PY) -m patches readme

smoke: fixtures ## run the smoke suite: make smoke PRESET=… [TARGET=docker|process|url] [PROFILE=quick|full|soak]
	@$(VENV)/bin/sparkserve smoke $(PRESET) --target $(TARGET) --profile $(PROFILE)

image: env ## the container image (TARGET=cpu: the test variant, never published; PLATFORM=linux/arm64: another architecture)
	@$(PY) docker/image.py build --target $(if $(filter cpu,$(TARGET)),cpu,gpu) $(if $(PLATFORM),--platform $(PLATFORM))

image-report: env ## the last image build against the last release's, layer by layer: make image-report [NEW=FILE OLD=FILE]
	@$(PY) docker/image.py report $(NEW) $(OLD)

bench: fixtures ## start-up and launcher overhead, side by side
	@$(PY) bench/startup.py

clean: ## remove what was built (not .venv)
	@rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
