// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/json.h"

namespace cohort::conformance {

const Json& member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) {
    throw CaseFault("expected a field '" + std::string(key) + "' in " + brief(object, 120));
  }
  return *found;
}

std::string brief(const Json& json, std::size_t limit) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= limit) return text;
  text.resize(limit);
  return text + "…";
}

}  // namespace cohort::conformance
