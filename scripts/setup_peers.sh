#!/bin/sh
# Make the virtual environments of the systems we measure ourselves against (used by `roboloop bench`).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

peers() { # venv, requirements
  [ -x "$1/bin/python" ] || python3 -m venv "$1"
  # torch alone and first: a later "torch>=x" is then satisfied and nothing pulls a CUDA build
  "$1/bin/pip" install --quiet "$(grep '^torch==' "$2")"
  "$1/bin/pip" install --quiet -r "$2"
}

peers "$root/.venv-peers" "$root/benchmarks/requirements-peers.txt"
"$root/.venv-peers/bin/python" -c "import torch, stable_baselines3, sbx, torchrl; print('peers ready, torch', torch.__version__)"
# Sample Factory wants gymnasium<1 and numpy<2, which no other peer can live with
peers "$root/.venv-sf" "$root/benchmarks/requirements-sample-factory.txt"
"$root/.venv-sf/bin/python" -c "import torch, sample_factory, vizdoom; print('Sample Factory ready, torch', torch.__version__)"
