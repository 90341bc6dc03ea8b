// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distribution/rebatcher.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/batch_parts.h"
#include "cohort/data/held_rows.h"

namespace cohort::input {
namespace {

std::int64_t row_count(const at::Tensor& field) {
  COHORT_CHECK(field.dim() > 0, ErrorCode::invalid_argument,
               "[input.rebatch] expected batches, got a scalar; batch() the dataset first");
  return field.size(0);
}

class WholeBatches final : public Rebatcher {
 public:
  bool next(data::ElementSource& batches, Fields& fields) override {
    if (given_.empty()) return batches.next(fields);
    fields = std::move(given_.front());
    given_.pop_front();
    return true;
  }
  std::vector<Fields> rest() const override { return {given_.begin(), given_.end()}; }
  void restore(std::vector<Fields> rest, std::uint64_t) override {
    given_.assign(std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  }

 private:
  std::deque<Fields> given_;
};

// Splits each field on its own, whatever the sizes of the others.
class SplitBatches final : public Rebatcher {
 public:
  SplitBatches(std::int64_t parts, std::vector<std::int64_t> own)
      : parts_(parts), own_(std::move(own)) {}

  bool next(data::ElementSource& batches, Fields& fields) override {
    if (!given_.empty()) {
      fields = std::move(given_.front());
      given_.pop_front();
      return true;
    }
    if (next_own_ == own_.size()) {
      Fields batch;
      if (!batches.next(batch)) return false;
      for (const at::Tensor& field : batch) row_count(field);
      data::warn_of_other_rows(batch);
      batch_ = std::move(batch);
      next_own_ = 0;
    }
    cut(own_[next_own_++], fields);
    return true;
  }

  std::vector<Fields> rest() const override {
    std::vector<Fields> parts(given_.begin(), given_.end());
    for (std::size_t i = next_own_; i < own_.size(); ++i) cut(own_[i], parts.emplace_back());
    return parts;
  }

  void restore(std::vector<Fields> rest, std::uint64_t) override {
    given_.assign(std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
    next_own_ = own_.size();
  }

 private:
  void cut(std::int64_t part, Fields& fields) const {
    fields.clear();
    fields.reserve(batch_.size());
    for (const at::Tensor& field : batch_) {
      const data::RowRange rows = data::part_of_batch(field.size(0), part, parts_);
      const bool is_whole = rows.length() == field.size(0);
      fields.push_back(is_whole ? field : data::narrow_rows(field, rows.begin, rows.end));
    }
  }

  std::int64_t parts_;
  std::vector<std::int64_t> own_;
  std::deque<Fields> given_;  // from a restored position
  Fields batch_;
  std::size_t next_own_ = own_.size();
};

class SizedBatches final : public Rebatcher {
 public:
  SizedBatches(std::vector<std::int64_t> sizes, ElementSpec spec)
      : sizes_(std::move(sizes)), spec_(std::move(spec)) {}

  bool next(data::ElementSource& batches, Fields& fields) override {
    const std::int64_t wanted = sizes_[index_];
    if (wanted == 0) {
      fields = data::empty_batch_of(spec_);
    } else if (!collect(batches, wanted, fields)) {
      return false;
    }
    index_ = (index_ + 1) % sizes_.size();
    return true;
  }

  std::vector<Fields> rest() const override { return held_.pieces(); }
  std::uint64_t index() const override { return index_; }
  void restore(std::vector<Fields> rest, std::uint64_t index) override {
    held_ = data::HeldRows();
    has_ended_short_ = false;
    for (Fields& fields : rest) add(std::move(fields));
    index_ = index % sizes_.size();
  }

 private:
  void add(Fields batch) {
    if (batch.empty()) return;
    const std::int64_t rows = row_count(batch.front());
    for (const at::Tensor& field : batch) {
      COHORT_CHECK(row_count(field) == rows, ErrorCode::invalid_argument,
                   "[input.rebatch] expected fields with equally many rows, got ", rows, " and ",
                   field.size(0));
    }
    held_.add(std::move(batch), rows);
  }

  // An error leaves the collected rows for the next call.
  bool collect(data::ElementSource& batches, std::int64_t wanted, Fields& fields) {
    while (held_.count() < wanted) {
      Fields batch;
      if (has_ended_short_ || !batches.next(batch)) break;
      add(std::move(batch));
    }
    if (held_.count() == 0) return false;
    if (held_.count() < wanted) has_ended_short_ = true;
    fields = joined(held_.take(std::min(wanted, held_.count())));
    return true;
  }

  static Fields joined(std::vector<Fields> pieces) {
    const Fields& first = pieces.front();
    for (const Fields& piece : pieces) {
      for (std::size_t i = 0; i < first.size(); ++i) {
        COHORT_CHECK(
            StringTensor::is(first[i]) || piece[i].sizes().slice(1) == first[i].sizes().slice(1),
            ErrorCode::invalid_argument,
            "[input.rebatch] expected rows of one shape to join in a mini-batch, got ",
            first[i].sizes().slice(1), " and ", piece[i].sizes().slice(1), " in field ", i);
      }
    }
    return data::join_batches(std::move(pieces));
  }

  std::vector<std::int64_t> sizes_;
  ElementSpec spec_;
  std::size_t index_ = 0;
  data::HeldRows held_;
  bool has_ended_short_ = false;
};

}  // namespace

std::unique_ptr<Rebatcher> whole_batches() { return std::make_unique<WholeBatches>(); }

std::unique_ptr<Rebatcher> split_batches(std::int64_t parts, std::vector<std::int64_t> own) {
  return std::make_unique<SplitBatches>(parts, std::move(own));
}

std::unique_ptr<Rebatcher> sized_batches(std::vector<std::int64_t> sizes, ElementSpec spec) {
  return std::make_unique<SizedBatches>(std::move(sizes), std::move(spec));
}

}  // namespace cohort::input
