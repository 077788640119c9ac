# `make` lists the targets. All of them work in .venv, which is made on first use with Python 3.11 to 3.13.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := build/demo
SITE := build/site
PAGES := build/pages
PROOF := build/proof
DIST := dist

# Without compiled modules on the disk each of the many processes of the tests compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# The interpreter to make .venv with; empty: the first of the candidates that is new enough.
PYTHON ?=
CANDIDATES = $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
# Processes that pytest uses.
JOBS ?= 2
# Further arguments for pytest or the benchmark.
ARGS ?=

# Versions that `make lock` does not choose by itself.
LOCK_PINS := torch==2.13.0 jax==0.10.2 jaxlib==0.10.2
LOCK_EXTRAS := convert,lerobot,browse,view,hdf5,zarr,rosbag,tokens,hub,gcs,s3,dask,ray,dataflow,lightning,torch,jax,bench,docs,fuzz,proof,dev

OLDEST := build/oldest
OLDEST_EXTRAS := convert,lerobot,s3,gcs,lightning,jax
OLDEST_TOOLS := pytest pytest-timeout hypothesis packaging
OLDEST_TESTS := tests/stream/loader tests/stream/workers tests/stream/frameworks tests/convert/source/lerobot
OLDEST_TESTS += --ignore=tests/convert/source/lerobot/test_hub.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo docs dist test-dist test test-slow test-all test-oldest chaos soak corruption fuzz lint format bench \
	bench-peers bench-convert bench-loader proof lock lock-oldest clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv and install everything needed below, if not done yet

demo: $(STAMP) ## make a small sample of all 29 datasets, convert it in both layouts, check it, train on it, show a step again
	$(BIN)/pairstream sample --datasets oxe29 --output $(DEMO)/source --episodes 5 --steps 30
	$(BIN)/python -m convert.run --datasets oxe29 --source $(DEMO)/source --output $(DEMO)/oxe
	$(BIN)/python -m convert.run --datasets oxe29 --source $(DEMO)/source --output $(DEMO)/frames --layout frames \
		--cameras all
	$(BIN)/pairstream verify $(DEMO)/oxe
	test -f $(DEMO)/run/checkpoint.pt || $(BIN)/python examples/train_latent_action.py --root $(DEMO)/oxe --steps 40 --every 10 \
		--batch-size 16 --out $(DEMO)/run
	$(BIN)/pairstream replay --loader $(DEMO)/run/loader.json --step 12 --out $(DEMO)/replay
	@printf '%s\n' '' 'Look at it:' \
		'  $(BIN)/pairstream browse $(DEMO)/frames' \
		'  $(BIN)/pairstream view $(DEMO)/frames bridge 0' \
		'  $(BIN)/pairstream replay --loader $(DEMO)/run/loader.json --step 12 --out $(DEMO)/replay'

test: lint ## lint, then the tests that cover every subject, 6 minutes (ARGS='-k pairs' to choose)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not long and not slow" $(ARGS)

test-all: test ## lint and all tests but those of test-slow
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "long and not slow" $(ARGS)

# Exit code 5 of pytest: no such test, which is no failure.
test-slow: $(STAMP) ## kills at random moments, environments made anew: minutes a test
	$(BIN)/python -m pytest -n $(JOBS) -o faulthandler_timeout=3700 -m slow $(ARGS) || test $$? -eq 5

# What users install: without the tools of `dev`, TensorFlow for example.
test-oldest: $(OLDEST)/.installed ## loader, Grain, PyTorch, JAX and PyAV with the oldest versions that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest -m "not long and not slow" $(OLDEST_TESTS) $(ARGS)

corruption: $(STAMP) ## damage every region of every file in every way (minutes): writes build/corruption
	$(BIN)/python -m tests.faults.corruption --out build/corruption $(ARGS)

fuzz: demo ## thousands of changed inputs to everything that reads files, then a coverage-guided fuzzer (half an hour)
	FUZZ_EXAMPLES=3000 $(BIN)/python -m pytest -n $(JOBS) tests/fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz.coverage_guided --root $(DEMO)/oxe --work build/fuzz --seconds 60 $(ARGS)

lint: $(STAMP) ## ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(STAMP) ## put the sources into the shape that lint asks for
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(SITE)/index.html ## README, CONTRIBUTING and docs/ as a site with search: http://127.0.0.1:8000 until Ctrl-C (ARGS=8001)
	@echo "http://127.0.0.1:$(or $(ARGS),8000)/"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(or $(ARGS),8000)

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[docs]'
	@touch $@

# Symbolic links keep the layout of the repository, so the relative links of the pages hold in the site too.
$(SITE)/index.html: $(VENV)/.docs mkdocs.yml README.md CONTRIBUTING.md CHANGELOG.md LICENSE $(shell find docs examples stream -type f -not -name '*.pyc')
	@mkdir -p $(PAGES)
	$(BIN)/python docs/diagrams.py
	@for each in README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs examples; do ln -sfn ../../$$each $(PAGES)/$$each; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "$@ is ready"

dist: ## wheel and source distribution: dist/
	@$(find_python); rm -rf build/packaging $(DIST)/pairstream-* && $$python -m venv build/packaging
	build/packaging/bin/python -m pip install --quiet --disable-pip-version-check build
	build/packaging/bin/pyproject-build --outdir $(DIST) .

# Interpreters to install the wheel with; what is not there is left out.
PYTHONS ?= python3.11 python3.12 python3.13
EXTRAS ?= convert

test-dist: dist ## install the wheel without constraints with each Python, and use it (PYTHONS=..., ARGS=--torch for the first)
	@arguments='$(ARGS)'; tested=; \
	for p in $(PYTHONS); do \
		if ! $$p -c 'import venv' 2>/dev/null; then echo "$$p: not there, left out"; continue; fi; \
		rm -rf build/packaging/smoke && $$p -m venv build/packaging/smoke || exit 1; \
		bin=build/packaging/smoke/bin; \
		if [ "$$arguments" = --torch ]; then $$bin/python -m pip install --quiet torch==2.13.0 || exit 1; fi; \
		$$bin/python -m pip install --quiet --disable-pip-version-check "$$(ls $(DIST)/pairstream-*.whl)$(if $(EXTRAS),[$(EXTRAS)])" || exit 1; \
		$$bin/python -m pip check || exit 1; \
		rm -rf build/packaging/work && mkdir -p build/packaging/work; \
		(cd build/packaging/work && ../smoke/bin/python $(CURDIR)/tests/smoke.py . $$arguments) || exit 1; \
		arguments=; tested=yes; \
	done; test -n "$$tested"

# Beside .venv, whose libraries it takes, so that both loaders feed the same build of torch.
$(PROOF)/lerobot/.installed: $(STAMP) examples/metaworld/lerobot.txt
	@rm -rf $(PROOF)/lerobot && $(BIN)/python -m venv $(PROOF)/lerobot
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $(PROOF)/packages.txt
	@cp $(PROOF)/packages.txt "$$($(PROOF)/lerobot/bin/python -c 'import site; print(site.getsitepackages()[0])')/venv.pth"
	@$(PROOF)/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r examples/metaworld/lerobot.txt
	@touch $@

proof: $(PROOF)/lerobot/.installed ## a policy from demonstrations to success in a simulator, through each path: docs/proof.md (ARGS=--all)
	$(BIN)/python examples/metaworld/proof.py --work $(PROOF) --lerobot $(PROOF)/lerobot/bin/python $(ARGS)

bench: demo ## all studies, short: writes docs/benchmarks.md (50 minutes, the most telling first; ARGS='--only workers' for one)
	$(BIN)/python -m convert.run --datasets oxe29 --source $(DEMO)/source --output $(DEMO)/oxe128 --image-size 128
	$(BIN)/python -m convert.run --datasets bridge --source $(DEMO)/source --output $(DEMO)/windows --layout frames
	$(BIN)/python -m bench.report --root $(DEMO)/oxe --small-root $(DEMO)/oxe128 --windows-root $(DEMO)/windows \
		--frames-root $(DEMO)/frames --source $(DEMO)/source $(ARGS)

bench-peers: $(STAMP) ## make the environments of the loaders that `bench` compares (14 GB, in build/peers)
	$(BIN)/python -m bench.peers --install all

bench-convert: $(STAMP) ## conversion compared with the bare codec work (ARGS=--json for figures only)
	$(BIN)/python -m bench.convert $(ARGS)

bench-loader: $(STAMP) ## the loader on the demo's data compared with decoding only (ARGS=--json for figures only)
	$(BIN)/python -m bench.loader --root $(DEMO)/oxe --mixture oxe29 $(ARGS)

chaos: $(STAMP) ## faults of conversion and loader: killed, stopped, limits hit (20 to 50 minutes; ARGS='--only "disk full"')
	$(BIN)/python -m tests.faults.chaos --out build/chaos $(ARGS)

soak: demo ## the loader for an hour with workers killed and states set (ARGS='--minutes 10')
	$(BIN)/python -m tests.faults.soak --root $(DEMO)/oxe --out build/soak $(ARGS)

# The build of torch (+cpu) and its CUDA packages, which it pins itself, depend on the machine and are left out.
# Apache Beam takes another google-apitools from Python 3.13 on, where the older one cannot be imported.
lock: ## write constraints.txt anew: the newest versions that pyproject.toml allows together
	@$(find_python); \
	rm -rf build/lock && $$python -m venv build/lock
	build/lock/bin/python -m pip install --quiet '.[$(LOCK_EXTRAS)]' $(LOCK_PINS)
	build/lock/bin/python -m pip check
	@{ echo '# Versions that work together, for pip install -c; `make lock` writes this file.'; \
	build/lock/bin/python -m pip freeze --exclude pairstream | sed -e 's/+[a-z0-9.]*$$//' -e '/^nvidia-/d' \
	-e '/^cuda-/d' -e '/^triton==/d' \
	-e 's/^google-apitools==.*/&; python_version < "3.13"\ngoogle-apitools>=0.5.35; python_version >= "3.13"/'; \
	} > build/lock/constraints.txt
	@mv build/lock/constraints.txt constraints.txt && wc -l constraints.txt

lock-oldest: ## write constraints-oldest.txt anew: the oldest versions that pyproject.toml allows, with Python 3.11
	@$(find_python); \
	rm -rf build/lock && $$python -m venv build/lock
	build/lock/bin/python -m tests.fixtures.oldest_versions > build/lock/floors.txt
	build/lock/bin/python -m pip install --quiet -c build/lock/floors.txt '.[$(OLDEST_EXTRAS)]' $(OLDEST_TOOLS)
	build/lock/bin/python -m pip check
	@{ echo '# The oldest versions that pyproject.toml allows; `make lock-oldest` writes this file.'; \
	build/lock/bin/python -m pip freeze --exclude pairstream | sed -e 's/+[a-z0-9.]*$$//' -e '/^nvidia-/d' \
	-e '/^cuda-/d' -e '/^triton==/d'; } > build/lock/constraints.txt
	@mv build/lock/constraints.txt constraints-oldest.txt && wc -l constraints-oldest.txt

clean: ## remove all that make made: .venv, build, caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Python that ends with 0 where it is of a version that works.
PYTHON_FITS := sys.exit(not (3, 11) <= sys.version_info < (3, 14))

# Shell text that sets $$python or stops with one message.
define find_python
python=; seen=; \
for p in $(CANDIDATES); do \
	if v=$$($$p -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); $(PYTHON_FITS)' 2>/dev/null); \
	then python=$$p; break; fi; \
	seen="$$seen, $$p is $${v:-not there}"; \
done; \
if [ -z "$$python" ]; then \
	echo "Python 3.11 to 3.13 is needed, found:$${seen#,}. Install one, or name one: make PYTHON=/path/to/python3.11" >&2; \
	exit 1; \
fi
endef

# The stamp comes last, so that an interrupted install is taken up again; a venv without pip is such a one too.
# Not compiled here, since imports do that for what they need: 66 s in place of 110, 4.2 GB in place of 4.6.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@; \
	if ! $(BIN)/python -c 'import sys, pip; $(PYTHON_FITS)' 2>/dev/null; then \
		$(find_python); \
		echo "making $(VENV) with $$($$python -V)"; \
		$$python -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "installing into $(VENV): some minutes the first time, about 4.5 GB on disk"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

# The exact versions stand in constraints-oldest.txt, which a test compares with the floors of pyproject.toml.
$(OLDEST)/.installed lock-oldest: CANDIDATES := $(or $(PYTHON),python3.11)
$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@$(find_python); rm -rf $(OLDEST); $$python -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-oldest.txt \
		-e '.[$(OLDEST_EXTRAS)]' $(OLDEST_TOOLS)
	@touch $@
