// SPDX-License-Identifier: MIT
#include "experiments/pretrain/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "core/train/ops.h"

namespace msa::experiments::pretrain {

void Mixture::validate() const {
    tasks.validate();
    double sum = 0;
    for (size_t task = 0; task < shares.size(); ++task) {
        require(shares[task] >= 0 && shares[task] <= 1, "the share of ", kTaskNames[task], " is ",
                shares[task], ", must be from 0 to 1");
        sum += shares[task];
    }
    require(sum <= 1 + 1e-9, "the shares of all tasks sum to ", sum, ", must be at most 1");
}

void Sequences::add(std::string_view bytes, bool bos, int64_t file) {
    MSA_CHECK(std::ssize(bytes) >= Reading{.bos = bos}.bytes(1));
    const auto byte = [&](size_t i) { return int32_t{static_cast<unsigned char>(bytes[i])}; };
    int32_t token = bos ? kSeparator : byte(0), position = 0;
    for (size_t i = bos ? 0 : 1; i < bytes.size(); ++i) {
        tokens.push_back(token);
        targets.push_back(token = byte(i));
        positions.push_back(position++);
    }
    cu_seqlens.push_back(std::ssize(tokens));
    files.push_back(file);
}

void Sequences::add(const Exercise& exercise, bool bos) {
    const int64_t first = bos ? 0 : 1;                   // byte that is the target of a token
    const int64_t before = std::ssize(targets) - first;  // byte i is the target of before + i
    add(std::string_view(exercise.bytes), bos);
    for (const auto& [begin, end] : exercise.planted)
        std::fill(targets.begin() + before + std::max(first, begin), targets.begin() + before + end,
                  train::Ops::kNoTarget);
    for (const Answer& answer : exercise.answers)
        answers.push_back(
            {before + answer.begin, before + answer.end, exercise.task, answer.depth});
}

Uploaded::Uploaded(Backend& backend, const Sequences& sequences) : layout_(sequences.layout) {
    const auto upload = [&](const std::vector<int32_t>& list) {
        return backend.upload(View<const int32_t, 1>(list.data(), {std::ssize(list)}));
    };
    tokens_ = upload(sequences.tokens);
    targets_ = upload(sequences.targets);
    positions_ = upload(sequences.positions);
}

Batches::Batches(const Documents& documents, const Mixture& mixture, const Reading& reading,
                 int64_t context, int64_t sequences, uint64_t seed, int64_t at_once)
    : documents_(documents),
      mixture_(mixture),
      reading_(reading),
      context_(context),
      sequences_(sequences),
      seed_(seed) {
    require(context >= 1, "the context is ", context, ", must be at least 1");
    require(sequences >= 1, "sequences per batch are ", sequences, ", must be at least 1");
    mixture_.validate();
    const bool leave_out = reading.short_documents == ShortDocuments::leave_out;
    const int64_t needed = reading.bytes(leave_out ? context : 1);
    require(documents.longest() >= needed, documents.name(), ": the longest document has ",
            documents.longest(), " bytes, must have at least ", needed,
            leave_out && !reading.bos
                ? ": one more than the context, unless short documents are packed"
            : leave_out ? ": the context, unless short documents are packed"
                        : "");
    for (int task = 0; task < kTasks; ++task) {
        if (mixture_.shares[static_cast<size_t>(task)] == 0) continue;
        const int64_t planted = planted_bytes(static_cast<Task>(task), mixture_.tasks);
        require(planted <= reading.bytes(context), "an exercise of ",
                name_of(static_cast<Task>(task)), " takes ", planted,
                " bytes without any filler, the context is ", context,
                "; a longer --context holds it, and --tasks names others");
    }
    if (leave_out) {
        long_documents_ = documents.longer_than(needed - 1);
        std::vector<int64_t> cu_seqlens(static_cast<size_t>(at_once > 0 ? at_once : sequences) + 1);
        for (size_t s = 0; s < cu_seqlens.size(); ++s)
            cu_seqlens[s] = static_cast<int64_t>(s) * context;
        layout_ = PackedBatch(cu_seqlens, cu_seqlens);
    }
}

std::optional<Task> Batches::task(uint64_t bits) const {
    double left = random_uniform(bits);
    for (int task = 0; task < kTasks; ++task) {
        left -= mixture_.shares[static_cast<size_t>(task)];
        if (left < 0) return static_cast<Task>(task);
    }
    return std::nullopt;
}

void Batches::add_row(Sequences& to, uint64_t seed) const {
    if (const std::optional<Task> exercise = task(mix(seed, 0))) {
        to.add(make_exercise(*exercise, mixture_.tasks, documents_, reading_.bytes(context_),
                             std::nullopt, mix(seed, 1)),
               reading_.bos);
        return;
    }
    const auto add_text = [&](const Documents& from, int64_t tokens, uint64_t bits) {
        const std::string_view bytes = from.cut(reading_.bytes(tokens), bits, reading_.from_start);
        if (std::ssize(bytes) >= reading_.bytes(1))
            to.add(bytes, reading_.bos, from.file_of(from.drawn(bits)));
    };
    if (reading_.short_documents == ShortDocuments::leave_out)
        return add_text(long_documents_, context_, mix(seed, 2));
    const int64_t end = std::ssize(to.tokens) + context_;
    for (int64_t draw = 2; std::ssize(to.tokens) < end; ++draw)
        add_text(documents_, end - std::ssize(to.tokens), mix(seed, draw));
}

Sequences Batches::at(int64_t step, int64_t first, int64_t count) const {
    MSA_CHECK(step >= 0 && first >= 0 && count >= 1 && first + count <= sequences_);
    Sequences rows;
    for (int64_t row = first; row < first + count; ++row) add_row(rows, mix(seed_, step, row));
    rows.layout = rows.cu_seqlens == layout_.cu_seqlens_q()
                      ? layout_
                      : PackedBatch(rows.cu_seqlens, rows.cu_seqlens);
    return rows;
}

}  // namespace msa::experiments::pretrain
