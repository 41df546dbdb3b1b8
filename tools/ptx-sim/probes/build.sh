#!/bin/sh
# Compiles the probes to PTX and builds the recorder. Needs nvcc 13 and g++; the recorder itself
# needs only libcuda.so.1 where it runs.
#   tools/ptx-sim/probes/build.sh [OUTPUT]     OUTPUT: the recorder, by default target/probes/record
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
out=${1:-$root/target/probes/record}
mkdir -p "$(dirname "$out")" ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile() {
    arch=$1
    shift
    for topic; do
        nvcc -ptx -arch=compute_$arch -o "ptx/$topic.ptx" "$topic.cu"
        ptxas -arch=sm_$arch -o "$work/$topic.cubin" "ptx/$topic.ptx"
    done
}
compile 90a cvt arith integer warp async tma matrix wgmma sums_f16
compile 100f tcgen05 tcgen05_pdl
compile 120f mma_fp4
include=${CUDA_INCLUDE:-$(dirname "$(command -v nvcc)")/../include}
g++ -std=c++17 -O1 -Wall -Wextra -I"$include" -static-libstdc++ -static-libgcc \
    -o "$work/record" record.cpp cases.cpp blackwell.cpp sums.cpp inputs.cpp -ldl
cp "$work/record" "$out"
"$out" --dry-run
