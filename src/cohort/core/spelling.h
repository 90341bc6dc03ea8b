// SPDX-License-Identifier: Apache-2.0
// Names in messages, and the name that may be meant by a misspelled one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// The number of single characters to insert, remove or replace, and of neighbours to exchange, that
// turns one text into the other. Capital letters count as small ones.
COHORT_API std::size_t spelling_distance(std::string_view a, std::string_view b);

// "; did you mean 'momentum'?" for "momentun": the known name that is nearest, or of which `name`
// is the beginning, or the other way round. Empty if no known name is similar, or if `name` is one
// of them. Thread-safe.
COHORT_API std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// Thread-compatible. Names for messages: "'w', 'b'", of many names the first ones "and 3 more".
class QuotedNames {
 public:
  void add(std::string_view name) {
    if (++count_ <= kShown) text_.append(text_.empty() ? "'" : ", '").append(name).append("'");
  }
  std::string text() const {
    return count_ <= kShown ? text_ : text_ + " and " + std::to_string(count_ - kShown) + " more";
  }

 private:
  static constexpr std::size_t kShown = 4;
  std::string text_;
  std::size_t count_ = 0;
};

// Logs a warning for each variable of the environment whose name begins with COHORT_ and is almost,
// but not quite, one that programs read (docs/environment.md). run_main() and the `cohort` command
// call it first. Others are taken for variables of the user's own. Reads the environment, so no
// other thread may change that meanwhile.
COHORT_API void warn_of_misspelled_variables();

}  // namespace cohort
