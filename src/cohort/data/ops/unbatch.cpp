// SPDX-License-Identifier: Apache-2.0
// unbatch: the rows of batches as elements.
#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "cohort/data/batch_parts.h"
#include "cohort/data/batching/batch_builder.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct UnbatchAttributes {
  static constexpr std::string_view kOp = "unbatch";
  std::int64_t batch_size = -1;  // the number of rows of every batch; -1: unknown
  static void describe(auto& visit, auto& all) {
    visit("batch_size", all.batch_size, AtLeast{-1, ">= -1"});
  }
};

class UnbatchStage final : public InputStage<UnbatchAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    if (!find_batch()) return false;
    fields.resize(batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i) fields[i] = select_row(batch_[i], row_);
    ++row_;
    return true;
  }

  // Copies consecutive rows at once.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    std::vector<Fields> parts;
    std::exception_ptr first_error;
    std::int64_t got = 0;
    while (got < count) {
      check_cancelled();
      try {
        if (!find_batch()) break;
      } catch (...) {
        if (stops_at_errors()) throw;
        if (!first_error) first_error = std::current_exception();
        ++got;  // an error is one element
        continue;
      }
      parts.resize(batch_.size());
      const std::int64_t end = row_ + std::min(count - got, count_ - row_);
      for (std::size_t i = 0; i < batch_.size(); ++i) {
        parts[i].push_back(narrow_rows(batch_[i], row_, end));
      }
      got += end - std::exchange(row_, end);
    }
    if (first_error) std::rethrow_exception(first_error);
    if (got > 0) batch = even([&] { return joined(parts); }, got);
    return got;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      check_cancelled();
      try {
        if (!find_batch()) break;
      } catch (const std::exception&) {
        ++skipped;  // an error is one element
        continue;
      }
      const std::int64_t rows = std::min(count - skipped, count_ - row_);
      row_ += rows;
      skipped += rows;
    }
    return skipped;
  }

  void describe_position(Position& at) override {
    Fields left;
    if (row_ < count_) {
      for (const at::Tensor& field : batch_) left.push_back(narrow_rows(field, row_, count_));
    }
    at(left);
    if (at.is_restored()) set_batch(std::move(left));
    InputStage::describe_position(at);
  }

 private:
  Fields joined(const std::vector<Fields>& parts) const {
    Fields batch;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::int64_t row = 0;
      for (const at::Tensor& part : parts[i]) {
        if (part.scalar_type() != parts[i][0].scalar_type() ||
            part.sizes().slice(1) != parts[i][0].sizes().slice(1)) {
          fail_uneven(node(), i, "a row of " + TensorSpec::of(parts[i][0]).to_string(),
                      "one of " + TensorSpec::of(part).to_string(), row);
        }
        row += part.size(0);
      }
      batch.push_back(join_rows(parts[i]));
    }
    return batch;
  }

  // Finds a batch with a row left; false at the end. A batch whose fields differ in length is
  // discarded, with an error.
  bool find_batch() {
    while (row_ == count_) {
      check_cancelled();
      set_batch({});
      Fields batch;
      if (!input().next(batch)) return false;
      set_batch(std::move(batch));
    }
    return true;
  }

  void set_batch(Fields batch) {
    row_ = 0;
    count_ = 0;
    batch_.clear();
    count_ = row_count(batch, UnbatchAttributes::kOp);
    for (at::Tensor& field : batch) {
      batch_.push_back(StringTensor::is(field) ? field : field.contiguous());
    }
  }

  Fields batch_;
  std::int64_t row_ = 0;
  std::int64_t count_ = 0;
};

class UnbatchNode final : public StageNode<UnbatchNode, UnbatchAttributes, UnbatchStage> {
 public:
  using StageNode::StageNode;

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (n < 0) return n;
    if (given().batch_size < 0) return kUnknownCardinality;
    return saturated_product(n, given().batch_size);
  }

  // The static number of rows, or -1.
  static std::int64_t checked_rows(const ElementSpec& spec) {
    std::int64_t rows = -1;
    for (std::size_t i = 0; i < spec.fields.size(); ++i) {
      const auto& sizes = spec.fields[i].sizes;
      if (!sizes) continue;
      COHORT_CHECK(!sizes->empty(), ErrorCode::invalid_argument,
                   "[data.unbatch] expected batches, got elements ", spec.to_string(),
                   " with a scalar in field ", i, "; batch() first");
      const std::int64_t size = sizes->front();
      COHORT_CHECK(rows < 0 || size < 0 || size == rows, ErrorCode::invalid_argument,
                   "[data.unbatch] expected one number of rows in every field, got elements ",
                   spec.to_string());
      if (size >= 0) rows = size;
    }
    return rows;
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    checked_rows(spec);
    for (TensorSpec& field : spec.fields) {
      if (field.sizes) field.sizes->erase(field.sizes->begin());
    }
    return spec;
  }
};

}  // namespace

NodePtr make_unbatch(SerializedOp op) { return UnbatchNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::unbatch() const {
  const ElementSpec* spec = node_->known_spec();
  return data::UnbatchNode::over(node_,
                                 {spec != nullptr ? data::UnbatchNode::checked_rows(*spec) : -1});
}

}  // namespace cohort
