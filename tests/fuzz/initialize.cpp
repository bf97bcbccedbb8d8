// SPDX-License-Identifier: MIT
#include <hdf5.h>

/// HDF5 keeps what it frees: else every file that it opens makes the system map half a megabyte.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    return H5set_free_list_limits(-1, -1, -1, -1, -1, -1);
}

/// HDF5 1.10 itself leaks what it has read of a header or of a layout that proves damaged. What we
/// allocate, and what HDF5 allocates for a handle of ours, does not come from there.
extern "C" const char* __lsan_default_suppressions() {
    return "leak:H5C_protect\nleak:H5O_msg_read\nleak:H5D__layout_oh_read\n";
}

/// HDF5 is built without frame pointers, and its frames have to be named. It asks for memory of the
/// sizes that a file says, and goes on where there is none.
extern "C" const char* __asan_default_options() {
    return "fast_unwind_on_malloc=0:malloc_context_size=16:allocator_may_return_null=1:"
           "max_allocation_size_mb=1024";
}
