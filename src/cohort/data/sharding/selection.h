// SPDX-License-Identifier: Apache-2.0
// The elements of an input that one worker draws; the others are not computed.
#pragma once

#include <cstdint>
#include <memory>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// A list of ascending positions. Immutable. Thread-safe.
class Selection {
 public:
  // Consecutive positions.
  struct Run {
    std::int64_t position = 0;
    std::int64_t length = 0;  // 0: the list has no such item
  };
  virtual ~Selection() = default;
  // The position of the list's item number `index`, and how many items from there on are
  // consecutive.
  virtual Run run(std::int64_t index) const = 0;
};

// Whether an op's element number i depends only on its inputs' elements number i. Then a selection
// of its elements is applied to its inputs, and other elements are not computed.
bool is_element_wise(const Node& node);

// Whether an op may read the elements of its files by number. It does if the files have an index or
// records of equal length.
bool is_seekable_reader(const Node& node);

// The position of a stage's element number `index`; a null selection selects all.
inline std::uint64_t position_of(const Selection* selection, std::uint64_t index) {
  if (selection == nullptr) return index;
  return static_cast<std::uint64_t>(selection->run(static_cast<std::int64_t>(index)).position);
}

// A stage of the selected elements of `all`; a row stage if `all` is one.
std::unique_ptr<Stage> start_selected(const Node& node, std::unique_ptr<Stage> all,
                                      std::shared_ptr<const Selection> selection);

}  // namespace cohort::data
