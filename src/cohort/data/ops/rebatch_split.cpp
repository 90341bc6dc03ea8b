// SPDX-License-Identifier: Apache-2.0
// rebatch_split: each incoming batch in a number of parts (spec 3.4, V1).
#include "cohort/data/batch_parts.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct RebatchSplitAttributes {
  static constexpr std::string_view kOp = "rebatch_split";
  std::int64_t parts = 0;
  static void describe(auto& visit, auto& all) { visit("parts", all.parts, kPositive); }
};

class RebatchSplitStage final : public InputStage<RebatchSplitAttributes> {
 public:
  using InputStage::InputStage;

  // The parts share the memory of their batch.
  bool next(Fields& fields) override {
    if (taken_ == parts_ && !read()) return false;
    fields.clear();
    for (const at::Tensor& field : batch_) {
      const RowRange part = part_of_batch(field.size(0), taken_, parts_);
      fields.push_back(narrow_rows(field, part.begin, part.end));
    }
    if (++taken_ == parts_) batch_.clear();
    return true;
  }

  void describe_position(Position& at) override {
    at(taken_);
    at.check(taken_ >= 0 && taken_ <= parts_, "the number of a part");
    if (at.is_restored()) batch_.clear();
    if (taken_ < parts_) at(batch_);
    for (const at::Tensor& field : batch_) at.check(field.dim() > 0, "a batch");
    InputStage::describe_position(at);
  }

 private:
  bool read() {
    Fields batch;
    if (!input().next(batch)) return false;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      COHORT_CHECK(batch[i].dim() > 0, ErrorCode::invalid_argument,
                   "[data.rebatch_split] expected batches, got the scalar ",
                   TensorSpec::of(batch[i]).to_string(), " in field ", i, "; batch() first");
    }
    warn_of_other_rows(batch);
    batch_ = std::move(batch);
    taken_ = 0;
    return true;
  }

  const std::int64_t parts_ = given().parts;
  Fields batch_;
  std::int64_t taken_ = parts_;  // parts of batch_; all: there is none
};

class RebatchSplitNode final
    : public StageNode<RebatchSplitNode, RebatchSplitAttributes, RebatchSplitStage> {
 public:
  using StageNode::StageNode;

  std::int64_t cardinality() const override { return kUnknownCardinality; }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes || field.sizes->empty()) continue;
      std::int64_t& rows = field.sizes->front();
      rows = rows >= 0 && rows % given().parts == 0 ? rows / given().parts : -1;
    }
    return spec;
  }
};

}  // namespace

NodePtr make_rebatch_split(SerializedOp op) { return RebatchSplitNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::rebatch_split(std::int64_t parts) const {
  const Dataset split = data::RebatchSplitNode::over(node_, {parts});
  if (const ElementSpec* spec = node_->known_spec())
    data::check_batches(*spec, data::RebatchSplitAttributes::kOp);
  return split;
}

}  // namespace cohort
