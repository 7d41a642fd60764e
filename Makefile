# Needs a Python 3.10+ (PYTHON=python3.12 to choose one) and nothing else. Every target makes the virtual
# environment it needs; one that is there and fits pyproject.toml is used as it is.

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
ENVIRONMENT = $(PYTHON) .ci/environment.py
# More processes than two cores can feed: a test with Spark waits half of its time. Its modules stay whole, for
# what their tests share.
WORKERS ?= 3
MINUTES ?= 10
PYTEST = -m pytest -n $(WORKERS)
FAST_TESTS = $(PYTEST) --dist worksteal
SPARK_TESTS = $(PYTEST) --dist loadfile --no-loadscope-reorder
FAST = tests
# What depends on the version of PySpark.
ONE_RUN = integration/test_end_to_end.py integration/test_sql.py integration/test_connect.py
ONE_RUN += integration/test_functions.py
# Without tests that need the model of the service: it decodes CBOR with a newer SDK.
LOWEST = tests/channels tests/destinations tests/metrics tests/sink tests/spark
MATRIX = 4.0 4.1 4.2 newest

.DEFAULT_GOAL := help
.PHONY: help demo example test integration lint types bench soak chaos foreign fuzz soak-tests docs test-matrix clean demo-env
.PHONY: test-env foreign-env dev-env test-cluster verify-aws test-lowest release-check
.PHONY: $(MATRIX:%=test-%)

help: ## show this
	@echo 'make <target> [PYTHON=python3.x]'
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: demo-env ## run a pipeline on an embedded Kinesis and prove its output
	@$(BIN)/python -m integration.demo

example: $(if $(filter iceberg,$(EXAMPLE)),test-env,demo-env) ## run a script of examples/ on an embedded Kinesis; EXAMPLE=read_a_stream, none lists them
	@$(BIN)/python -m examples $(EXAMPLE)

test: test-env ## run the tests: the fast ones, then those with Spark and emulators (16 minutes on 2 cores)
	@echo '== 1 of 2: fast tests'
	@$(BIN)/python $(FAST_TESTS) $(FAST)
	@echo '== 2 of 2: integration tests'
	@$(BIN)/python $(SPARK_TESTS) integration

integration: test-env ## run the tests with Spark and emulators
	@$(BIN)/python $(SPARK_TESTS) integration

lint: dev-env ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: dev-env ## mypy, strict
	@$(BIN)/mypy

bench: test-env ## measure source and sink; BENCH="source_speed sink_speed" only those
	@$(BIN)/python -m integration.benchmarks $(BENCH)

soak: chaos fuzz soak-tests ## chaos, random documents, then the tests that `make test` leaves out (12, 10 and 15 minutes on 2 cores)

chaos: $(if $(S3),foreign-env,test-env) ## a pipeline through faults, MINUTES=10 of them; SEED= has a history again; S3=versitygw has the files there
	@$(BIN)/python -m integration.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(S3),--s3 $(S3))

foreign: foreign-env ## kill drivers and servers of others, and look for every row; SERVERS="seaweedfs dynalite" only those
	@$(BIN)/python -m integration.foreign $(SERVERS)

fuzz: test-env ## hold the decoders against those of others, MINUTES=10 of new random documents; SEED= has a round again
	@$(BIN)/python -m integration.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

soak-tests: test-env ## run the tests that are slow, and hardly ever fail; fan-out for ten minutes
	@$(BIN)/python $(SPARK_TESTS) -m soak integration

docs: dev-env ## write the tables of options from their declarations, and build the site into site/
	@$(BIN)/python docs/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'the site is in site/index.html'

test-cluster: test-env ## run on hosts that lose power and network, and ship to them (20 minutes; Linux and root); SCENES=power_off only that
	@$(BIN)/python -m pytest -n 0 -s -m cluster $(if $(SCENES),-k "$(SCENES)") integration/test_cluster.py integration/test_shipping.py

verify-aws: test-env ## check sources and destinations on your AWS account (cents; asks first); ARGS="--region eu-west-1"
	@$(BIN)/python -m integration.verify_aws $(ARGS)

test-matrix: $(MATRIX:%=test-%) test-lowest ## fast tests, and runs with Spark, on PySpark 4.0, 4.1, 4.2, the newest, and the lowest versions

$(MATRIX:%=test-%): test-%:
	@$(ENVIRONMENT) .venv-$* --extra test --pyspark '$(if $(filter newest,$*),pyspark,pyspark==$*.*)'
	@echo "== PySpark $* is $$(.venv-$*/bin/python -c 'import pyspark; print(pyspark.__version__)')"
	@.venv-$*/bin/python $(SPARK_TESTS) $(FAST) $(ONE_RUN)

test-lowest: ## fast tests, and examples with Spark, on the lowest versions that pyproject.toml allows (Python 3.10 or 3.11)
	@$(ENVIRONMENT) .venv-lowest --extra test --pyspark 'pyspark==4.0.0' --lowest
	@.venv-lowest/bin/python $(FAST_TESTS) $(LOWEST)
	@.venv-lowest/bin/python -m examples read_a_stream copy_a_stream

release-check: dev-env ## build what a release publishes, check it, and run the Quickstart from the wheel in an empty environment
	@$(BIN)/python -m integration.release_check

clean: ## remove environments, caches and whatever was built
	rm -rf .venv .venv.lock .venv-* build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

demo-env:
	@$(ENVIRONMENT) $(VENV) --extra demo

test-env:
	@$(ENVIRONMENT) $(VENV) --extra test

foreign-env:
	@$(ENVIRONMENT) $(VENV) --extra foreign

dev-env:
	@$(ENVIRONMENT) $(VENV) --extra dev
