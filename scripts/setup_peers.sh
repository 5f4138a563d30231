#!/bin/sh
# Make the virtual environment of the systems we measure ourselves against (used by `roboloop bench`).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${1:-"$root/.venv-peers"}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# torch alone and first: a later "torch>=x" is then satisfied and nothing pulls a CUDA build
"$venv/bin/pip" install --quiet "$(grep '^torch==' "$root/benchmarks/requirements-peers.txt")"
"$venv/bin/pip" install --quiet -r "$root/benchmarks/requirements-peers.txt"
"$venv/bin/python" -c "import torch, stable_baselines3, sbx, torchrl; print('peers ready, torch', torch.__version__)"
