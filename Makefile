# Every target sets up what it needs in .venv (Python 3.11 or newer and make are all that must be there) and passes
# ARGS on: make demo ARGS="--json verdict.json", make test ARGS="tests/kernel -k claim".

PYTEST := .venv/bin/python -m pytest
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo up test check bench crash mutate promises stack-test setup-embedded setup-dev

# What runs on Apache Kafka too: all journeys, every test whose broker may be either, and the engines' own tests.
STACK_TESTS := tests/journeys $(wildcard tests/stack/test_kafka_*.py) tests/test_main.py \
	$(addprefix tests/operations/,test_subscribing_on_a_broker.py test_subscribers.py test_consuming.py \
	test_migrating.py test_doctor.py)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup-embedded ## play the whole story on embedded servers and print the verdict
	@.venv/bin/rowclaim demo $(ARGS)

up: setup-embedded ## start everything on embedded servers and stay
	@.venv/bin/rowclaim up $(ARGS)

test: setup-dev ## the tests, but for the crash sweep and mutation, which take longer
	@$(PYTEST) -n $(WORKERS) --ignore=tests/crash $(ARGS)

check: setup-dev ## format, lint, import contracts, both type checkers, generated files
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/lint-imports
	@.venv/bin/mypy
	@.venv/bin/basedpyright
	@.venv/bin/rowclaim reference --check
	@.venv/bin/rowclaim schemas --check

crash: setup-dev ## SIGKILL at every await that leaves the process, drive again, compare
	@$(PYTEST) -n $(WORKERS) tests/crash $(ARGS)

mutate: setup-dev ## remove one conjunct, CHECK or unique at a time: a test must die
	@.venv/bin/python -m tests.mutation $(ARGS)

bench: setup-dev ## requests/s and claims/s beside their baselines
	@.venv/bin/python -m bench $(ARGS)

stack-test: setup-dev ## the journeys on Apache Kafka, with production's settings (Java 17 and Maven, or Docker)
	@$(PYTEST) -n $(WORKERS) --stack=kafka $(STACK_TESTS) $(ARGS)

promises: setup-dev ## run all tests, then list the promises they show and those they do not
	@$(PYTEST) -q -n $(WORKERS); tests=$$?; .venv/bin/python -m tests.promises $(ARGS) && exit $$tests

setup-embedded:
	@.ci/setup embedded

setup-dev:
	@.ci/setup embedded,dev
