// The table of a unit's entry points: kernels with plain names, by which launches ask for them.
#pragma once

namespace nvfp4 {

struct Entry {
    const char *name; // null behind the last one
    const void *kernel;
};

}  // namespace nvfp4

// Lists what `entries` has, a macro that applies another one to each name. `unit` may be a macro too.
#define NVFP4_ENTRY(name, ...) {#name, reinterpret_cast<const void *>(name)},
#define NVFP4_TABLE(unit, entries) NVFP4_TABLE_OF(unit, entries)
#define NVFP4_TABLE_OF(unit, entries)                                                     \
    extern "C" {                                                                          \
    extern const nvfp4::Entry nvfp4_entries_##unit[];                                     \
    const nvfp4::Entry nvfp4_entries_##unit[] = {entries(NVFP4_ENTRY){nullptr, nullptr}}; \
    }
