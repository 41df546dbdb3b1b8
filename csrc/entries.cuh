// The entry points of a unit: kernels with plain names, by which launches ask for them.
#pragma once

// A kernel's definition, or nothing. NVRTC compiles one kernel of a unit at a time. It is given NVFP4_ONLY, which says
// so, and NVFP4_ONLY_<name of the kernel> as a comma. The comma makes NVFP4_TAKE the second one of the list below.
#ifdef NVFP4_ONLY
#define NVFP4_KERNEL(name) NVFP4_SECOND(NVFP4_ONLY_##name NVFP4_TAKE, NVFP4_LEAVE, )
#define NVFP4_SECOND(...) NVFP4_SECOND_OF(__VA_ARGS__)
#define NVFP4_SECOND_OF(first, second, ...) second
#define NVFP4_LEAVE(...)
#else
#define NVFP4_KERNEL(name) NVFP4_TAKE
#endif
#define NVFP4_TAKE(...) __VA_ARGS__

// Table of a unit, by which the host finds kernels that are linked in. `entries` is a macro that applies another one to
// each name; `unit` may be a macro too.
#ifdef NVFP4_ONLY
#define NVFP4_TABLE(unit, entries)
#else
namespace nvfp4 {

struct Entry {
    const char *name; // null behind the last one
    const void *kernel;
};

}  // namespace nvfp4

#define NVFP4_ENTRY(name, ...) {#name, reinterpret_cast<const void *>(name)},
#define NVFP4_TABLE(unit, entries) NVFP4_TABLE_OF(unit, entries)
#define NVFP4_TABLE_OF(unit, entries)                                                     \
    extern "C" {                                                                          \
    extern const nvfp4::Entry nvfp4_entries_##unit[];                                     \
    const nvfp4::Entry nvfp4_entries_##unit[] = {entries(NVFP4_ENTRY){nullptr, nullptr}}; \
    }
#endif
