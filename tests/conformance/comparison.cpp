// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/comparison.h"

#include <algorithm>

#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

bool is_equal(const Json& expected, const Json& got);

bool is_equal_list(const Json& expected, const Json& got) {
  return got.is_array() && expected.size() == got.size() &&
         std::equal(expected.begin(), expected.end(), got.begin(), is_equal);
}

bool is_equal_object(const Json& expected, const Json& got) {
  if (!got.is_object()) return false;
  // Only codes are compared; messages are information.
  if (expected.contains("error")) {
    return got.contains("error") && is_equal(expected["error"], got["error"]);
  }
  // The cases do not always record the result of get_value of an empty optional.
  if (expected.contains("optional") && !expected.contains("get_value")) {
    return got.contains("optional") && is_equal(expected["optional"], got["optional"]);
  }
  if (expected.size() != got.size()) return false;
  for (const auto& [key, value] : expected.items()) {
    if (!got.contains(key) || !is_equal(value, got[key])) return false;
  }
  return true;
}

bool is_equal(const Json& expected, const Json& got) {
  if (expected.is_array()) return is_equal_list(expected, got);
  if (expected.is_object()) return is_equal_object(expected, got);
  // 1 differs from true, but 1 equals 1.0, as nlohmann compares numbers across their types.
  return expected.is_number() == got.is_number() && expected == got;
}

class Comparison {
 public:
  explicit Comparison(const Json& test_case) : case_(test_case) {}

  void compare(const Json& expected, const Json& got) {
    for (const char* error : {"build_error", "iter_error"}) {
      // An unexpected error explains all other differences.
      if (got.contains(error) && !expected.contains(error)) {
        return note_text(error, "none", brief(got[error]));
      }
    }
    for (const auto& [field, value] : expected.items()) {
      const Json* mine = got.contains(field) ? &got[field] : nullptr;
      if (mine == nullptr) {
        note(field, value, "nothing");
      } else if (field == "elements") {
        compare_stream(field, value, *mine, is_unordered("order_free", -1));
      } else if (field == "out") {
        compare_out(value, *mine);
      } else {
        compare_value(field, value, *mine);
      }
    }
  }

  std::vector<Difference> take() { return std::move(found_); }

 private:
  void note(const std::string& where, const Json& expected, const std::string& got) {
    note_text(where, brief(expected), got);
  }
  void note_text(std::string where, std::string expected, std::string got) {
    found_.push_back({std::move(where), std::move(expected), std::move(got)});
  }

  // Whether the case's `field` is true or lists this position of `out`; position -1 stands for
  // `elements`.
  bool is_unordered(const char* field, std::int64_t position) const {
    const auto found = case_.find(field);
    if (found == case_.end()) return false;
    if (found->is_boolean()) return found->get<bool>();
    return std::find(found->begin(), found->end(), Json(position)) != found->end();
  }

  void compare_value(const std::string& where, const Json& expected, const Json& got) {
    // Notes the whole value, since a difference may be in any member or item.
    if (!is_equal(expected, got)) note(where, expected, brief(got));
  }

  void compare_out(const Json& expected, const Json& got) {
    if (expected.size() != got.size()) return note("out", expected, brief(got));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto position = static_cast<std::int64_t>(i);
      compare_stream("out[" + std::to_string(i) + "]", expected[i], got[i],
                     is_unordered("order_free", position));
    }
  }

  void compare_stream(const std::string& where, const Json& expected, const Json& got,
                      bool is_free) {
    if (expected.is_object() && expected.contains("multiset")) {
      return compare_multiset(where, expected["multiset"], expected.value("then", Json::array()),
                              got);
    }
    if (expected.is_object() && expected.contains("any"))
      return compare_count(where, expected, got);
    const bool is_list = expected.is_array() && !is_leaf(expected);
    if (!is_list || !got.is_array()) return compare_value(where, expected, got);
    if (is_free) {
      Json items = expected;
      Json then = Json::array();
      if (!items.empty() && items.back() == "end") {
        then.push_back("end");
        items.erase(items.size() - 1);
      }
      return compare_multiset(where, items, then, got);
    }
    compare_items(where, expected, got);
  }

  // Notes the first item that differs.
  void compare_items(const std::string& where, const Json& expected, const Json& got) {
    for (std::size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
      const bool is_there = i < expected.size() && i < got.size();
      if (is_there && is_equal(expected[i], got[i])) continue;
      return note_text(where + "[" + std::to_string(i) + "]",
                       i < expected.size() ? brief(expected[i]) : "nothing more",
                       i < got.size() ? brief(got[i]) : "nothing more");
    }
  }

  void compare_multiset(const std::string& where, const Json& items, const Json& then,
                        const Json& got) {
    if (!got.is_array()) return note(where, items, brief(got));
    const std::size_t count = items.size();
    if (got.size() != count + then.size()) {
      return note_text(where, std::to_string(count) + " items and then " + brief(then),
                       std::to_string(got.size()) + " items, the last ones " + tail(got));
    }
    for (std::size_t i = 0; i < then.size(); ++i) {
      if (!is_equal(then[i], got[count + i])) return note(where, then, tail(got));
    }
    std::vector<Json> left(items.begin(), items.end());
    for (std::size_t i = 0; i < count; ++i) {
      const auto same = std::find_if(left.begin(), left.end(),
                                     [&](const Json& item) { return is_equal(item, got[i]); });
      if (same == left.end()) {
        return note_text(where + "[" + std::to_string(i) + "]", "one of " + brief(Json(left), 200),
                         brief(got[i]));
      }
      std::swap(*same, left.back());
      left.pop_back();
    }
  }

  void compare_count(const std::string& where, const Json& expected, const Json& got) {
    const auto count = expected["any"].get<std::size_t>();
    const Json then = expected.value("then", Json::array());
    bool is_same = got.is_array() && got.size() == count + then.size();
    for (std::size_t i = 0; is_same && i < got.size(); ++i) {
      is_same =
          i < count ? got[i] != "end" && !is_error(got[i]) : is_equal(then[i - count], got[i]);
    }
    if (!is_same) {
      note_text(where, std::to_string(count) + " elements and then " + brief(then), brief(got));
    }
  }

  static bool is_error(const Json& item) { return item.is_object() && item.contains("error"); }

  static std::string tail(const Json& items) {
    Json last = Json::array();
    for (std::size_t i = items.size() - std::min<std::size_t>(items.size(), 2); i < items.size();
         ++i) {
      last.push_back(items[i]);
    }
    return brief(last);
  }

  const Json& case_;
  std::vector<Difference> found_;
};

void compare_workers(const Json& test_case, const Json& expected, const Json& got,
                     std::vector<Difference>& found) {
  for (std::size_t worker = 0; worker < got["workers"].size(); ++worker) {
    Json wanted = expected;
    if (expected.contains("workers")) {
      if (worker >= expected["workers"].size()) continue;
      wanted = expected["workers"][worker];
    }
    for (Difference& difference : differences(test_case, wanted, got["workers"][worker])) {
      difference.where = "worker " + std::to_string(worker) + " " + difference.where;
      found.push_back(std::move(difference));
    }
  }
}

}  // namespace

std::vector<Difference> differences(const Json& test_case, const Json& expected, const Json& got) {
  if (got.contains("workers") &&
      (expected.contains("workers") || expected.contains("build_error"))) {
    std::vector<Difference> found;
    if (expected.contains("workers") && expected["workers"].size() != got["workers"].size()) {
      found.push_back({"workers", std::to_string(expected["workers"].size()),
                       std::to_string(got["workers"].size())});
    }
    compare_workers(test_case, expected, got, found);
    return found;
  }
  Comparison comparison(test_case);
  if (expected.contains("build_error")) {
    // After a build error nothing else is compared.
    comparison.compare({{"build_error", canonical(expected["build_error"])}}, got);
  } else {
    comparison.compare(canonical(expected), got);
  }
  return comparison.take();
}

}  // namespace cohort::conformance
