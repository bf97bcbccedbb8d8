// SPDX-License-Identifier: MIT
#include "experiments/pretrain/tasks.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/random.h"

namespace msa::experiments::pretrain {

namespace {

constexpr int64_t kLetters = 26;

/// Random values one after the other.
class Draw {
public:
    explicit Draw(uint64_t seed) : seed_(seed) {}
    uint64_t bits() { return mix(seed_, drawn_++); }
    int64_t below(int64_t end) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(end)); }
    double uniform() { return random_uniform(bits()); }
    /// Ascending.
    std::vector<double> uniforms(int64_t count) {
        std::vector<double> values(static_cast<size_t>(count));
        for (double& value : values) value = uniform();
        std::sort(values.begin(), values.end());
        return values;
    }
    std::string letters(int64_t count) {
        std::string word;
        while (std::ssize(word) < count) word += static_cast<char>('a' + below(kLetters));
        return word;
    }
    /// Letters that were not drawn as a key before.
    std::string key(int64_t length) {
        std::string word = letters(length);
        while (!keys_.insert(word).second) word = letters(length);
        return word;
    }

private:
    uint64_t seed_;
    int64_t drawn_ = 0;
    std::set<std::string> keys_;
};

/// A line among the filler, `place` of which lies before it.
struct PlantedLine {
    double place;
    std::string bytes;
};
struct Question {
    std::string prompt, answer;
    size_t line;  // the planted line that holds the answer
};
struct Plan {
    std::vector<PlantedLine> lines;
    std::vector<Question> questions;

    void plant(double place, const std::string& line) {
        lines.push_back({place, kSeparator + line + '\n'});
    }
    void ask(const std::string& prompt, const std::string& answer, size_t line) {
        questions.push_back({kSeparator + prompt, answer, line});
    }
    int64_t bytes() const {
        int64_t all = std::ssize(questions) - 1;  // the ends of lines between questions
        for (const PlantedLine& line : lines) all += std::ssize(line.bytes);
        for (const Question& q : questions) all += std::ssize(q.prompt) + std::ssize(q.answer);
        return all;
    }
};

/// Facts, the first at `depth`, the others anywhere, so that questions in the order of facts are in
/// random order among the places.
Plan plan_facts(int64_t facts, int64_t questions, const TaskOptions& o, double depth, Draw& draw) {
    Plan plan;
    for (int64_t i = 0; i < facts; ++i) {
        const std::string prompt = draw.key(o.key_length) + '=';
        const std::string value = draw.letters(o.value_length);
        plan.plant(i == 0 ? depth : draw.uniform(), prompt + value);
        if (i < questions) plan.ask(prompt, value, static_cast<size_t>(i));
    }
    return plan;
}

/// Chains of references, the value of the first at `depth`; the end of the first is asked for.
Plan plan_chains(const TaskOptions& o, double depth, Draw& draw) {
    Plan plan;
    for (int64_t chain = 0; chain < o.pairs; ++chain) {
        const double first = chain == 0 ? depth : draw.uniform();
        const std::string value = draw.letters(o.value_length);
        std::string key = draw.key(o.key_length);
        plan.plant(first, key + '=' + value);
        for (double place : draw.uniforms(o.hops)) {
            const std::string next = draw.key(o.key_length);
            plan.plant(first + place * (1 - first), next + "=$" + key);
            key = next;
        }
        if (chain == 0) plan.ask(key + '?', value, 0);
    }
    return plan;
}

Plan plan_exercise(Task task, const TaskOptions& o, double depth, Draw& draw) {
    Plan plan;
    switch (task) {
        case Task::needle: return plan_facts(1, 1, o, depth, draw);
        case Task::multi_key: return plan_facts(o.pairs, 1, o, depth, draw);
        case Task::recall: return plan_facts(o.pairs, o.questions, o, depth, draw);
        case Task::tracking: return plan_chains(o, depth, draw);
        case Task::copy: {
            const std::string run = draw.letters(o.copy_length);
            plan.plant(depth, run);
            plan.ask("", run, 0);
        }
    }
    return plan;
}

/// Writes filler, lines and questions behind each other.
class Assembly {
public:
    Assembly(Task task, const Documents& filler, int64_t filler_bytes, Draw& draw)
        : filler_(filler), filler_bytes_(filler_bytes), draw_(draw) {
        exercise_.task = task;
    }

    Exercise assemble(const Plan& plan) {
        std::vector<size_t> order(plan.lines.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return plan.lines[a].place < plan.lines[b].place;
        });
        std::vector<Answer> facts(plan.lines.size());
        for (size_t line : order) {
            const double place = plan.lines[line].place;
            fill_up_to(std::llround(place * static_cast<double>(filler_bytes_)));
            facts[line] = {.fact = std::ssize(exercise_.bytes),
                           .depth = static_cast<double>(filled_) /
                                    static_cast<double>(std::max<int64_t>(1, filler_bytes_))};
            plant(plan.lines[line].bytes);
        }
        fill_up_to(filler_bytes_);
        for (const Question& question : plan.questions) {
            plant(exercise_.answers.empty() ? question.prompt : '\n' + question.prompt);
            Answer answer = facts[question.line];
            answer.begin = std::ssize(exercise_.bytes);
            exercise_.bytes += question.answer;
            answer.end = std::ssize(exercise_.bytes);
            exercise_.answers.push_back(answer);
        }
        return std::move(exercise_);
    }

private:
    void plant(const std::string& bytes) {
        const int64_t begin = std::ssize(exercise_.bytes);
        exercise_.bytes += bytes;
        exercise_.planted.push_back({begin, std::ssize(exercise_.bytes)});
    }
    void fill_up_to(int64_t bytes) {
        while (filled_ < bytes) {
            if (cut_.empty()) cut_ = filler_.cut(filler_bytes_ - filled_, draw_.bits());
            const std::string_view part = cut_.substr(0, static_cast<size_t>(bytes - filled_));
            exercise_.bytes += part;
            filled_ += std::ssize(part);
            cut_.remove_prefix(part.size());
        }
    }

    const Documents& filler_;
    int64_t filler_bytes_, filled_ = 0;
    Draw& draw_;
    std::string_view cut_;  // what is left of the piece of a document under way
    Exercise exercise_;
};

}  // namespace

void TaskOptions::validate() const {
    const auto at_least_one = [](const char* name, int64_t value) {
        require(value >= 1, name, " is ", value, ", must be at least 1");
    };
    at_least_one("pairs", pairs);
    at_least_one("questions", questions);
    at_least_one("key_length", key_length);
    at_least_one("value_length", value_length);
    at_least_one("hops", hops);
    at_least_one("copy_length", copy_length);
    require(questions <= pairs, "questions is ", questions, ", must be at most pairs = ", pairs);
    const int64_t keys = pairs * (hops + 1);
    require(std::pow(kLetters, key_length) >= 2.0 * static_cast<double>(keys), "key_length is ",
            key_length, ", too short for ", keys, " different keys of letters a to z");
}

int64_t planted_bytes(Task task, const TaskOptions& options) {
    options.validate();
    Draw draw(0);
    return plan_exercise(task, options, 0, draw).bytes();
}

Exercise make_exercise(Task task, const TaskOptions& options, const Documents& filler,
                       int64_t length, std::optional<double> depth, uint64_t seed) {
    options.validate();
    require(!depth || (*depth >= 0 && *depth <= 1), "depth is ", depth.value_or(0),
            ", must be from 0 to 1");
    Draw draw(seed);
    const double first = depth ? *depth : draw.uniform();
    const Plan plan = plan_exercise(task, options, first, draw);
    require(length >= plan.bytes(), "an exercise of ", name_of(task), " is ", length,
            " bytes long, but its planted lines and questions alone take ", plan.bytes());
    require(length == plan.bytes() || filler.count() > 0, "there is no text for the filler of ",
            name_of(task));
    return Assembly(task, filler, length - plan.bytes(), draw).assemble(plan);
}

}  // namespace msa::experiments::pretrain
