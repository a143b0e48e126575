# Wraps CMake, CTest and the scripts of tools/. `make help` prints what stands behind ## here, a heading or what a
# target does, and behind #= the variables.
.DEFAULT_GOAL := all
SHELL := /bin/sh

#= JOBS: how much runs at once (default: one for each CPU)
JOBS ?= $(shell nproc)
#= CMAKE_ARGS: more arguments for CMake, such as -DCMAKE_C_COMPILER=clang
CMAKE_ARGS ?=
#= SACCADE_MODELS: folder of models and texts (default: ~/.cache/saccade/models)
#= SACCADE_VENV: folder of the Python packages of the tests (default: ~/.cache/saccade/venv)
VENV := $(shell SACCADE_VENV="$(SACCADE_VENV)" tools/venv.sh)
PYTHON := $(VENV)/bin/python
CONFIGURE = cmake --preset $(1) -DSAC_PYTHON=$(PYTHON) $(CMAKE_ARGS) >/dev/null
BUILD = cmake --build $(1) --parallel $(JOBS)
# CTest's own report goes to the terminal, its JUnit file to the summary, which decides the status.
RUN_TESTS = rm -f $(1)/junit.xml; ctest --test-dir $(1) --parallel $(JOBS) --output-on-failure \
	--output-junit $(CURDIR)/$(1)/junit.xml $(2); $(PYTHON) tools/junit_summary.py $(1)/junit.xml
# What sanitizers look at. Other scripts compare numbers and texts, by the plain program.
CHECKED = -L '^(unit|check|prop|fuzz|cli|serve)$$'

.PHONY: all cuda help clean deps deps-test deps-lint deps-fuzz deps-cuda model models text demo demo-long \
	test test-long truth check proofs asan ubsan tsan fuzz soak clients mutate check-cuda bench-cuda bench relations \
	lint layers check-mutants cross format man methods plots install uninstall deb deb-check sbom container

## Build
all: deps ## build the program: build/saccade
	@$(call CONFIGURE,default)
	@$(call BUILD,build)

cuda: deps-cuda ## the program and libsaccade_cuda.so, for NVIDIA GPUs; none is needed to build
	@$(call CONFIGURE,default) $(CUDA_ARGS)
	@$(call BUILD,build)

help: ## list targets and variables
	@sed -nE -e 's/^## /\n/p' -e 's/^([a-z -]+):.*## /  \1\t/p' Makefile | expand -t 20
	@echo; echo "Variables, as in make test JOBS=4"; sed -nE 's/^#= ([A-Z_]+): /  \1\t/p' Makefile | expand -t 20

clean: ## remove the build folders
	rm -rf build build-asan build-ubsan build-tsan build-fuzz build-mutate

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

## Models, and a first try
#= NAME: of model and text: which one; none lists them
model: deps ## fetch a model: make model NAME=smollm2-135m (no NAME: list them)
	@python3 tools/fetch.py model $(NAME)
models: deps ## fetch all models
	@python3 tools/fetch.py model --all
text: deps ## fetch a text: make text NAME=essays
	@python3 tools/fetch.py text $(NAME)

demo: all ## fetch a model and a text of 16K tokens with a hidden fact, and ask for the fact
	@python3 tools/fetch.py model qwen2.5-coder-0.5b
	@python3 tools/fetch.py text essays
	@python3 tools/demo.py build/saccade
demo-long: all ## the same with 120K tokens, four times what the model was trained for, read sparsely
	@python3 tools/fetch.py model qwen2.5-coder-0.5b
	@python3 tools/fetch.py text essays
	@python3 tools/demo.py build/saccade --long

## Tests
test: deps-test ## everything that CI runs; ends with `N passed, N failed`
	@python3 tools/fetch.py model smollm2-135m
	@python3 tools/fetch.py text essays
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@$(call RUN_TESTS,build,)

test-long: deps-test ## what is longer than CI can wait: methods on a real model, those of the docs in all tests, more proofs
	@python3 tools/fetch.py model smollm2-135m
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@SAC_TEST_LONG=1 SAC_PROOF_CASES=1400; export SAC_TEST_LONG SAC_PROOF_CASES; \
		$(call RUN_TESTS,build,-R '^prop/|^unit/test_(proof|serve_memory)$$|^serve/test_tenants$$|^house/test_added_methods$$|^truth/test_schema$$')

truth: deps-test ## comparisons with independent implementations, on all four models
	@python3 tools/fetch.py model --all
	@python3 tools/fetch.py text essays
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@SACCADE_TRUTH=all; export SACCADE_TRUTH; $(call RUN_TESTS,build,-L '^truth$$')

check: deps-test ## kernels against the reference, no more
	@$(call CONFIGURE,werror)
	@$(call BUILD,build)
	@$(call RUN_TESTS,build,-L '^check$$')

proofs: deps-test ## 10^5 certificates of psa_cert, on random keys and on keys made to break them
	@$(call CONFIGURE,werror)
	@$(call BUILD,build) --target test_proof
	@SAC_PROOF_CASES=1400; export SAC_PROOF_CASES; $(call RUN_TESTS,build,-R unit/test_proof$$)

asan ubsan tsan: deps-test ## C tests, and those of the program and its server, under a sanitizer, in build-asan and so on
	@python3 tools/fetch.py model smollm2-135m
	@$(call CONFIGURE,$@)
	@$(call BUILD,build-$@)
	@$(call RUN_TESTS,build-$@,$(CHECKED))

#= FUZZ_SECONDS: of fuzz: how long each fuzzer runs (default: 600)
FUZZ_SECONDS ?= 600
fuzz: deps-fuzz ## each fuzzer for FUZZ_SECONDS, with ASan and UBSan
	@$(call CONFIGURE,fuzz)
	@$(call BUILD,build-fuzz) --target fuzzers
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS) $(JOBS)

#= SOAK: of soak: requests of all kinds, short requests and, if wanted, seconds (default: 1000,100000)
SOAK ?= 1000,100000
soak: all deps-test ## the server at overload, and a day's worth of short requests
	@python3 tools/fetch.py model smollm2-135m
	@SAC_SOAK=$(SOAK) SACCADE_BIN=build/saccade $(PYTHON) tests/serve/test_overload.py

clients: all ## client packages against the server: installs them first
	@python3 tools/fetch.py model smollm2-135m
	@python3 -m venv $(VENV)-clients
	@$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check \
		-r tests/clients/requirements.txt
	@for test in tests/serve/test_openai.py tests/clients/test_*.py; do \
		echo "$$test"; SACCADE_BIN=build/saccade $(VENV)-clients/bin/python $$test || exit 1; done

#= ONLY: of mutate: one fault, by its name
#= TURN: of mutate: K/N, the Kth of N parts of the faults
#= IN_PLACE: of mutate: if set, puts the faults into the tree itself and uses the build of `make test`
mutate: deps-test ## faults that tests must notice
	@python3 tools/fetch.py model smollm2-135m
	@$(if $(IN_PLACE),$(call CONFIGURE,werror))
	@$(PYTHON) tools/mutate.py --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(TURN),--turn $(TURN)) $(if $(IN_PLACE),--in-place build)

## GPUs
CUDA_ARGS = -DSAC_CUDA=ON -DSAC_NVCC=$$(echo $(VENV)-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc) -DSAC_CUDA_AS=$(GPU_AS)
CUDA_LIBRARY = $(CURDIR)/build/libsaccade_cuda.so
CUDA_CHECKS = check_attn check_plan check_segment check_lanes check_observe check_sample check_trace check_antidiag check_pooled check_recall check_narrow check_turned check_splits check_copies check_wide check_docs check_choice check_shares \
	test_offload test_device_docs

#= SANITIZER: of check-cuda: memcheck, racecheck, initcheck or synccheck watches the kernels
#= GPU_AS: of check-cuda: 80, 86, 89, 100 or 120, the code of such a GPU, on an H200
check-cuda: deps-test deps-cuda ## kernels of a GPU against the reference
	@$(call CONFIGURE,werror) $(CUDA_ARGS)
	@$(call BUILD,build) --target saccade_cuda $(CUDA_CHECKS)
	@SAC_CHECK_CUDA=$(CUDA_LIBRARY) JOBS=$(JOBS) tools/check_cuda.sh build/tests $(CUDA_CHECKS)

#= OUTPUT: of bench-cuda: md or json (default: md)
bench-cuda: deps-test deps-cuda ## speed of attention and of linear layers on a GPU
	@$(call CONFIGURE,werror) $(CUDA_ARGS)
	@$(call BUILD,build) --target saccade_cuda bench_cuda bench_cuda_linear
	@build/tests/bench_cuda $(CUDA_LIBRARY) -o $(or $(OUTPUT),md)
	@build/tests/bench_cuda_linear $(CUDA_LIBRARY) -o $(or $(OUTPUT),md)

## Speed, and what papers say
bench: all ## speed of fetched models and of every operation, against the limits of the machine
	@tools/bench.sh build/saccade

relations: all ## what papers say of decode methods, measured on a real model (half an hour)
	@python3 tools/fetch.py model qwen2.5-coder-0.5b
	@python3 tools/fetch.py text essays
	@python3 tools/relations.py build/saccade

## Sources
lint: deps-lint ## what looks at the sources without running them: own checks, clang-format, clang-tidy, cppcheck
	@$(call CONFIGURE,default)
	@tools/lint.sh build $(JOBS)

layers: ## direction of includes
	@python3 tools/check_layers.py

check-mutants: ## whether the mutants fit the sources
	@python3 tools/check_mutants.py

cross: ## kernels and what is below them, compiled for aarch64 and run under qemu where it can
	@tools/deps.sh build cross >/dev/null
	@tools/cross_check.sh

format: deps-lint ## rewrite the C sources with clang-format
	@git ls-files '*.c' '*.h' | xargs clang-format -i

man: all ## the manual page docs/man/saccade.1 anew from --help
	@python3 tools/make_man.py build/saccade >docs/man/saccade.1

methods: all ## the pages of docs/methods anew from the program's list
	@python3 tools/make_methods.py build/saccade docs/methods

plots: all ## the drawings of the pages anew from their tables
	@python3 tools/make_plots.py build/saccade

## Packages
#= PREFIX: of install (default: /usr/local)
PREFIX ?= /usr/local
#= DESTDIR: of install: a folder that stands for / (default: none)
install: deps ## program, library, headers, manual and completions, into $(DESTDIR)$(PREFIX)
	@$(call CONFIGURE,default) -DCMAKE_INSTALL_PREFIX="$(PREFIX)"
	@$(call BUILD,build)
	@DESTDIR="$(DESTDIR)" cmake --install build
	@destination="$(DESTDIR)" awk '{print ENVIRON["destination"] $$0}' build/install_manifest.txt >build/installed.txt

uninstall: ## remove what the last `make install` put in place
	@tools/uninstall.sh build/installed.txt

#= DEBFULLNAME: of deb: the name of who maintains the packages
#= DEBEMAIL: of deb: the address
deb: ## Debian packages of program, library and headers, checked by lintian: build/deb
	@tools/deps.sh build deb >/dev/null
	@tools/make_deb.sh
	@lintian --fail-on error,warning build/deb/*.changes
deb-check: deb ## installs them in a clean Debian, fetches a model and asks it (root, network)
	@tools/deps.sh build deb-check >/dev/null
	@tools/check_deb.sh
sbom: all ## what the build is linked with: build/sbom.json
	@python3 tools/make_sbom.py build/saccade build/libsaccade.so >build/sbom.json

#= CONTAINER: of container: docker or podman (default: docker)
CONTAINER ?= docker
container: ## an image with the program for CPUs
	@$(CONTAINER) build -t saccade -f packaging/Containerfile .
