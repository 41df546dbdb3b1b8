// Names of integer types: NVRTC has no <cstdint> without a CUDA installation.
#pragma once

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
