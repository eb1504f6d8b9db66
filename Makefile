# labctl on a bare Debian or Ubuntu machine, as root:  make demo
SHELL := /bin/bash
PYTHON := .venv/bin/python

.PHONY: setup demo demo-vsphere test check bench clean
.NOTPARALLEL:

setup:  ## packages, .venv/bin/labctl, the probe guest's image; seconds when it is all there
	@.ci/setup

demo: setup  ## the demo campaign on real guests, and its report
	@.ci/demo

demo-vsphere: setup  ## a campaign on a simulated vCenter (vcsim), whose guests really send, and its report
	@.ci/demo-vsphere

test: setup  ## style, types, import rules and all tests, also those with real guests
	@status=0; .ci/check || status=$$?; .ci/tests || status=$$?; exit $$status

check:  ## the quick part of `make test`: no services, no guests, no root
	@[ -x $(PYTHON) ] || { echo "There is no .venv yet. Run: sudo make setup" >&2; exit 1; }
	@status=0; .ci/check || status=$$?; \
		$(PYTHON) -m pytest -q -n 2 -m "not services and not lab and not faults" || status=$$?; exit $$status

bench: setup  ## what labctl is held to, from the time around transfers to nights of faults: figures, not tests
	@$(PYTHON) tests/benchmarks/run.py

clean:  ## the lab, .venv and all caches in this directory; the image's cache stays in ~/.cache/labctl
	@[ ! -x .venv/bin/labctl ] || [ "$$(id -u)" != 0 ] || .venv/bin/labctl lab down configs/labs/local.yaml
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build ./*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
