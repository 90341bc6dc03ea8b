// SPDX-License-Identifier: Apache-2.0
// A set of places in a cycle, which finds the next one in turn without a look at the others.
#pragma once

#include <cstddef>
#include <optional>
#include <set>

namespace cohort::data {

// A value type.
class PositionSet {
 public:
  bool empty() const { return places_.empty(); }
  void clear() { places_.clear(); }
  void put(std::size_t place, bool is_in) {
    if (is_in) {
      places_.insert(place);
    } else {
      places_.erase(place);
    }
  }
  // The first place from `from` on, or else the first of all; nullopt if the set is empty.
  std::optional<std::size_t> next(std::size_t from) const {
    if (places_.empty()) return std::nullopt;
    const auto found = places_.lower_bound(from);
    return found == places_.end() ? *places_.begin() : *found;
  }

 private:
  std::set<std::size_t> places_;
};

}  // namespace cohort::data
