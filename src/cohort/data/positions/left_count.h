// SPDX-License-Identifier: Apache-2.0
// The positions of take and skip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/data/positions/position.h"

namespace cohort::data {

// The number of elements left to `what` ("take" or "skip"). data_loss if it is negative.
inline void describe_left(Position& at, std::int64_t& left, std::string_view what) {
  at(left);
  at.check(left >= 0, "how many elements are left to " + std::string(what));
}

// The base of stages of take and skip whose position begins with that number. `Base` is an
// InputStage.
template <class Base>
class LeftCount : public Base {
 public:
  using Base::Base;

  void describe_position(Position& at) override {
    describe_left(at, left_, this->node().op());
    Base::describe_position(at);
  }

 protected:
  std::int64_t left_ = Base::given().count;
};

}  // namespace cohort::data
