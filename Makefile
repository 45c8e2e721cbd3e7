# What there is to do with a clone. Needs Python 3.11 or later with its venv module; everything else comes by itself.
#
#   make demo              install into .venv and run examples/digits
#   make yarn-up           a real Hadoop on this machine, from Maven Central (needs Java and Maven), and ZooKeeper where
#                          it is installed; yarn-down ends them
#   make demo-yarn         examples/digits on that Hadoop
#   make demo-caffe        examples/caffe_mnist in Docker, image and all from Debian's packages (root; a minute or two)
#   make images [NAME=]    build the Docker images, or one of them, and try each (needs a registry)
#   make test-images       the images' package sets and programs, on Debian where no registry is needed (root; long)
#   make test              the tests; installs what they need when root, else says what is skipped
#   make test-faults       the same with every fault injected, more cases
#   make test-oldest       the tests with the oldest libraries that pyproject.toml allows
#   make soak NAME=ledger  one part under faults for an hour, or yarn; ARGS="--seconds 300 --seed 1"
#   make check             format, lint, types, import rules
#   make bench NAME=cli    measure (or data, ledger, pack, am_memory); results also go to bench/results/
#   make clean             remove what the above made

VENV ?= .venv
BIN := $(VENV)/bin
# The extras that reach a server, and what the tests run with.
STORES := yarn zookeeper fsspec
TESTED := demo test $(STORES)
.DEFAULT_GOAL := help
.PHONY: help demo yarn-up yarn-down demo-yarn demo-caffe images test-images test test-faults test-oldest soak check bench clean

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
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.services.with_dockerd examples/caffe_mnist/demo.sh

images:
	@docker/build.sh $(NAME)

test-images:
	@.ci/venv $(VENV) $(TESTED) images
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.services.with_dockerd \
		$(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/images/in_containers.py $(ARGS)

test:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest $(ARGS)

test-faults:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@DLAPP_FAULTS=full PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest $(ARGS)

test-oldest:
	@PIP_CONSTRAINT=$$(.ci/oldest) .ci/venv $(VENV)-oldest $(TESTED)
	@$(VENV)-oldest/bin/python -m tests.services.install
	@PATH="$(abspath $(VENV)-oldest/bin):$$PATH" $(VENV)-oldest/bin/python -m pytest $(ARGS)

soak:
	@.ci/venv $(VENV) $(TESTED)
	@$(BIN)/python -m tests.services.install
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.soak $(NAME) $(ARGS)

check:
	@.ci/venv $(VENV) check test $(STORES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint docker/*/Dockerfile
	$(BIN)/shellcheck docker/*.sh docker/*/*.sh examples/caffe_mnist/*.sh examples/caffe_mnist/*/*.sh

bench:
	@.ci/venv $(VENV) $(TESTED) bench
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m bench $(NAME)

clean:
	rm -rf $(VENV) $(VENV)-oldest dist build bench/results examples/digits/results* examples/caffe_mnist/hdfs \
		.mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
