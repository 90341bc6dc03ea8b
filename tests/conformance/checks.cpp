// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "tests/conformance/comparison.h"
#include "tests/conformance/script.h"

namespace cohort::conformance {
namespace {

// One check of the outcome of a run and, for rebuild_same, of a second run.
class Check {
 public:
  Check(const Json& check, const Json& got, const Json& again)
      : check_(check), got_(got), again_(again) {}

  bool holds() const {
    static const std::map<std::string, bool (Check::*)() const> kinds = {
        {"same", &Check::same},
        {"different", &Check::different},
        {"window", &Check::window},
        {"permutation_blocks", &Check::permutation_blocks},
        {"permutation", &Check::permutation},
        {"halves_same", &Check::halves_same},
        {"halves_differ", &Check::halves_differ},
        {"not_sorted", &Check::not_sorted},
        {"rebuild_same", &Check::rebuild_same}};
    const auto name = member(check_, "check").get<std::string>();
    const auto found = kinds.find(name);
    if (found == kinds.end()) throw CaseFault("unknown check '" + name + "'");
    return (this->*found->second)();
  }

 private:
  // The stream at a position of `out`, or `elements` if the position is null; without "end".
  static Json stream(const Json& outcome, const Json& position) {
    const Json& items = position.is_null() ? member(outcome, "elements")
                                           : member(outcome, "out").at(position.get<std::size_t>());
    if (!items.is_array()) throw CaseFault("a check expected a list, got " + brief(items, 120));
    Json result = Json::array();
    for (const Json& item : items) {
      if (item != "end") result.push_back(item);
    }
    return result;
  }

  std::vector<Json> positions() const {
    const Json of = member_or(check_, "of", Json());
    if (of.is_array()) return {of.begin(), of.end()};
    return {of};
  }

  Json scalars() const {
    Json all = Json::array();
    for (const Json& position : positions()) {
      const Json part = scalars_of(stream(got_, position));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  std::vector<std::int64_t> integers() const {
    std::vector<std::int64_t> values;
    for (const Json& scalar : scalars()) {
      if (!scalar.is_number())
        throw CaseFault("a check expected numbers, got " + brief(scalar, 80));
      values.push_back(scalar.get<std::int64_t>());
    }
    return values;
  }

  bool same() const {
    const std::vector<Json> of = positions();
    return std::all_of(of.begin(), of.end(), [&](const Json& position) {
      return stream(got_, position) == stream(got_, of.front());
    });
  }
  bool different() const {
    const std::vector<Json> of = positions();
    return of.size() == 2 && stream(got_, of[0]) != stream(got_, of[1]);
  }
  bool window() const {
    const auto buffer = member(check_, "buffer").get<std::int64_t>();
    const std::vector<std::int64_t> values = integers();
    const auto epoch = member_or<std::int64_t>(check_, "epoch", 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto position = static_cast<std::int64_t>(i);
      if (values[i] >= (epoch > 0 ? position % epoch : position) + buffer) return false;
    }
    return true;
  }
  bool permutation_blocks() const {
    const auto block = member(check_, "block").get<std::size_t>();
    const std::vector<std::int64_t> values = integers();
    for (std::size_t start = 0; start < values.size(); start += block) {
      const std::size_t end = std::min(start + block, values.size());
      // The case's limit may cut off the last block.
      const std::set<std::int64_t> distinct(values.begin() + start, values.begin() + end);
      if (distinct.size() != end - start || *distinct.begin() < 0 ||
          *distinct.rbegin() >= static_cast<std::int64_t>(block)) {
        return false;
      }
    }
    return !values.empty();
  }
  bool permutation() const {
    std::vector<std::int64_t> values = integers();
    std::sort(values.begin(), values.end());
    if (values.size() != member(check_, "n").get<std::size_t>()) return false;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != static_cast<std::int64_t>(i)) return false;
    }
    return true;
  }
  bool halves_same() const {
    const Json values = scalars();
    const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
    return std::equal(values.begin(), values.begin() + half, values.begin() + half, values.end());
  }
  bool halves_differ() const { return !halves_same(); }
  bool not_sorted() const {
    const std::vector<std::int64_t> values = integers();
    return !std::is_sorted(values.begin(), values.end());
  }
  bool rebuild_same() const {
    const std::vector<Json> of = positions();
    return std::all_of(of.begin(), of.end(), [&](const Json& position) {
      return stream(got_, position) == stream(again_, position);
    });
  }

  const Json& check_;
  const Json& got_;
  const Json& again_;
};

// Removes the messages of errors, since they may name a directory; checks compare only codes.
Json without_messages(const Json& json) {
  if (!json.is_structured()) return json;
  Json result = json;
  if (result.is_object() && result.contains("error")) result.erase("message");
  for (Json& part : result) part = without_messages(part);
  return result;
}

}  // namespace

std::vector<Difference> failed_checks(const Json& test_case, const Json& got, const Json& again) {
  std::vector<Difference> found;
  for (const Json& check : test_case.value("checks", Json::array())) {
    const std::size_t workers = got.contains("workers") ? got["workers"].size() : 0;
    for (std::size_t worker = 0; worker < std::max<std::size_t>(workers, 1); ++worker) {
      const Json mine = without_messages(workers == 0 ? got : got["workers"][worker]);
      const Json second = again.is_null()
                              ? Json()
                              : without_messages(workers == 0 ? again : again["workers"][worker]);
      if (Check(check, mine, second).holds()) continue;
      const Json& seen = mine.contains("out") ? mine["out"] : mine.value("elements", Json());
      found.push_back({"check", brief(check), brief(seen)});
    }
  }
  return found;
}

bool needs_second_run(const Json& test_case) {
  for (const Json& check : test_case.value("checks", Json::array())) {
    if (check.value("check", "") == "rebuild_same") return true;
  }
  return false;
}

}  // namespace cohort::conformance
