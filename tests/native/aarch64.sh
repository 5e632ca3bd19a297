#!/usr/bin/env bash
# The native core for aarch64 on another machine with Debian: cross-compiled, its check program run by qemu's user mode.
#   tests/native/aarch64.sh libjpeg            fetch Debian's libjpeg-turbo for arm64 into build/aarch64/libjpeg
#   tests/native/aarch64.sh build BUILD        the library and the check program into BUILD
#   tests/native/aarch64.sh run PROGRAM [ARGUMENTS]
# Needs the packages cmake, g++-aarch64-linux-gnu, make and qemu-user, and for `libjpeg` the network.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
libjpeg=$root/build/aarch64/libjpeg

# Not through dpkg --add-architecture: apt keeps lists and packages of its own here, and the system stays as it is.
fetch_libjpeg() {
  [ ! -e "$libjpeg/usr" ] || return 0
  local work
  work=$(mktemp -d)
  trap 'rm -rf "$work"' RETURN
  mkdir -p "$work"/{lists,cache/archives}/partial "$work/packages" "$work/root"
  local options=(-q -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache"
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Acquire::Languages=none)
  apt-get "${options[@]}" update
  (cd "$work/packages" && apt-get "${options[@]}" download libjpeg62-turbo libjpeg62-turbo-dev)
  local package
  for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  mkdir -p "$(dirname "$libjpeg")"
  rm -rf "$libjpeg"
  mv "$work/root" "$libjpeg"
}

# The headers lie in two folders; a copy in one keeps the build's own /usr/include out of the way.
build() {
  mkdir -p "$1/include"
  cp "$libjpeg"/usr/include/*.h "$libjpeg"/usr/include/aarch64-linux-gnu/*.h "$1/include"
  cmake -S "$root" -B "$1" -DCMAKE_BUILD_TYPE=Release -DBETON_CHECK_PROGRAM=ON -DBETON_KEEP_IN_BUILD=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DJPEG_INCLUDE_DIR="$1/include" -DJPEG_LIBRARY="$libjpeg/usr/lib/aarch64-linux-gnu/libjpeg.so"
  cmake --build "$1" -- --no-print-directory -s
}

case ${1:-} in
  libjpeg) fetch_libjpeg ;;
  build) build "$2" ;;
  run) qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libjpeg/usr/lib/aarch64-linux-gnu" "${@:2}" ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
