// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_outcome.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

namespace {

const std::map<std::string, ErrorCode>& codes() {
  static const std::map<std::string, ErrorCode> table = {
      {"Cancelled", ErrorCode::cancelled},
      {"Unknown", ErrorCode::unknown},
      {"InvalidArgument", ErrorCode::invalid_argument},
      {"DeadlineExceeded", ErrorCode::deadline_exceeded},
      {"NotFound", ErrorCode::not_found},
      {"AlreadyExists", ErrorCode::already_exists},
      {"PermissionDenied", ErrorCode::permission_denied},
      {"ResourceExhausted", ErrorCode::resource_exhausted},
      {"FailedPrecondition", ErrorCode::failed_precondition},
      {"Aborted", ErrorCode::aborted},
      {"OutOfRange", ErrorCode::out_of_range},
      {"Unimplemented", ErrorCode::unimplemented},
      {"Internal", ErrorCode::internal},
      {"Unavailable", ErrorCode::unavailable},
      {"DataLoss", ErrorCode::data_loss},
      {"Unauthenticated", ErrorCode::unauthenticated},
      // Kinds of exceptions.
      {"ValueError", ErrorCode::invalid_argument},
      {"TypeError", ErrorCode::invalid_argument},
      {"AssertionError", ErrorCode::invalid_argument},
      {"RuntimeError", ErrorCode::failed_precondition},
      {"NotImplementedError", ErrorCode::unimplemented},
      {"IndexError", ErrorCode::out_of_range},
      {"KeyError", ErrorCode::not_found},
  };
  return table;
}

}  // namespace

ErrorCode code_of_kind(std::string name) {
  if (name.rfind("OpError:", 0) == 0) name = name.substr(8);
  auto found = codes().find(name);
  if (found == codes().end() && name.size() > 5)
    found = codes().find(name.substr(0, name.size() - 5));
  if (found == codes().end()) throw CaseFault("unknown kind of error '" + name + "'");
  return found->second;
}

namespace {

// --- errors -------------------------------------------------------------------------------------

// The codes that stand for an exception of TensorFlow; of other kinds the code is recorded.
const std::map<std::string, std::set<std::string>>& codes_of_kinds() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"ValueError", {"InvalidArgument"}},           {"TypeError", {"InvalidArgument"}},
      {"AssertionError", {"InvalidArgument"}},       {"RuntimeError", {"FailedPrecondition"}},
      {"NotImplementedError", {"Unimplemented"}},    {"IndexError", {"OutOfRange"}},
      {"KeyError", {"AlreadyExists", "NotFound"}},   {"AttributeError", {"Internal"}},
      {"ClosureInputError", {"FailedPrecondition"}},
  };
  return table;
}

bool is_of_kind(const std::string& kind, const std::string& recorded_code, const Json& got) {
  if (kind == "UserError") return got["user"] == true;
  if (got["user"] == true) return false;
  constexpr std::string_view kOpError = "OpError:";
  if (kind.starts_with(kOpError)) return got["code"] == kind.substr(kOpError.size());
  if (kind == "OpError") return got["code"] == recorded_code;
  const auto codes = codes_of_kinds().find(kind);
  if (codes == codes_of_kinds().end()) throw CaseFault("unknown kind of error '" + kind + "'");
  return codes->second.contains(got["code"].get<std::string>());
}

bool is_error_equal(const Json& expected, const Json& got) {
  const auto code = member_or<std::string>(expected, "code", "");
  bool is_accepted = is_of_kind(member(expected, "kind"), code, got);
  for (const Json& kind : member_or(expected, "accept", Json::array())) {
    is_accepted = is_accepted || is_of_kind(kind, code, got);
  }
  const std::string message = in_lower_case(got["message"]);
  for (const Json& word : member_or(expected, "words", Json::array())) {
    is_accepted = is_accepted && message.find(in_lower_case(word)) != std::string::npos;
  }
  return is_accepted;
}

// --- values -------------------------------------------------------------------------------------

bool has_one(const Json& json, const char* key) { return json.is_object() && json.contains(key); }

// A distributed value with one component is that component.
const Json& unwrapped(const Json& json) {
  for (const char* kind : {"per_replica", "mirrored"}) {
    if (has_one(json, kind) && json.size() == 1 && json[kind].size() == 1) return json[kind][0];
  }
  return json;
}

bool is_variable_equal(const Json& components, const Json& got, double tolerance) {
  // TensorFlow returns a variable of which it took the mean itself, and the library its value.
  if (has_one(got, "of_variable")) {
    return components.size() == 1 && is_value_equal(components[0], got, tolerance);
  }
  return has_one(got, "variable") && is_value_equal(components, got["variable"], tolerance);
}

// Rows are compared after they are added up.
bool are_rows_equal(const Json& expected, const Json& got, double tolerance) {
  const auto dense = [](const Json& slices) {
    const Rows rows{read_tensor(member(slices, "indices")), read_tensor(member(slices, "values"))};
    return write_tensor(
        sparse_rows(rows, member(slices, "shape").get<std::vector<std::int64_t>>()).to_dense());
  };
  return is_value_equal(dense(expected), dense(got), tolerance);
}

bool is_list_equal(const Json& expected, const Json& got, double tolerance) {
  return got.is_array() && expected.size() == got.size() &&
         std::equal(expected.begin(), expected.end(), got.begin(),
                    [&](const Json& a, const Json& b) { return is_value_equal(a, b, tolerance); });
}

bool is_object_equal(const Json& expected, const Json& got, double tolerance) {
  if (is_tensor_json(expected)) {
    return is_tensor_json(got) && is_tensor_equal(expected, got, tolerance);
  }
  if (has_one(expected, "error")) {
    return has_one(got, "error") && is_error_equal(expected["error"], got["error"]);
  }
  if (has_one(expected, "token")) return got.is_null();
  if (has_one(expected, "ref") && expected.size() == 1) {
    return has_one(got, "names") && std::find(got["names"].begin(), got["names"].end(),
                                              expected["ref"]) != got["names"].end();
  }
  if (has_one(expected, "variable") && expected["variable"].is_array()) {
    return is_variable_equal(expected["variable"], got, tolerance);
  }
  if (has_one(expected, "slices")) {
    return has_one(got, "slices") && are_rows_equal(expected["slices"], got["slices"], tolerance);
  }
  if (!got.is_object() || expected.size() != got.size()) return false;
  for (const auto& [key, value] : expected.items()) {
    if (!got.contains(key) || !is_value_equal(value, got[key], tolerance)) return false;
  }
  return true;
}

// --- outcomes -----------------------------------------------------------------------------------

std::string shown(const Outcome& got) {
  return got.error.is_null() ? brief(got.value, 600) : brief(got.error, 600);
}

// TensorFlow throws an error of a merge from run(), where no `try` of a replica sees it. A library
// that throws it in each replica is as good: then each `try` has it, and run() succeeds.
bool has_every_replica_seen(const Json& error, const Json& emits) {
  std::set<std::string> replicas;
  for (const auto& [label, places] : emits.items()) {
    for (const auto& [place, values] : places.items()) {
      if (place.starts_with("r")) replicas.insert(place);
    }
  }
  if (replicas.empty()) return false;
  return std::any_of(emits.begin(), emits.end(), [&](const Json& places) {
    return std::all_of(replicas.begin(), replicas.end(), [&](const std::string& place) {
      return places.contains(place) && has_one(places[place].back(), "error") &&
             is_error_equal(error, places[place].back()["error"]);
    });
  });
}

std::string difference_of_emits(const Json& expected, const Json& got, double tolerance) {
  for (const auto& [label, places] : got.items()) {
    if (!expected.contains(label)) return "emitted '" + label + "': " + brief(places);
  }
  for (const auto& [label, places] : expected.items()) {
    const Json found = got.value(label, Json());
    if (!is_value_equal(places, found, tolerance)) {
      return "emits of '" + label + "': expected " + brief(places, 600) + "\n  got " +
             brief(found, 600);
    }
  }
  return "";
}

// `expected`: a step, or what it recommends.
std::string difference_from(const Json& expected, const Outcome& got, double tolerance) {
  if (expected.contains("error")) {
    const Json& error = expected["error"];
    const bool is_equal = got.error.is_null() ? has_every_replica_seen(error, got.emits)
                                              : is_error_equal(error, got.error);
    return is_equal ? "" : "expected error " + brief(error, 300) + "\n  got " + shown(got);
  }
  if (!got.error.is_null()) return "expected success\n  got " + shown(got);
  const bool is_compared = expected.contains("expect") && expected.value("want", "") != "none";
  if (is_compared && !is_value_equal(expected["expect"], got.value, tolerance)) {
    return "expected " + brief(expected["expect"], 600) + "\n  got " + shown(got);
  }
  return expected.contains("emits") ? difference_of_emits(expected["emits"], got.emits, tolerance)
                                    : "";
}

}  // namespace

bool is_value_equal(const Json& expected, const Json& got, double tolerance) {
  const Json& a = unwrapped(expected);
  const Json& b = unwrapped(got);
  // The device of a value with one component may be a text or a list.
  if (a.is_array() && b.is_string()) return a.size() == 1 && a[0] == b;
  if (a.is_array()) return is_list_equal(a, b, tolerance);
  if (a.is_object()) return is_object_equal(a, b, tolerance);
  if (a.is_number_float() && b.is_number()) {
    return is_number_equal(a.get<double>(), b.get<double>(), tolerance);
  }
  // 1 differs from true, and 1 from 1.0 where a number is recorded as an integer.
  return a.is_number() == b.is_number() && a == b;
}

std::string difference(const Json& step, const Outcome& got, double tolerance) {
  const std::string recorded = difference_from(step, got, tolerance);
  if (recorded.empty() || !step.contains("recommended")) return recorded;
  return difference_from(step["recommended"], got, tolerance).empty() ? "" : recorded;
}

}  // namespace cohort::conformance::strategy
