// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/call_site.h"

namespace cohort::internal {
namespace {

struct Current {
  std::string_view text;
  CallSite::Place place;
};
thread_local Current current = {};

}  // namespace

CallSite::CallSite(std::string_view text, Place place) : is_first_(current.text.empty()) {
  if (is_first_) current = {text, place};
}

CallSite::~CallSite() {
  if (is_first_) current = {};
}

std::string CallSite::text() {
  std::string text(current.text);
  if (current.place.file == nullptr) return text;
  const std::string_view path = current.place.file;
  return text + " at " + std::string(path.substr(path.rfind('/') + 1)) + ":" +
         std::to_string(current.place.line);
}

}  // namespace cohort::internal
