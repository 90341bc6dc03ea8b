// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/script.h"

#include <map>

#include "cohort/core/error.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

// More items than any case reads; a stream that never ends fails before it fills the memory.
constexpr std::int64_t kMostItems = 100'000;

Json next_item(Stream& stream) {
  try {
    std::optional<Json> element = stream.next();
    return element ? std::move(*element) : Json("end");
  } catch (...) {
    return caught_error();
  }
}

Json optional_item(Stream& stream) {
  try {
    return stream.next_optional();
  } catch (...) {
    return caught_error();
  }
}

template <class Read, class IsLast>
Json read_all(Read read, IsLast is_last, std::int64_t limit = kMostItems) {
  Json items = Json::array();
  while (static_cast<std::int64_t>(items.size()) < limit) {
    items.push_back(read());
    if (is_last(items.back())) return items;
    if (static_cast<std::int64_t>(items.size()) >= kMostItems) {
      throw CaseFault("no end after " + std::to_string(kMostItems) + " items, the last one " +
                      brief(items.back(), 120));
    }
  }
  return items;
}

Json drain(Stream& stream, std::int64_t limit = kMostItems) {
  return read_all([&] { return next_item(stream); }, [](const Json& item) { return item == "end"; },
                  limit);
}

Json int64_leaf(std::int64_t value) { return Json::array({"int64", Json::array(), value}); }

void add_scalars(const Json& value, Json& scalars) {
  if (is_leaf(value)) {
    if (value[2].is_array()) {
      scalars.insert(scalars.end(), value[2].begin(), value[2].end());
    } else {
      scalars.push_back(value[2]);
    }
  } else if (value.is_structured()) {
    for (const Json& part : value) add_scalars(part, scalars);
  }
}

double number_of(const Json& scalar) {
  if (scalar.is_number()) return scalar.get<double>();
  if (scalar.is_boolean()) return scalar.get<bool>() ? 1 : 0;
  throw CaseFault("expected numbers to sum, got " + brief(scalar, 80));
}

// The commands of one script, with the iterators and positions they name.
class Script {
 public:
  Script(const Subject& subject, const CaseState& state) : subject_(subject), state_(state) {}

  Json run(const Json& command) {
    const auto verb = command.at(0).get<std::string>();
    const auto found = verbs().find(verb);
    if (found == verbs().end()) throw CaseFault("unknown script command '" + verb + "'");
    try {
      return (this->*found->second)(command);
    } catch (const Json::exception& error) {
      throw CaseFault("script command " + brief(command, 120) + ": " + error.what());
    } catch (...) {
      return caught_error();
    }
  }

 private:
  using Verb = Json (Script::*)(const Json& command);
  static const std::map<std::string, Verb>& verbs() {
    static const std::map<std::string, Verb> all = {{"iter", &Script::iter},
                                                    {"next", &Script::next},
                                                    {"read", &Script::read},
                                                    {"drain", &Script::drain_all},
                                                    {"opt", &Script::opt},
                                                    {"drain_opt", &Script::drain_opt},
                                                    {"save", &Script::save},
                                                    {"restore", &Script::restore},
                                                    {"drop", &Script::drop},
                                                    {"count_calls", &Script::count_calls},
                                                    {"count_steps", &Script::count_steps},
                                                    {"sum_all", &Script::sum_all},
                                                    {"reduce_sum", &Script::reduce_sum},
                                                    {"next_in_replica", &Script::next_in_replica}};
    return all;
  }

  static std::string name_in(const Json& command, std::size_t position = 1) {
    return command.at(position).get<std::string>();
  }

  Stream& stream(const Json& command) {
    const auto found = streams_.find(name_in(command));
    COHORT_CHECK(found != streams_.end(), ErrorCode::not_found,
                 "[conformance.script] expected an iterator made before, got '", name_in(command),
                 "'");
    return *found->second;
  }

  Json iter(const Json& command) {
    streams_.erase(name_in(command));
    streams_.emplace(name_in(command), subject_.iterate());
    return nullptr;
  }
  Json next(const Json& command) { return next_item(stream(command)); }
  Json read(const Json& command) {
    Stream& from = stream(command);
    Json items = Json::array();
    for (auto left = command.at(2).get<std::int64_t>(); left > 0; --left) {
      items.push_back(next_item(from));
    }
    return items;
  }
  Json drain_all(const Json& command) { return drain(stream(command)); }
  Json opt(const Json& command) { return optional_item(stream(command)); }
  Json drain_opt(const Json& command) {
    Stream& from = stream(command);
    return read_all(
        [&] { return optional_item(from); },
        [](const Json& item) { return item.contains("optional") && item["optional"].is_null(); });
  }
  Json save(const Json& command) {
    positions_[name_in(command, 2)] = stream(command).save();
    return nullptr;
  }
  Json restore(const Json& command) {
    const auto found = positions_.find(name_in(command, 2));
    COHORT_CHECK(found != positions_.end(), ErrorCode::not_found,
                 "[conformance.script] expected a position saved before, got '",
                 name_in(command, 2), "'");
    stream(command).restore(found->second);
    return nullptr;
  }
  Json drop(const Json& command) {
    stream(command);
    streams_.erase(name_in(command));
    return nullptr;
  }
  Json count_calls(const Json&) { return int64_leaf(state_.calls); }
  Json count_steps(const Json& command) {
    std::int64_t steps = 0;
    for_each(stream(command), [&](const Json&) { ++steps; });
    return int64_leaf(steps);
  }
  Json sum_all(const Json& command) {
    double sum = 0;
    std::int64_t steps = 0;
    for_each(stream(command), [&](const Json& element) {
      ++steps;
      for (const Json& scalar : scalars_of(element)) sum += number_of(scalar);
    });
    return {{"sum", sum}, {"steps", steps}};
  }
  Json reduce_sum(const Json&) { return subject_.reduce_sum(); }
  Json next_in_replica(const Json& command) { return stream(command).next_in_replica(); }

  // An error ends the loop and becomes the result of the command.
  template <class F>
  void for_each(Stream& from, F fn) {
    for (std::int64_t i = 0; i < kMostItems; ++i) {
      const std::optional<Json> element = from.next();
      if (!element) return;
      fn(*element);
    }
    throw CaseFault("no end after " + std::to_string(kMostItems) + " elements");
  }

  const Subject& subject_;
  const CaseState& state_;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
  std::map<std::string, Bytes> positions_;
};

}  // namespace

Json scalars_of(const Json& value) {
  Json scalars = Json::array();
  add_scalars(value, scalars);
  return scalars;
}

void run_default(const Json& test_case, const Subject& subject, Json& outcome) {
  std::unique_ptr<Stream> stream;
  try {
    stream = subject.iterate();
  } catch (...) {
    outcome["iter_error"] = caught_error();
    return;
  }
  Json items = drain(*stream, member_or(test_case, "limit", kMostItems));
  if (!items.empty() && items.back() == "end") {
    const Json after = next_item(*stream);
    if (after != "end") items.push_back({{"after the end", after}});
  }
  outcome["elements"] = std::move(items);
}

Json run_script(const Json& script, const Subject& subject, const CaseState& state) {
  Script runner(subject, state);
  Json out = Json::array();
  for (const Json& command : script) out.push_back(runner.run(command));
  return out;
}

void run_actions(const Json& test_case, const Subject& subject, const CaseState& state,
                 Json& outcome) {
  if (member_or(test_case, "no_iterate", false)) return;
  if (test_case.contains("script") && !test_case["script"].is_null()) {
    outcome["out"] = run_script(test_case["script"], subject, state);
  } else {
    run_default(test_case, subject, outcome);
  }
}

}  // namespace cohort::conformance
