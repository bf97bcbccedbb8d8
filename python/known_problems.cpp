// SPDX-License-Identifier: MIT
#include "python/known_problems.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace nb = nanobind;

namespace msa {
namespace {

/// An int of 64 bits, and nothing that merely can be one. False without an error of Python's.
bool read_integer(nb::handle value, int64_t& to) {
    if (!PyLong_CheckExact(value.ptr())) return false;
    int overflow = 0;
    to = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    return overflow == 0;
}

bool read_count(nb::handle value, std::optional<int64_t>& to) {
    return value.is_none() || read_integer(value, to.emplace());
}

bool read_number(nb::handle value, std::optional<double>& to) {
    constexpr int64_t kExact = int64_t{1} << 53;
    int64_t whole = 0;
    if (value.is_none()) return true;
    if (PyFloat_CheckExact(value.ptr()))
        to = PyFloat_AsDouble(value.ptr());
    else if (read_integer(value, whole) && std::abs(whole) <= kExact)
        to = static_cast<double>(whole);
    return to.has_value();
}

/// None is an empty list, which no checked cu_seqlens is.
bool read_integers(nb::handle values, std::vector<int64_t>& to) {
    if (values.is_none()) return true;
    const bool is_list = PyList_CheckExact(values.ptr());
    if (!is_list && !PyTuple_CheckExact(values.ptr())) return false;
    const Py_ssize_t count = is_list ? PyList_Size(values.ptr()) : PyTuple_Size(values.ptr());
    to.resize(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!read_integer(
                is_list ? PyList_GetItem(values.ptr(), i) : PyTuple_GetItem(values.ptr(), i),
                to[static_cast<size_t>(i)]))
            return false;
    return count > 0;
}

bool read_shape(nb::handle array, std::array<int64_t, 4>& to) {
    static PyObject* const name = PyUnicode_InternFromString("shape");
    if (array.is_none()) return true;
    const nb::object shape = nb::steal(PyObject_GetAttr(array.ptr(), name));
    if (!shape.is_valid()) PyErr_Clear();
    if (!shape.is_valid() || !PyTuple_Check(shape.ptr())) return false;
    const Py_ssize_t axes = PyTuple_Size(shape.ptr());
    if (axes < 1 || axes >= std::ssize(to)) return false;
    to[0] = axes;
    for (Py_ssize_t axis = 0; axis < axes; ++axis)
        if (!read_integer(PyTuple_GetItem(shape.ptr(), axis), to[static_cast<size_t>(axis + 1)]))
            return false;
    return true;
}

}  // namespace

bool KnownProblems::read(const ProblemArguments& from, Key& to) {
    bool plain = read_integers(from.cu_seqlens_q, to.cu_seqlens[0]) &&
                 read_integers(from.cu_seqlens_k, to.cu_seqlens[1]);
    if (!from.layout.is_none()) plain = plain && nb::try_cast(from.layout, to.layout.emplace());
    for (size_t i = 0; i < to.arrays.size(); ++i)
        plain = plain && read_shape(from.arrays[i], to.arrays[i]);
    for (size_t i = 0; i < to.counts.size(); ++i)
        plain = plain && read_count(from.counts[i], to.counts[i]);
    for (size_t i = 0; i < to.numbers.size(); ++i)
        plain = plain && read_number(from.numbers[i], to.numbers[i]);
    return plain;
}

std::optional<Problem> KnownProblems::find(const ProblemArguments& arguments) {
    Key key;
    if (!read(arguments, key)) return std::nullopt;
    const auto found = std::find_if(known_.begin(), known_.end(),
                                    [&](const auto& each) { return each.first == key; });
    if (found == known_.end()) return std::nullopt;
    known_.splice(known_.begin(), known_, found);
    return known_.front().second;
}

void KnownProblems::keep(const ProblemArguments& arguments, const Problem& problem) {
    Key key;
    if (!read(arguments, key)) return;
    known_.emplace_front(std::move(key), problem);
    if (known_.size() > kMost) known_.pop_back();
}

}  // namespace msa
