// SPDX-License-Identifier: MIT
// The types of operands that a kernel's source is compiled for. A build has an object for each
// type, MSA_KERNEL_ELEMENT, and compiles them beside each other. A check has one object for all of
// them, which parses the source once.
#pragma once

#ifdef MSA_KERNEL_ELEMENT
#define MSA_FOR_KERNEL_ELEMENTS(instantiate) instantiate(MSA_KERNEL_ELEMENT)
#elif defined(MSA_KERNEL_INT8)
#define MSA_FOR_KERNEL_ELEMENTS(instantiate) \
    instantiate(__nv_bfloat16) instantiate(__half) instantiate(__nv_fp8_e4m3) instantiate(int8_t)
#elif defined(MSA_KERNEL_E4M3)
#define MSA_FOR_KERNEL_ELEMENTS(instantiate) \
    instantiate(__nv_bfloat16) instantiate(__half) instantiate(__nv_fp8_e4m3)
#else
#define MSA_FOR_KERNEL_ELEMENTS(instantiate) instantiate(__nv_bfloat16) instantiate(__half)
#endif
