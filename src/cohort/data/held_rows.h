// SPDX-License-Identifier: Apache-2.0
// The rows of batches that are regrouped into batches of other sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cohort/data/batch_parts.h"
#include "cohort/data/element.h"

namespace cohort::data {

// Rows that were read but not yielded yet. Used from one thread at a time.
class HeldRows {
 public:
  std::int64_t count() const { return count_; }
  // The batch of the first row. There is one.
  const Fields& front() const { return parts_.front().fields; }

  void add(Fields batch, std::int64_t rows) {
    if (rows > 0) parts_.push_back({std::move(batch), 0, rows});
    count_ += rows;
  }

  // Removes the first `rows` rows and returns them, those of each batch in its memory.
  std::vector<Fields> take(std::int64_t rows) {
    std::vector<Fields> taken;
    count_ -= rows;
    while (rows > 0) {
      Part& part = parts_.front();
      const std::int64_t count = std::min(rows, part.size());
      taken.push_back(part.first(count));
      part.begin += count;
      rows -= count;
      if (part.size() == 0) parts_.pop_front();
    }
    return taken;
  }

  // All rows, in the same form.
  std::vector<Fields> pieces() const {
    std::vector<Fields> all;
    for (const Part& part : parts_) all.push_back(part.first(part.size()));
    return all;
  }

 private:
  struct Part {
    Fields fields;
    std::int64_t begin;
    std::int64_t end;

    std::int64_t size() const { return end - begin; }
    Fields first(std::int64_t rows) const {
      Fields piece;
      for (const at::Tensor& field : fields) {
        const bool is_whole = rows == field.size(0);
        piece.push_back(is_whole ? field : narrow_rows(field, begin, begin + rows));
      }
      return piece;
    }
  };

  std::deque<Part> parts_;
  std::int64_t count_ = 0;
};

// Concatenates batches whose fields have rows of one shape. A single one is returned as it is.
inline Fields join_batches(std::vector<Fields> batches) {
  if (batches.size() == 1) return std::move(batches[0]);
  Fields all;
  for (std::size_t i = 0; i < batches[0].size(); ++i) {
    Fields column;
    for (const Fields& batch : batches) column.push_back(batch[i]);
    all.push_back(join_rows(column));
  }
  return all;
}

}  // namespace cohort::data
