#!/bin/sh
# Compiles kernels/*.cu to ptx/*.ptx and checks that ptxas assembles each. Needs nvcc 13 on PATH.
set -eu
cd "$(dirname "$0")"
cubin=$(mktemp)
trap 'rm -f "$cubin"' EXIT
for source in kernels/*.cu; do
    name=$(basename "$source" .cu)
    nvcc -std=c++17 -O3 -arch=compute_100a -ptx -o "ptx/$name.ptx" "$source"
    ptxas -arch=sm_100a -o "$cubin" "ptx/$name.ptx"
done
