// SPDX-License-Identifier: Apache-2.0
// rebatch: regroups rows into batches of a cyclic list of sizes (spec 3.4, V2).
#include <algorithm>

#include "cohort/data/batch_parts.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/held_rows.h"

namespace cohort::data {
namespace {

struct RebatchAttributes {
  static constexpr std::string_view kOp = "rebatch";
  std::vector<std::int64_t> sizes;
  bool drop_remainder = false;
  static void describe(auto& visit, auto& all) {
    visit("sizes", all.sizes);
    visit("drop_remainder", all.drop_remainder);
  }
};

// Adds the rows of `batch`; adds nothing if their shapes differ from those of the held ones.
void add_rows(Fields batch, HeldRows& held) {
  const std::int64_t rows = row_count(batch, RebatchAttributes::kOp);
  if (rows > 0 && held.count() > 0) {
    const Fields& front = held.front();
    COHORT_CHECK(batch.size() == front.size(), ErrorCode::invalid_argument,
                 "[data.rebatch] expected batches of ", front.size(), " fields, got ",
                 batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      COHORT_CHECK(batch[i].scalar_type() == front[i].scalar_type() &&
                       batch[i].sizes().slice(1) == front[i].sizes().slice(1),
                   ErrorCode::invalid_argument, "[data.rebatch] expected rows of one shape: field ",
                   i, " of the last batch is ", TensorSpec::of(front[i]).to_string(), ", got ",
                   TensorSpec::of(batch[i]).to_string(), " in the next; use padded_batch()");
    }
  }
  held.add(std::move(batch), rows);
}

class RebatchStage final : public InputStage<RebatchAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    if (is_at_end_) return false;
    const std::int64_t size = sizes_[position_];
    if (size == 0) {
      advance();  // before the next line, which may throw: the error replaces the batch
      fields = empty_batch_of(spec());
      return true;
    }
    read(size);
    const bool is_full = held_.count() >= size;
    if (!is_full && (given().drop_remainder || held_.count() == 0)) return false;
    fields = join_batches(held_.take(std::min(size, held_.count())));
    if (is_full) advance();
    return true;
  }

  void describe_position(Position& at) override {
    at(is_at_end_, position_);
    at.check(position_ < sizes_.size(), "a position in the list of sizes");
    std::vector<Fields> pieces = held_.pieces();
    at.list(pieces);
    if (at.is_restored()) {
      held_ = HeldRows();
      for (Fields& piece : pieces) add_rows(std::move(piece), held_);
    }
    InputStage::describe_position(at);
  }

 private:
  void advance() { position_ = (position_ + 1) % sizes_.size(); }

  void read(std::int64_t rows) {
    while (held_.count() < rows && !is_at_end_) {
      check_cancelled();
      Fields batch;
      is_at_end_ = !input().next(batch);
      if (!is_at_end_) add_rows(std::move(batch), held_);
    }
  }

  const std::vector<std::int64_t>& sizes_ = given().sizes;
  HeldRows held_;
  std::uint64_t position_ = 0;
  bool is_at_end_ = false;  // the input has ended; only held rows are left
};

class RebatchNode final : public StageNode<RebatchNode, RebatchAttributes, RebatchStage> {
 public:
  RebatchNode(std::vector<NodePtr> inputs, RebatchAttributes given)
      : StageNode(std::move(inputs), std::move(given)) {
    const std::vector<std::int64_t>& sizes = this->given().sizes;
    for (const std::int64_t size : sizes) {
      COHORT_CHECK(size >= 0, ErrorCode::invalid_argument,
                   "[data.rebatch] expected sizes >= 0, got ", size);
    }
    COHORT_CHECK(std::ranges::any_of(sizes, [](std::int64_t s) { return s > 0; }),
                 ErrorCode::invalid_argument, "[data.rebatch] expected at least one size > 0, got ",
                 sizes.size(), " sizes without one");
  }

  std::int64_t cardinality() const override { return kUnknownCardinality; }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    check_batches(spec, RebatchAttributes::kOp);
    const std::vector<std::int64_t>& sizes = given().sizes;
    const std::int64_t size = sizes[0];
    const bool is_one_size =
        std::ranges::count(sizes, size) == static_cast<std::ptrdiff_t>(sizes.size());
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes) continue;
      std::int64_t& rows = field.sizes->front();
      rows = is_one_size && (given().drop_remainder || (rows >= 0 && rows % size == 0)) ? size : -1;
    }
    return spec;
  }
};

}  // namespace

NodePtr make_rebatch(SerializedOp op) { return RebatchNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::rebatch(std::vector<std::int64_t> sizes, RebatchOptions options) const {
  const Dataset regrouped =
      data::RebatchNode::over(node_, {std::move(sizes), options.drop_remainder});
  if (const ElementSpec* spec = node_->known_spec())
    data::check_batches(*spec, data::RebatchAttributes::kOp);
  return regrouped;
}

}  // namespace cohort
