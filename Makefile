# Each target sets up what it needs in .venv and stamps it, so that a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup native wheels try-wheel demo test coverage test-slow test-ray test-sanitized fuzz-native lint bench bench-shrink clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/'

.venv/.base:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/.ready: .venv/.base pyproject.toml setup.py requirements-dev.txt
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

# The live page is tested in a real browser.
.venv/.chromium: .venv/.base
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  S=$$([ "$$(id -u)" = 0 ] || echo sudo); $$S apt-get update -qq && \
	  $$S apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; }
	touch $@

.venv/.bench: .venv/.ready requirements-bench.txt
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt -c requirements-dev.txt
	touch $@

# `pip install` above has built the kernels; this rebuilds them when a C file changed, without pip.
KERNELS := penstock/native/_kernels.so
$(KERNELS): .venv/.ready $(wildcard native/*.c native/*.h native/build.py)
	$(BIN)/python native/build.py || { $(BIN)/python -m pip install --quiet ziglang==0.17.0 && $(BIN)/python native/build.py; }
	touch $@

setup: .venv/.ready $(KERNELS)  ## make the virtual environment

native:  ## compile the kernels in place; needs no virtual environment
	$(PYTHON) native/build.py

demo: .venv/.ready $(KERNELS)  ## a dataset larger than memory: the naive job dies, penstock trains
	$(BIN)/python -m penstock demo

# Tests kill real processes and fill real cgroups on a machine that others may share. What fails is run once more, alone,
# and a test that passes then is named as flaky on the last lines: it is a defect of the test, and to be mended.
PYTEST := $(BIN)/python -m pytest -q -m "not slow"
run-tests = $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder $(1) || { \
  [ $$? = 1 ] && echo "== failed tests, once more and alone ==" && $(PYTEST) --last-failed --last-failed-no-failures none -rap $(1); }

test: .venv/.ready $(KERNELS) .venv/.chromium  ## all tests
	$(call run-tests,tests/contract tests/fuzz tests/unit)
	$(call run-tests,tests/integration)

coverage: .venv/.ready $(KERNELS)  ## how much of the package unit and contract tests run, with a floor
	$(BIN)/coverage run --concurrency=thread -m pytest -q -m "not slow" -p no:cacheprovider tests/unit tests/contract
	$(BIN)/coverage report

test-slow: .venv/.ready $(KERNELS) .venv/.chromium  ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow

# Ray is large and brings its own processes: it has a virtual environment of its own, over the packages of the first.
.venv-ray/.ready: .venv/.ready requirements-ray.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet -r requirements-ray.txt
	echo "import sys; sys.path.insert(0, '$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$(.venv-ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
	touch $@

test-ray: .venv-ray/.ready $(KERNELS)  ## ranks, tasks and data on a real Ray cluster (needs root, for a network of its own)
	PYTHONPATH=. .venv-ray/bin/python -m pytest -q -m slow tests/integration/test_on_ray.py

# The kernels with AddressSanitizer and UndefinedBehaviorSanitizer (GCC's, which a Python that knows nothing of them can
# load first; with libstdc++, whose exceptions ASan must find when it starts: OpenCV and Arrow throw). Python's own leaks
# and its allocator are none of its business. detect_odr_violation: one object a level.
# allocator_may_return_null: libraries ask for what a damaged footer says, and bear a refusal.
SANITIZED := build/native/sanitized.so
test-sanitized: .venv/.ready  ## unit and fuzz tests of the kernels under ASan and UBSan (needs gcc)
	CC=gcc $(BIN)/python native/build.py --sanitize --out $(SANITIZED)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
	  PENSTOCK_KERNELS_PATH=$(SANITIZED) PENSTOCK_FUZZ=$${PENSTOCK_FUZZ:-1000} $(BIN)/python -m pytest -q -p no:cacheprovider \
	  tests/unit/native tests/fuzz/test_fuzz_tfrecord.py tests/fuzz/test_fuzz_sql.py tests/fuzz/test_fuzz_json.py \
	  tests/fuzz/test_fuzz_images.py tests/fuzz/test_fuzz_tables.py

SECONDS ?= 600
fuzz-native:  ## libFuzzer on every kernel that reads files, SECONDS=600 each (needs clang)
	$(PYTHON) native/fuzz/run.py --seconds $(SECONDS)

wheels: .venv/.base  ## wheels for Linux x86-64 and aarch64 under dist/; pip fetches a compiler for both (ziglang)
	for machine in x86_64 aarch64; do rm -rf build/lib build/bdist* && \
	  PENSTOCK_WHEEL_TARGET=$$machine-linux-gnu.2.17 $(BIN)/python -m pip wheel --quiet --no-deps -w dist . || exit 1; done
	$(BIN)/python native/build.py

try-wheel: wheels  ## this machine's wheel in an empty environment without a compiler: four formats read
	$(PYTHON) native/try_wheel.py dist/penstock-*_$$(uname -m).whl

lint: .venv/.ready  ## style and types
	$(BIN)/ruff check penstock tests benchmarks examples
	$(BIN)/ruff format --check penstock tests benchmarks examples
	$(BIN)/mypy

bench: .venv/.bench $(KERNELS)  ## speed and memory against peers, results under benchmarks/results
	$(BIN)/python -m benchmarks.run

bench-shrink: .venv/.ready $(KERNELS)  ## smaller models on Fashion-MNIST (installs Debian's dataset-fashion-mnist)
	KERAS_BACKEND=tensorflow $(BIN)/python -m benchmarks.shrink_fashion

clean:  ## remove what make made
	rm -rf .venv .venv-ray .demo .bench build *.egg-info
