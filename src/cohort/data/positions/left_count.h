// SPDX-License-Identifier: Apache-2.0
// Reads the saved positions of take and skip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/core/bytes.h"

namespace cohort::data {

// The number of elements left to `what` ("take" or "skip"). data_loss if it is negative.
inline std::int64_t read_left(ByteReader& reader, std::string_view what) {
  const std::int64_t left = reader.zigzag();
  if (left < 0) reader.fail("how many elements are left to " + std::string(what));
  return left;
}

// The base of stages of take and skip whose position begins with that number. `Base` is an
// InputStage.
template <class Base>
class LeftCount : public Base {
 public:
  using Base::Base;

  void save(ByteWriter& writer) const override {
    writer.zigzag(left_);
    Base::save(writer);
  }

  void restore(ByteReader& reader) override {
    left_ = read_left(reader, this->node().op());
    Base::restore(reader);
  }

 protected:
  std::int64_t left_ = Base::given().count;
};

}  // namespace cohort::data
