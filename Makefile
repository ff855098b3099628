# Two commands: `make demo` shows the product on a fresh machine, `make test` proves it.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint clean
.DEFAULT_GOAL := test

$(VENV)/demo.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[all,demo]' --constraint constraints.txt
	touch $@

$(VENV)/test.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[test]' --constraint constraints.txt
	touch $@ $(VENV)/demo.done

# Recommend, train on an embedded default, predict.
demo: $(VENV)/demo.done
	$(BIN)/zoo recommend --type proteins --n 20000
	rm -rf runs/demo
	$(BIN)/zoo train proteins/esm2-finetune --out runs/demo
	$(BIN)/zoo predict runs/demo --out runs/demo-predictions.csv
	head -5 runs/demo-predictions.csv

lint: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zoo check

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
