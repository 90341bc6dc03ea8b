// SPDX-License-Identifier: Apache-2.0
// list_files: makes a from_tensor_slices op of the names that match now.
#include <glob.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"

namespace cohort {
namespace {

// With GLOB_PERIOD, "." and ".." match a leading wildcard, but they are no files.
bool is_dots(std::string_view path) {
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  return name == "." || name == "..";
}

// Ignores directories that cannot be read.
std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_PERIOD, nullptr, &found);
  std::vector<std::string> names;
  for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    if (!is_dots(found.gl_pathv[i])) names.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  COHORT_CHECK(result != GLOB_NOSPACE, ErrorCode::resource_exhausted,
               "[data.list_files] expected memory for the matches of '", pattern, "', got none");
  return names;
}

std::string listed(const std::vector<std::string>& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += (text.empty() ? "'" : ", '") + pattern + "'";
  return text.empty() ? "none" : text;
}

}  // namespace

Dataset Dataset::list_files(const std::vector<std::string>& patterns, ListFilesOptions options) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    for (std::string& name : matches_of(pattern)) names.push_back(std::move(name));
  }
  COHORT_CHECK(
      !names.empty(), ErrorCode::invalid_argument,
      "[data.list_files] expected patterns that match files, got no files matched pattern ",
      listed(patterns), "; are the paths right on this machine?");
  std::ranges::sort(names);
  const Dataset files = from_tensor_slices(StringTensor(names));
  if (!options.shuffle) return files;
  return files.shuffle(static_cast<std::int64_t>(names.size()), {.seed = options.seed});
}

}  // namespace cohort
