# Everything that is done with this repository. It takes Python 3.11 or newer, and make.
# The first call installs what it needs into .venv, and again whenever pyproject.toml has changed.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
RELEASE := .venv-release
LOCKS  := tools/locks
LOCK    = $(BIN)/uv pip compile --quiet --upgrade --universal --no-annotate --no-header
GROUPS  = $(BIN)/python tools/dependency_group.py
BIN    := $(VENV)/bin
VERSIONS ?= 071ee6f 772e19c
EXTRAS := cli,testing,progress,dbos,otel,pydantic,postgres,redis,ui,zstd,crypto
DEPENDENT := tests/stores tests/cli tests/web $(addprefix tests/test_,$(addsuffix .py,config dbos engine errors events opentelemetry package progress pydantic resume schema state))
PIP    := -m pip --disable-pip-version-check install --quiet --quiet
UNINSTALL := -m pip --disable-pip-version-check uninstall --yes --quiet --quiet
PROSE  := README.md AGENTS.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md docs
# Otherwise each worker of the tests compiles all modules and tests again.
unexport PYTHONDONTWRITEBYTECODE

# Slips that tests make on purpose.
SLIPS  := abd,cancell,chekpoint,complet,compres,exept,grap,intervall,lables,memroy,nam,nmae,reviw,sise,thrid,waitin,wiat,wrok
MEASURED := $(shell find stategraph -name '*.py')
UNMEASURED = $(shell grep -rl --include='*.py' mark.unmeasured tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test cover test-all lowest check format proof soak docs pages release archives locks screenshots bench clean lint types

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/package.stamp  ## Kill an audit of the standard library halfway, and resume it
	@$(BIN)/python examples/audit_stdlib.py demo

test: $(VENV)/test.stamp  ## Run the tests
	$(BIN)/python -m pytest -n 4 --dist worksteal

# Python 3.11 alone does not trace a generator into which an error is thrown through `yield from`: some lines do not count.
cover: $(VENV)/test.stamp  ## Run the tests and print the branch coverage, which is at least 95 %
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 4 --dist worksteal -m 'not unmeasured'
	$(BIN)/python -m pytest -n 4 --dist worksteal -m unmeasured $(UNMEASURED)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

# Starlette 0.40 tests with httpx, newer ones with httpx2.
lowest: $(VENV)/lowest.stamp  ## Run the tests of what uses dependencies, with the oldest that pyproject.toml allows
	rm -rf .venv-lowest
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --group test --editable '.[$(EXTRAS)]' 'httpx==0.27.2'
	.venv-lowest/bin/python -m pytest -n 4 --dist worksteal $(DEPENDENT)

test-all:  ## Run the tests with every Python from 3.11 to 3.14 that is found
	@$(PYTHON) tools/test_all.py

check: $(VENV)/test.stamp $(VENV)/check.stamp  ## Lint, check the format, the types and the workflows of GitHub
	@$(MAKE) --no-print-directory lint types
	$(BIN)/zizmor --offline --quiet --persona pedantic .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/python tools/check_slips.py
	@$(BIN)/python tools/check_docs_types.py
	$(BIN)/codespell -D - -D tools/plain_words.txt $(PROSE) stategraph examples benchmarks tools
	$(BIN)/codespell -D - -D tools/plain_words.txt -L $(SLIPS) tests proof
	$(BIN)/proselint check --config tools/proselint.json $(PROSE)

format: $(VENV)/check.stamp  ## Format the code, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proof: $(VENV)/test.stamp  ## Try at length what the stores promise (hours on two cores; SEED=1 SHARE=0.1)
	@$(BIN)/python -m proof $(if $(SEED),--seed $(SEED)) $(if $(SHARE),--share $(SHARE))

soak: $(VENV)/test.stamp  ## The state machine against a model, for hours
	@$(BIN)/python -m proof --share 100 state_machine

lint: $(VENV)/check.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/test.stamp $(VENV)/check.stamp
	$(BIN)/mypy

docs: $(VENV)/docs.stamp  ## Make the documentation as a site, in build/site, and check its links
	@$(BIN)/python tools/make_site.py

pages: $(VENV)/docs.stamp  ## The sites of all versions, in build/pages
	@$(BIN)/python tools/make_site.py --pages

release: $(RELEASE)/release.stamp  ## Build the archives in dist/ twice and test them (TAG=v0.2.0rc1: tag them, too); nothing is uploaded
	@$(RELEASE)/bin/python tools/release.py $(if $(TAG),--tag $(TAG))

archives: $(RELEASE)/release.stamp  ## The same without the tests of the source archive
	@$(RELEASE)/bin/python tools/release.py --quick

locks: $(VENV)/lowest.stamp  ## Pin again what workflows install, and what a release is tested with, in the newest versions
	$(GROUPS) build-system release | $(LOCK) --python-version 3.11 --generate-hashes - --output-file $(LOCKS)/release.txt
	$(LOCK) --all-extras pyproject.toml --output-file $(LOCKS)/package.txt
	$(GROUPS) build-system others | $(LOCK) --generate-hashes pyproject.toml - --output-file $(LOCKS)/others.txt
	$(GROUPS) build-system free-threads | $(LOCK) --python-version 3.14 --generate-hashes pyproject.toml - --output-file $(LOCKS)/free-threads.txt

screenshots: $(VENV)/test.stamp  ## Make the images of the page that the documentation shows; takes Chromium
	@PYTHONPATH=. $(BIN)/python tools/screenshots.py

bench: $(BENCH)/bench.stamp  ## Measure stategraph beside other libraries and older versions, in an environment of its own (ALL=1: slow rows, too)
	@$(BENCH)/bin/python -m benchmarks $(if $(ALL),--all)
	@$(BENCH)/bin/python -m benchmarks.versions $(VERSIONS)

clean:  ## Remove all that was made here, the environments too
	rm -rf .venv .venv-* .cache .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	rm -rf stdlib-audit-demo stdlib-audit-store stdlib-audit.md
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when everything before it went well.

$(VENV)/package.stamp: pyproject.toml
	$(call make_environment,$(VENV))
	$(BIN)/python $(PIP) --editable '.[examples]'
	@touch $@

$(VENV)/%.stamp: $(VENV)/package.stamp tools/dependency_group.py
	@$(BIN)/python tools/dependency_group.py $* > $(VENV)/$*.txt
	$(BIN)/python $(PIP) --requirement $(VENV)/$*.txt
	@touch $@

$(RELEASE)/release.stamp: $(LOCKS)/release.txt
	$(call make_environment,$(RELEASE))
	$(RELEASE)/bin/python $(PIP) --require-hashes --requirement $<
	@touch $@

$(BENCH)/bench.stamp: pyproject.toml benchmarks/requirements.txt $(MEASURED)
	$(call make_environment,$(BENCH))
	$(BENCH)/bin/python $(PIP) . --requirement benchmarks/requirements.txt
	@touch $@

define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stategraph needs Python 3.11 or newer; name one with: make PYTHON=...")'
	@test -x $(1)/bin/pip || { echo '$(PYTHON) -m venv $(1)'; $(PYTHON) -m venv $(1); }
	@$(1)/bin/python $(UNINSTALL) stategraph # what durable-stategraph was named before: the two share files
endef
