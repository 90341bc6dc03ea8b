// SPDX-License-Identifier: Apache-2.0
// The elements that one worker draws from an input whose others it leaves unmade.
#pragma once

#include <cstdint>
#include <memory>

#include "cohort/data/internal/node.h"

namespace cohort::data {

// Positions in ascending order. Immutable. Thread-safe.
class Selection {
 public:
  struct Run {
    std::int64_t position = 0;
    std::int64_t length = 0;  // 0: there is no such choice
  };
  virtual ~Selection() = default;
  // Where the choice number `index` is, and how many choices lie there one behind the other.
  virtual Run run(std::int64_t index) const = 0;
};

// Whether an op's element number i comes from its inputs' elements number i alone: what is selected
// of it is selected of its inputs, and the rest is not made.
bool is_element_wise(const Node& node);

// Whether an op may read its files by number (it does where they have an index, or records of one
// length).
bool is_seekable_reader(const Node& node);

// The position of a stage's element number `index`; null: all are drawn.
inline std::uint64_t position_of(const Selection* selection, std::uint64_t index) {
  if (selection == nullptr) return index;
  return static_cast<std::uint64_t>(selection->run(static_cast<std::int64_t>(index)).position);
}

// The selected elements of a stage; a row stage stays one.
std::unique_ptr<Stage> start_selected(const Node& node, std::unique_ptr<Stage> all,
                                      std::shared_ptr<const Selection> selection);

}  // namespace cohort::data
