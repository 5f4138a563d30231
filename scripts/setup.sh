#!/usr/bin/env bash
# Make .venv with everything that training and the tests need; safe to run again, quick when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp="$venv/.setup-done"
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh examples/outside/pyproject.toml | sha256sum | cut -d' ' -f1)
if [ -x "$venv/bin/roboloop" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

# Headless rendering (videos, pixels) needs EGL through Mesa.
packages="libegl1 libgl1 libegl-mesa0"
if ! ldconfig -p | grep -q libEGL.so.1 || ! ldconfig -p | grep -q libGL.so.1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null
  else
    echo "setup: no EGL found; videos need it. On Debian or Ubuntu, as root: apt-get install $packages" >&2
  fi
fi

# The page of `roboloop dash` is tested in a real browser; those tests are skipped where there is none.
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null ||
      echo "setup: chromium cannot be installed; tests of the page will be skipped" >&2
  else
    echo "setup: no chromium found; tests of the page will be skipped. On Debian, as root: apt-get install chromium" >&2
  fi
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 2; }
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setup: installing into $venv (one to three minutes the first time)"
# torch first and pinned: a plain 'torch' may pull gigabytes of CUDA libraries
"$venv/bin/pip" install -q --disable-pip-version-check -c constraints.txt torch==2.13.0 2>&1 | { grep -v WARNING || true; }
"$venv/bin/pip" install -q --disable-pip-version-check -c constraints.txt -e '.[all,dev]' 2>&1 | { grep -v WARNING || true; }
# a plug-in as a researcher would write one; the tests train with it
"$venv/bin/pip" install -q --disable-pip-version-check -c constraints.txt --no-deps -e examples/outside 2>&1 | { grep -v WARNING || true; }
echo "$wanted" > "$stamp"
