#!/bin/sh
# Compiles the probes to PTX and builds the recorder. Needs nvcc 13 and g++; the recorder itself
# needs only libcuda.so.1 where it runs.
#   ptx-sim/probes/build.sh [OUTPUT]     OUTPUT: the recorder, by default target/probes/record
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
out=${1:-$root/target/probes/record}
mkdir -p "$(dirname "$out")" ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for topic in cvt arith integer warp async tma matrix wgmma; do
    nvcc -ptx -arch=compute_90a -o "ptx/$topic.ptx" "$topic.cu"
    ptxas -arch=sm_90a -o "$work/$topic.cubin" "ptx/$topic.ptx"
done
include=${CUDA_INCLUDE:-$(dirname "$(command -v nvcc)")/../include}
g++ -std=c++17 -O1 -Wall -Wextra -I"$include" -static-libstdc++ -static-libgcc \
    -o "$work/record" record.cpp cases.cpp inputs.cpp -ldl
cp "$work/record" "$out"
"$out" --dry-run
