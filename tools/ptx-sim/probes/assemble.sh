#!/bin/sh
# Builds the recorder, and machine code of the probes for one architecture, from the PTX that the repository keeps.
#   tools/ptx-sim/probes/assemble.sh DIR ARCH     ARCH: 90a, 100f, 103f, 120f, ...; DIR gets record and TOPIC.cubin
# Needs ptxas, g++ and CUDA's headers, and no GPU.
set -eu
case ${2-} in
    [1-9][0-9]*) ;;
    *) echo "usage: assemble.sh DIR ARCH" >&2; exit 2 ;;
esac
mkdir -p "$1"
out=$(cd "$1" && pwd)
arch=$2
cd "$(dirname "$0")"
include=${CUDA_INCLUDE:-$(dirname "$(command -v nvcc)")/../include}
"${CXX:-g++}" -std=c++17 -O1 -Wall -Wextra -I"$include" -o "$out/record" \
    record.cpp cases.cpp blackwell.cpp sums.cpp inputs.cpp -ldl
"$out/record" --dry-run
for topic in cvt arith integer warp async tma matrix sums_f16 wgmma tcgen05 tcgen05_pdl mma_fp4; do
    case $topic:$arch in
        # Instructions of one family alone.
        wgmma:90a | tcgen05*:10* | mma_fp4:12*) from=$(sed -n 's/^\.target //p' "ptx/$topic.ptx") ;;
        wgmma:* | tcgen05*:* | mma_fp4:*) continue ;;
        *:90a) from=sm_90a ;;
        # What was compiled for a Hopper's own instructions and uses none of them runs on all that came later.
        *) from=sm_90 ;;
    esac
    sed "s/^\.target .*/.target $from/" "ptx/$topic.ptx" > "$out/$topic.ptx"
    ptxas -arch="sm_$arch" -o "$out/$topic.cubin" "$out/$topic.ptx"
    rm "$out/$topic.ptx"
done
