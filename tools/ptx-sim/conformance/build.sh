#!/bin/sh
# build.sh [DIR]: compiles kernels/*.cu to DIR/*.ptx (default: ptx) and checks that ptxas assembles
# each. Needs nvcc and ptxas 13.0 on PATH; another release may emit other PTX.
# To see whether the committed PTX is current: build.sh DIR, then diff -r ptx DIR.
set -eu
out=${1:-}
[ -z "$out" ] || { mkdir -p "$out"; out=$(cd "$out" && pwd); }
cd "$(dirname "$0")"
out=${out:-ptx}
cubin=$(mktemp)
trap 'rm -f "$cubin"' EXIT
for source in kernels/*.cu; do
    name=$(basename "$source" .cu)
    nvcc -std=c++17 -O3 -arch=compute_100a -ptx -o "$out/$name.ptx" "$source"
    ptxas -arch=sm_100a -o "$cubin" "$out/$name.ptx"
done
