// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/spelling.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "cohort/core/log.h"

namespace cohort {
namespace {

constexpr std::size_t kNameMax = 100;  // a longer one is no typing mistake
constexpr std::size_t kBeginningMin = 4;

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool is_beginning(std::string_view a, std::string_view b) {
  return std::min(a.size(), b.size()) >= kBeginningMin && (a.starts_with(b) || b.starts_with(a));
}

// The names in the first table of docs/environment.md; tools/environment_test.py compares them.
constexpr std::string_view kRead[] = {
    "COHORT_DATA_DIRS",      "COHORT_LOG_LEVEL", "COHORT_RUN_EAGERLY", "COHORT_METRICS",
    "COHORT_PROGRESS_FD",    "COHORT_ORIGIN_FD", "COHORT_TEST_SERVER", "COHORT_CLUSTER_RESOLVER",
    "COHORT_TASKS",          "COHORT_OWN_HOST",  "COHORT_PORT_BASE",   "COHORT_JOB_ID",
    "COHORT_END_WHEN_UNUSED"};
constexpr std::size_t kVariableDistanceMax = 2;

// The first of the known names with the smallest distance, which is at most `max`; empty if no name
// is so near, or if `name` is one of them.
template <class Names, class DistanceTo>
std::string_view nearest_of(const Names& known, std::string_view name, std::size_t max,
                            const DistanceTo& distance_to) {
  std::string_view nearest;
  std::size_t nearest_distance = max + 1;
  for (const std::string_view one : known) {
    if (name == one) return {};
    const std::size_t distance = distance_to(one);
    if (distance >= nearest_distance) continue;
    nearest = one;
    nearest_distance = distance;
  }
  return nearest;
}

}  // namespace

std::size_t spelling_distance(std::string_view first, std::string_view second) {
  const std::string a = lower_case(first), b = lower_case(second);
  // Each row has the distances between one beginning of `a` and all beginnings of `b`.
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  if (name.empty() || name.size() > kNameMax) return "";
  const std::size_t max = std::min<std::size_t>(3, (name.size() + 2) / 3);
  const std::string nearest(nearest_of(known, name, max, [&](std::string_view one) {
    const std::size_t distance = spelling_distance(name, one);
    return is_beginning(name, one) ? std::min(distance, max) : distance;
  }));
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

void warn_of_misspelled_variables() {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("COHORT_")) continue;
    const std::string_view meant =
        nearest_of(kRead, name, kVariableDistanceMax,
                   [&](std::string_view one) { return spelling_distance(name, one); });
    if (meant.empty()) continue;
    log_warn("[core.environment] expected environment variables that Cohort reads, got ", name,
             ", which it does not; did you mean ", meant, "?");
  }
}

}  // namespace cohort
