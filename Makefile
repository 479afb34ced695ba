# Each target sets up what it needs in .venv and reuses it. `make test` is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PARTS := postgresql redis-server rabbitmq-server chromium

.PHONY: demo test smoke check lab lab-all cluster service service-all parts chaos bench numbers docs corpus hazard hazards pages clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch numpy -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[train,mlx,serve,postgres,dev]' -c constraints.txt
	@touch $@

demo: $(READY)
	$(BIN)/holdfast doctor || test $$? -eq 3  # a blocker is an answer too
	$(BIN)/python tools/demo.py

test: check lab service

smoke: $(READY)  # one or two minutes: a train run killed in the middle, a command, a job of the service
	$(BIN)/pytest -n 2 "tests/lab/test_run_engine.py::test_struck_in_any_phase_it_ends_with_the_same_weights" \
	  "tests/lab/test_run_commands.py::test_ctrl_c_saves_a_trainer_and_resume_finishes" tests/lab/test_train_models.py \
	  "tests/service/test_local_service.py::test_job_finishes_and_second_service_is_refused" -m "not full and not wheels"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/pytest tests/unit tests/hazards tests/darwin -n 2

# The tests of processes share the cores, three at a time because most of them wait. One that fails in that crowd is run
# once more on its own; a real fault fails there too.
ALONE := --last-failed --last-failed-no-failures none

lab: $(READY)  # the quick half; prints the table of faults
	$(BIN)/pytest tests/lab -n 3 -m "not wheels and not full" || $(BIN)/pytest tests/lab $(ALONE) -m "not wheels and not full"

lab-all: $(READY)  # HOLDFAST_LAB_PYTHON names an interpreter with lightning, trl and sentence-transformers
	HOLDFAST_LAB_TABLE=docs/lab.md $(BIN)/pytest tests/lab -n 3 -m "not wheels"
	$(BIN)/python tools/numbers.py

cluster: PARTS := munge slurmctld slurmd slurm-client
cluster: $(READY) parts  # runs as Ray tasks, and as a job of a real Slurm, which needs root; about 10 minutes
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[ray]' -c constraints.txt
	$(BIN)/pytest tests/lab/test_ray.py tests/lab/test_slurm.py -rs

service: $(READY) parts  # the quick half: pages, API, leases, one run through each kind of queue
	$(BIN)/pytest tests/service -m "not full and not wheels" || $(BIN)/pytest tests/service $(ALONE) -m "not full and not wheels"
	$(BIN)/pytest tests/browser -m "not full and not wheels" || $(BIN)/pytest tests/browser $(ALONE) -m "not full and not wheels"

service-all: $(READY) parts
	$(BIN)/pytest tests/service -m "not wheels"
	$(BIN)/pytest tests/browser -m "not wheels"

parts:  # system packages for a target: databases, brokers, a browser; tests without their parts are skipped with the reason
	@missing=""; for part in $(PARTS); do dpkg -s $$part >/dev/null 2>&1 || missing="$$missing $$part"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 600 apt-get install -qq --no-install-recommends $$missing) \
	  >/dev/null 2>&1 || echo "could not install:$$missing"; fi

chaos: $(READY) parts  # about an hour
	$(BIN)/python -m tests.service.chaos --jobs 200 --workers 4

bench: $(READY)
	$(BIN)/python perf/cold_start.py
	$(BIN)/python perf/classify_cpu.py --rounds 3
	$(BIN)/python perf/causal_cpu.py --rounds 3

numbers: $(READY)  # docs/numbers.md and docs/simulation.md and their charts, from the ledger
	$(BIN)/python tools/numbers.py
	$(BIN)/python perf/simulate.py

docs: $(READY)  # pages that need no network, in build/docs; a broken link is an error
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]' -c constraints.txt
	$(BIN)/properdocs build --strict --config-file properdocs.yml --site-dir build/docs

corpus: $(READY)  # diagnosis accuracy on real failures with confirmed causes
	@test -n "$(HOLDFAST_CORPUS)" || { echo "no corpus: make corpus HOLDFAST_CORPUS=FILE:FILE, one failure a line; tools/score_corpus.py says its fields"; exit 2; }
	HOLDFAST_CORPUS="$(HOLDFAST_CORPUS)" $(BIN)/python tools/score_corpus.py

hazard: $(READY)
	$(BIN)/python tools/new_hazard.py $(NAME)

hazards: $(READY)
	$(BIN)/python tools/hazard_pages.py
	$(BIN)/pytest tests/hazards

pages: hazards  # every generated page of the documentation: hazards, settings, events
	$(BIN)/python tools/settings_page.py
	$(BIN)/python tools/event_pages.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
