# Two commands: `make train` does the main job, `make test` proves it. Both set up what they need.
RUN ?= runs/reach/reach-v3/0

.PHONY: train test setup check format clean

train: setup
	.venv/bin/roboloop train reach --resume
	.venv/bin/roboloop eval $(RUN) --episodes 50 --video

test: setup
	.venv/bin/python -m pytest -m "not alone" -n 2 --dist worksteal
	.venv/bin/python -m pytest -m alone

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

setup:
	@scripts/setup.sh

clean:
	rm -rf .venv .venv-peers build *.egg-info .mypy_cache .ruff_cache .pytest_cache
