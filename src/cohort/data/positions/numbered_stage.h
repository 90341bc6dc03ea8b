// SPDX-License-Identifier: Apache-2.0
// The common base of the stages that call a function: map, map_field, typed_map.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cohort/data/stages/stage.h"

namespace cohort::data {

// Numbers the elements of its input, for messages and random numbers. Used from one thread at a
// time.
class NumberedStage : public Stage {
 public:
  NumberedStage(const Node& node, std::unique_ptr<Stage> input)
      : Stage(node), input_(std::move(input)) {}

  // Does not call the function.
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = input_->skip(count);
    take_numbers(skipped);
    return skipped;
  }

  void describe_position(Position& at) override { at(next_number_, *input_); }

 protected:
  Stage& input() { return *input_; }
  // Numbers the next `count` elements and returns the first number.
  std::uint64_t take_numbers(std::int64_t count = 1) {
    return std::exchange(next_number_, next_number_ + static_cast<std::uint64_t>(count));
  }

 private:
  std::unique_ptr<Stage> input_;
  std::uint64_t next_number_ = 0;
};

}  // namespace cohort::data
