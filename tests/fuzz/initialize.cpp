// SPDX-License-Identifier: MIT
#include <hdf5.h>

/// HDF5 keeps what it frees: else every file that it opens makes the system map half a megabyte.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    return H5set_free_list_limits(-1, -1, -1, -1, -1, -1);
}

/// HDF5 1.10 itself leaks what it has read of an object's header that proves damaged. What we
/// allocate, and what HDF5 allocates for a handle of ours, does not come from there.
extern "C" const char* __lsan_default_suppressions() { return "leak:H5C_protect\n"; }

/// To see that name, as HDF5 is built without frame pointers.
extern "C" const char* __asan_default_options() {
    return "fast_unwind_on_malloc=0:malloc_context_size=16";
}
