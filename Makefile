# What there is to do with a clone. Needs Python 3.11 or later with its venv module; everything else comes by itself.
#
#   make demo              install into .venv and run examples/digits
#   make yarn-up           a real Hadoop on this machine, from Maven Central (needs Java and Maven), and ZooKeeper where
#                          it is installed; yarn-down ends them
#   make demo-yarn         examples/digits on that Hadoop
#   make demo-caffe        examples/caffe_mnist in Docker, image and all from Debian's packages (root; a minute or two)
#   make images [NAME=]    build the Docker images, or one of them, and try each (needs a registry)
#   make test-images       the images' package sets and programs, on Debian where no registry is needed (root; long)
#   make test              the tests but the slow ones; installs what they need when root, else says what is skipped
#   make test-quick        those that need neither a server nor root, and run no application or task
#   make test-applications those that run applications on the embedded engine, or tasks
#   make test-users        those that need root alone, most to become other users
#   make test-hadoop, test-zookeeper, test-docker    those that need a server
#   make test-faults [PART=2/6] [FULL=2/8]   all tests with every fault injected, the slow ones and all cases of those
#                          marked sampled. PART: those of make test, and a part of the slow ones and of the further
#                          cases. FULL: a part of all tests, with all cases
#   make test-closes       the tests of make test in a copy that records who closes a descriptor; a double close fails
#   make nightly [PART=2]  what runs each night: each documented command that is too long for .ci/run, in parts of at
#                          most 80 minutes; goes on where it ended at this commit (PART=list: the parts and results)
#   make test-federation   HDFS with an observer NameNode, and with a KMS, from Maven Central (minutes)
#   make test-frameworks   distributed training with PyPI's TensorFlow, PyTorch and MXNet, the programs of
#                          examples/frameworks (Lightning, transformers, accelerate, JAX, XGBoost), and feeds with pyarrow
#                          (gigabytes; an hour)
#   make test-beside       what runs beside a training, with PyPI's TensorBoard and JupyterLab (a quarter of an hour)
#   make test-gpu [WHEELS=] [STUB=1]   a prepared run on a machine with GPUs of NVIDIA, at most six minutes (docs/gpu.md);
#                          it needs no network, no root, no Docker. Without a GPU it runs on the stub of NVML
#   make test-versions [VERSIONS="3.3.6"]   the tests on YARN and HDFS with Hadoop 2.10.2, 3.3.6 and 3.5.0 (long)
#   make test-oldest       the tests with the oldest libraries that pyproject.toml allows
#   make soak NAME=ledger  one part under faults for an hour: yarn, keys, queue, sweep; ARGS="--seconds 300 --seed 1"
#                          A sweep also on YARN: NAME=sweep ARGS="--engine yarn"
#   make fuzz [CASES=]     100,000 changed inputs for each parser of what others wrote (hours; ARGS="-k hadoop");
#                          PART=2/16 of the parsers, or PART=today
#   make scale             an ApplicationMaster's control server with 10,000 tasks and strangers (20,700 descriptors)
#   make fix               format, and repair what the linter can
#   make check             format, lint, types (of the tests too), import rules, dead code
#   make dead-code         what nothing uses (pyproject.toml, tool.vulture, has what is used from elsewhere)
#   make coverage [ARGS=]  branches of dlapp that tests without a server take: the total, and the 20 worst modules
#   make docs              the site of the documentation, with a search, in .cache/site; a broken link is an error
#   make dist              wheel and sdist; each is installed into an empty environment and tried
#   make bench NAME=cli    measure (or data, gang, insight, ledger, scale, ...); results also go to bench/results/
#   make bench-against NAME=cli [COMMIT=]   the same of this tree and of the last stage (bench/history.json) or another
#                          commit by turns, new to old
#   make screenshots       the pictures of pages in docs/images anew, by Debian's Chromium
#   make clean             remove what the above made
#
# Tests run on WORKERS processes (make test WORKERS=2), more than there are cores: half of their time they wait for
# servers. ARGS goes to pytest (make test-quick ARGS="-k commit"); one file is quicker alone: .venv/bin/pytest FILE.

VENV ?= .venv
BIN := $(VENV)/bin
# The extra that reaches a server, and what the tests run with.
STORES := fsspec
# Where the tests are whose result depends on the version of Hadoop.
ON_HADOOP := tests/cluster/yarn tests/storage tests/end_to_end tests/tools
TESTED := demo test $(STORES)
WORKERS ?= 4
# A worker that dies is not replaced: a test that hangs ends the run, and the servers of its group are lost.
PYTEST = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup \
	--no-loadscope-reorder --max-worker-restart=0
# In a new clone one process compiles the tests, and not each worker all of them; what fails here fails there, too.
COMPILE = ls tests/__pycache__/conftest.*-pytest-*.pyc >/dev/null 2>&1 || \
	$(BIN)/python -m pytest -qq --collect-only >/dev/null || true
# Compiled modules are kept: the tests start some thousand processes, and each would compile dlapp again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo yarn-up yarn-down demo-yarn demo-caffe images test-images test test-quick test-applications test-users test-hadoop \
	test-zookeeper test-docker test-faults test-closes nightly test-federation test-frameworks test-beside test-gpu test-versions test-oldest soak fuzz scale fix \
	check dead-code coverage docs dist bench bench-against screenshots clean

help:
	@sed -n 's/^#   //p' Makefile

demo:
	@.ci/venv $(VENV) demo
	@PATH="$(abspath $(BIN)):$$PATH" examples/digits/demo.sh

yarn-up:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.hadoop up

yarn-down:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.hadoop down

demo-yarn:
	@.ci/venv $(VENV) $(TESTED)
	@PATH="$(abspath $(BIN)):$$PATH" examples/digits/demo-yarn.sh

demo-caffe:
	@.ci/venv $(VENV) $(TESTED)
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.services.containers.with_dockerd examples/caffe_mnist/demo.sh

images:
	@docker/build.sh $(NAME)

test-images:
	@.ci/venv $(VENV) $(TESTED) images
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.services.containers.with_dockerd \
		$(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/images/in_containers.py $(ARGS)

test:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(COMPILE)
	@$(PYTEST) $(ARGS)

test-quick:
	@.ci/venv $(VENV) $(TESTED)
	@$(COMPILE)
	@$(PYTEST) -m "not applications and not hadoop and not zookeeper and not docker and not root" $(ARGS)

test-applications:
	@.ci/venv $(VENV) $(TESTED)
	@$(PYTEST) -m "applications and not hadoop and not zookeeper and not docker and not root" $(ARGS)

test-users:
	@.ci/venv $(VENV) $(TESTED)
	@$(PYTEST) -m "root and not hadoop and not zookeeper and not docker" $(ARGS)

# A test that needs several servers runs with the first of them.
test-hadoop:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(PYTEST) -m hadoop $(ARGS)

test-docker:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(PYTEST) -m "docker and not hadoop" $(ARGS)

test-zookeeper:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(PYTEST) -m "zookeeper and not hadoop and not docker" $(ARGS)

test-faults:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(COMPILE)
	@DLAPP_FAULTS="$(or $(PART),full $(FULL))" $(PYTEST) $(ARGS)

# The commands of an environment import the dlapp that is installed there, so the copy has its own.
CLOSES := $(abspath .cache/closes)
test-closes:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.closes.copy $(CLOSES)
	@DLAPP_TEST_CLOSES=$(CLOSES)/.cache/closes $(MAKE) --no-print-directory -C $(CLOSES) \
		VENV=$(abspath $(VENV)-closes) test

nightly:
	@.ci/venv $(VENV) $(TESTED)
	@VENV="$(VENV)" $(BIN)/python -m tests.nightly $(PART)

test-federation:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -o faulthandler_timeout=600 \
		tests/storage/in_federation.py $(ARGS)

# The last MXNet, for ps-lite: it has names of NumPy that 1.24 has not, so it is apart from the others.
MXNET := "mxnet==1.9.1" "numpy<1.24"
test-frameworks:
	@.ci/venv $(VENV)-frameworks test $(STORES) frameworks
	@$(VENV)-frameworks/bin/python -m tests.services.install
	@test -d $(VENV)-frameworks/mxnet || $(VENV)-frameworks/bin/python -m pip install --quiet \
		--disable-pip-version-check --target $(VENV)-frameworks/mxnet $(MXNET) || echo "no MXNet for this Python"
	@PATH="$(abspath $(VENV)-frameworks/bin):$$PATH" $(VENV)-frameworks/bin/python -m pytest \
		tests/end_to_end/frameworks/in_*.py \
		tests/end_to_end/data/test_feed.py tests/task/feed/test_parquet.py $(ARGS)

test-beside:
	@.ci/venv $(VENV)-beside test $(STORES) beside
	@$(VENV)-beside/bin/python -m tests.services.install
	@PATH="$(abspath $(VENV)-beside/bin):$$PATH" $(VENV)-beside/bin/python -m pytest -o faulthandler_timeout=600 \
		tests/beside/in_*.py $(ARGS)

# It installs nothing: the Python that there is, with the libraries that it has and the wheels that are named.
WITH_GPU = $(or $(PYTHON),$(firstword $(wildcard $(BIN)/python) python3))
test-gpu:
	@$(WITH_GPU) -m tests.gpu_run $(if $(STUB),--stub) $(if $(RESULTS),--results "$(RESULTS)") $(ARGS) $(WHEELS)

# All versions, also when one fails.
VERSIONS ?= 2.10.2 3.3.6 3.5.0
test-versions:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@failed=; for version in $(VERSIONS); do \
		echo "Hadoop $$version"; \
		DLAPP_TEST_HADOOP=$$version $(PYTEST) -m hadoop $(ON_HADOOP) $(ARGS) || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "Error: tests failed on Hadoop$$failed" >&2; exit 1; }

test-oldest:
	@PIP_CONSTRAINT=$$(.ci/oldest) .ci/venv $(VENV)-oldest $(TESTED)
	@$(VENV)-oldest/bin/python -m tests.services.install
	@PATH="$(abspath $(VENV)-oldest/bin):$$PATH" $(VENV)-oldest/bin/python -m pytest $(ARGS)

soak:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.soak $(NAME) $(ARGS)

# With 100,000 cases all tests take half a day: each night has another part of them.
FUZZ_PART = $(if $(filter today,$(PART)),$$(($$(date +%s) / 86400 % 16 + 1))/16,$(PART))
fuzz:
	@.ci/venv $(VENV) $(TESTED)
	@DLAPP_FUZZ_CASES=$(or $(CASES),100000) DLAPP_FUZZ_PART=$(FUZZ_PART) PATH="$(abspath $(BIN)):$$PATH" \
		$(BIN)/python -m pytest -o faulthandler_timeout=86400 tests/fuzz $(ARGS)

scale:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.scale

fix:
	@.ci/venv $(VENV) check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

check:
	@.ci/venv $(VENV) check test $(STORES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/hadolint docker/*/Dockerfile
	$(BIN)/shellcheck docker/*.sh docker/*/*.sh examples/caffe_mnist/*.sh examples/caffe_mnist/*/*.sh

dead-code:
	@.ci/venv $(VENV) check
	$(BIN)/vulture

# The report comes whatever the tests say: those of what a process loads fail, for it loads coverage too.
coverage:
	@.ci/venv $(VENV) $(TESTED)
	@mkdir -p .cache/coverage && rm -f .cache/coverage/*
	@-$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) \
		-m "not hadoop and not zookeeper and not docker" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --sort=cover | awk 'NR <= 22 || /^TOTAL/'

# mkdocs reads one directory, so it gets one of links; the pages link one another as in the tree.
docs:
	@.ci/venv $(VENV) docs
	@rm -rf .cache/pages && mkdir -p .cache/pages
	@ln -s $(addprefix ../../,README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md LICENSE docs docker examples) .cache/pages
	@$(BIN)/mkdocs build
	@echo "the site is in .cache/site"

dist:
	@.ci/venv $(VENV) dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	@.ci/smoke dist

bench:
	@.ci/venv $(VENV) $(TESTED) bench
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m bench $(NAME)

bench-against:
	@.ci/venv $(VENV) $(TESTED) bench
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m bench._against "$(COMMIT)" $(NAME)

screenshots:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@$(BIN)/python -m tests.pages.screenshots

clean:
	rm -rf .cache/test-gpu $(VENV) $(VENV)-frameworks $(VENV)-beside $(VENV)-oldest $(VENV)-closes .cache/closes .cache/nightly/tree dist build bench/results examples/digits/results* \
		examples/caffe_mnist/hdfs examples/distributed/results \
		.mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
