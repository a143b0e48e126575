# Wraps CMake, CTest and the scripts of tools/: `make help` lists the targets.
.DEFAULT_GOAL := all
SHELL := /bin/sh

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 600
JOBS ?= $(shell nproc)
VENV := $(shell tools/venv.sh)
PYTHON := $(VENV)/bin/python
CMAKE_ARGS ?=
CONTAINER ?= docker
CONFIGURE = cmake --preset $(1) -DSAC_PYTHON=$(PYTHON) $(CMAKE_ARGS) >/dev/null
BUILD = cmake --build $(1) --parallel $(JOBS)
# CTest's own report goes to the terminal, its JUnit file to the summary, which decides the status.
RUN_TESTS = rm -f $(1)/junit.xml; ctest --test-dir $(1) --parallel $(JOBS) --output-on-failure \
	--output-junit $(CURDIR)/$(1)/junit.xml $(2); $(PYTHON) tools/junit_summary.py $(1)/junit.xml
# What sanitizers look at. Other scripts compare numbers and texts, by the plain program.
CHECKED = -L '^(unit|check|prop|fuzz|cli|serve)$$'

.PHONY: all help clients deps deps-test deps-lint deps-fuzz deps-cuda cuda check-cuda bench-cuda model models text demo demo-long test \
	test-long soak check proofs mutate check-mutants asan ubsan tsan fuzz bench relations layers \
	truth lint format install man plots deb deb-check sbom container clean

all: deps ## build the program: build/saccade
	@$(call CONFIGURE,default)
	@$(call BUILD,build)

cuda: deps-cuda ## the program and libsaccade_cuda.so, for NVIDIA GPUs; none is needed to build
	@$(call CONFIGURE,default) $(CUDA_ARGS)
	@$(call BUILD,build)

help: ## list the targets
	@grep -E '^[a-z -]+:.*##' Makefile | sed -E 's/^([a-z -]+):.*## /\1\t/' | expand -t 18
	@echo "variables: JOBS PREFIX DESTDIR FUZZ_SECONDS ONLY TURN SANITIZER AS CMAKE_ARGS SACCADE_MODELS SACCADE_VENV"

deps: ## install what the build needs, if it is missing
	@tools/deps.sh build >/dev/null
deps-test:
	@tools/deps.sh build test >/dev/null
deps-lint:
	@tools/deps.sh build test lint >/dev/null
deps-fuzz:
	@tools/deps.sh build test fuzz >/dev/null
deps-cuda:
	@tools/deps.sh build cuda >/dev/null

model: deps ## fetch a model: make model NAME=smollm2-135m (no NAME: list them)
	@$(PYTHON) tools/fetch.py model $(NAME)
models: deps ## fetch all models
	@$(PYTHON) tools/fetch.py model --all
text: deps ## fetch a text: make text NAME=essays
	@$(PYTHON) tools/fetch.py text $(NAME)

demo: all ## fetch a model and a text of 16K tokens with a hidden fact, and ask for the fact
	@$(PYTHON) tools/fetch.py model qwen2.5-coder-0.5b
	@$(PYTHON) tools/fetch.py text essays
	@$(PYTHON) tools/demo.py build/saccade
demo-long: all ## the same with 120K tokens, four times what the model was trained for, read sparsely
	@$(PYTHON) tools/fetch.py model qwen2.5-coder-0.5b
	@$(PYTHON) tools/fetch.py text essays
	@$(PYTHON) tools/demo.py build/saccade --long

test: deps-test ## everything that CI runs; ends with `N passed, N failed`
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@$(PYTHON) tools/fetch.py text essays
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@$(call RUN_TESTS,build,)

clients: all ## client packages against the server: installs them first
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@$(PYTHON) -m venv $(VENV)-clients
	@$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check \
		-r tests/clients/requirements.txt
	@for test in tests/serve/test_openai.py tests/clients/test_*.py; do \
		echo "$$test"; SACCADE_BIN=build/saccade $(VENV)-clients/bin/python $$test || exit 1; done

test-long: deps-test ## what is longer than CI can wait: methods on a real model, those of the docs in all tests, more proofs
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@SAC_TEST_LONG=1 SAC_PROOF_CASES=1400; export SAC_TEST_LONG SAC_PROOF_CASES; \
		$(call RUN_TESTS,build,-R '^prop/|^unit/test_(proof|serve_memory)$$|^serve/test_tenants$$|^house/test_added_methods$$|^truth/test_schema$$')

SOAK ?= 1000,100000
soak: all ## the server at overload, and a day's worth of short requests: SOAK=MIXED,SHORT,SECONDS
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@SAC_SOAK=$(SOAK) SACCADE_BIN=build/saccade $(PYTHON) tests/serve/test_overload.py

check: deps-test ## kernels against the reference only
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@$(call RUN_TESTS,build,-L '^check$$')

CUDA_ARGS = -DSAC_CUDA=ON -DSAC_NVCC=$$(echo $(VENV)-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc) -DSAC_CUDA_AS=$(AS)
CUDA_LIBRARY = $(CURDIR)/build/libsaccade_cuda.so
CUDA_CHECKS = check_attn check_plan check_segment check_lanes check_observe check_sample check_trace check_antidiag check_pooled check_recall check_narrow check_turned check_splits check_copies check_wide check_docs check_choice check_shares \
	test_depot test_device_docs

check-cuda: deps-test deps-cuda ## kernels of a GPU against the reference; SANITIZER=memcheck (racecheck, initcheck, synccheck) watches them, AS=86 (80, 89, 100, 120) is code of other GPUs, on an H200
	@$(call CONFIGURE,werror) $(CUDA_ARGS)
	@$(call BUILD,build) --target saccade_cuda $(CUDA_CHECKS)
	@SAC_CHECK_CUDA=$(CUDA_LIBRARY) JOBS=$(JOBS) tools/check_cuda.sh build/tests $(CUDA_CHECKS)

bench-cuda: deps-test deps-cuda ## speed of attention and of linear layers on a GPU; OUTPUT=json for machines
	@$(call CONFIGURE,werror) $(CUDA_ARGS)
	@$(call BUILD,build) --target saccade_cuda bench_cuda bench_cuda_linear
	@build/tests/bench_cuda $(CUDA_LIBRARY) -o $(or $(OUTPUT),md)
	@build/tests/bench_cuda_linear $(CUDA_LIBRARY) -o $(or $(OUTPUT),md)

proofs: deps-test ## 10^5 certificates of psa_cert, on random keys and on keys made to break them
	@$(call CONFIGURE,werror)
	@$(call BUILD,build) --target test_proof
	@SAC_PROOF_CASES=1400; export SAC_PROOF_CASES; $(call RUN_TESTS,build,-R unit/test_proof$$)

mutate: deps-test ## faults that tests must notice: ONLY=name for one, TURN=K/N for a part
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@$(PYTHON) tools/mutate.py --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(TURN),--turn $(TURN))

check-mutants: ## whether the mutants fit the sources
	@python3 tools/check_mutants.py

truth: deps-test ## comparisons with independent implementations, on all four models
	@$(PYTHON) tools/fetch.py model --all
	@$(PYTHON) tools/fetch.py text essays
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@SACCADE_TRUTH=all; export SACCADE_TRUTH; $(call RUN_TESTS,build,-L '^truth$$')

asan ubsan tsan: deps-test ## C tests, and those of the program and its server, under a sanitizer, in build-asan and so on
	@$(PYTHON) tools/fetch.py model smollm2-135m
	@$(call CONFIGURE,$@)
	@$(call BUILD,build-$@)
	@$(call RUN_TESTS,build-$@,$(CHECKED))

fuzz: deps-fuzz ## each fuzzer for FUZZ_SECONDS
	@$(call CONFIGURE,fuzz)
	@$(call BUILD,build-fuzz) --target fuzzers
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS) $(JOBS)

bench: all ## speed of fetched models and of every operation, against the limits of the machine
	@tools/bench.sh build/saccade

relations: all ## what papers say of decode methods, measured on a real model (half an hour)
	@$(PYTHON) tools/fetch.py model qwen2.5-coder-0.5b
	@$(PYTHON) tools/fetch.py text essays
	@$(PYTHON) tools/relations.py build/saccade

layers: ## direction of includes
	@python3 tools/check_layers.py

lint: deps-lint ## checks of the house, format, clang-tidy, cppcheck
	@$(call CONFIGURE,default)
	@tools/lint.sh build $(JOBS)

format: deps-lint ## rewrite the C sources with clang-format
	@git ls-files '*.c' '*.h' | xargs clang-format -i

man: all ## docs/man/saccade.1 anew from --help
	@$(PYTHON) tools/make_man.py build/saccade >docs/man/saccade.1

deb: ## Debian packages of program, library and headers: build/deb
	@tools/deps.sh build deb >/dev/null
	@tools/make_deb.sh
	@lintian --fail-on error,warning build/deb/*.changes
deb-check: deb ## installs them in a clean Debian, fetches a model and asks it (root, network)
	@tools/deps.sh build deb-check >/dev/null
	@tools/check_deb.sh
sbom: all ## what the build is linked with: build/sbom.json
	@python3 tools/make_sbom.py build/saccade build/libsaccade.so >build/sbom.json
container: ## an image with the program: docker, or CONTAINER=podman
	@$(CONTAINER) build -t saccade -f packaging/Containerfile .

plots: all ## the drawings of the pages anew from their tables
	@$(PYTHON) tools/make_plots.py build/saccade

install: deps ## into $(DESTDIR)$(PREFIX)
	@$(call CONFIGURE,default) -DCMAKE_INSTALL_PREFIX="$(PREFIX)"
	@$(call BUILD,build)
	@DESTDIR="$(DESTDIR)" cmake --install build

clean: ## remove the build folders
	rm -rf build build-asan build-ubsan build-tsan build-fuzz build-mutate
