#!/usr/bin/env bash
# Make .venv-peers: the other loaders that the benchmarks compare with, apart from our own environment because some
# of them pin older versions (mosaicml-streaming wants numpy < 2.2). Each is installed by itself: one that cannot be
# had is listed at the end and then reported as "not installed" in the results, never left out silently.
#   benchmarks/peers.sh [VENV]        default .venv-peers
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=${1:-.venv-peers}
PYTHON=${PYTHON:-python3}
[ -x .venv/bin/python ] && PYTHON=.venv/bin/python

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || exit 1
PIP=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
# What our side of the harness needs there; torch as in the main environment, so that peers built on it are equal.
TORCH=$("$PYTHON" -c 'import torch; print("torch==" + torch.__version__.split("+")[0])' 2>/dev/null || echo torch)
VISION=$("$PYTHON" -c 'import torchvision; print("torchvision==" + torchvision.__version__.split("+")[0])' 2>/dev/null || echo torchvision)
"${PIP[@]}" "$TORCH" "$VISION" xxhash pillow click lazy_loader numba pyyaml tqdm || exit 1

# SPDL loads the system's FFmpeg.
if ! command -v ffmpeg >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  apt-get install -y -q --no-install-recommends ffmpeg >/dev/null || echo "no ffmpeg: spdl will not start" >&2
fi

failed=()
for package in nvidia-dali-cuda130 webdataset litdata grain spdl timm mosaicml-streaming; do
  printf '>> %s\n' "$package" >&2
  "${PIP[@]}" "$package" || failed+=("$package")
done
"$VENV/bin/python" -m pip list 2>/dev/null | grep -iE '^(torch|torchvision|numpy|pillow|nvidia-dali|webdataset|litdata|grain|spdl|timm|mosaicml)'
[ ${#failed[@]} -eq 0 ] || printf 'could not install: %s\n' "${failed[*]}" >&2
exit 0
