#!/usr/bin/env bash
# libjpeg-turbo for wheels, into /usr/local: the images in which they are built only have versions before 2.1.
# Run by cibuildwheel (pyproject.toml); needs git, cmake and a C compiler, and on x86-64 nasm for its vector code.
set -euo pipefail
[ "$(uname -m)" != x86_64 ] || command -v nasm >/dev/null || dnf install -y -q nasm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q --depth 1 --branch 3.1.2 https://github.com/libjpeg-turbo/libjpeg-turbo "$work/source"
cmake -S "$work/source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DENABLE_STATIC=OFF -DWITH_TURBOJPEG=OFF \
  -DCMAKE_INSTALL_PREFIX=/usr/local
cmake --build "$work/build" --parallel
cmake --install "$work/build"
ldconfig
