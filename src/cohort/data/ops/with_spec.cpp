// SPDX-License-Identifier: Apache-2.0
// with_spec: the elements of the input with another spec. Only rewrites use it, so that a graph
// that they change keeps the spec that the user has seen (spec 3.6). The elements may not fit that
// spec: for example, if a rebatch that drops short batches was replaced by a rebatch_split.
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct WithSpecAttributes {
  static constexpr std::string_view kOp = "with_spec";
  ElementSpec spec;
  static void describe(auto& visit, auto& all) { visit("spec", all.spec); }
};

class WithSpecStage final : public InputStage<WithSpecAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override { return input().next(fields); }
  Stage* batch_source() override { return &input(); }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    return input().next_batch(count, batch);
  }
  std::int64_t skip(std::int64_t count) override { return input().skip(count); }
  RowStream* rows() override { return input().rows(); }
};

class WithSpecNode final : public StageNode<WithSpecNode, WithSpecAttributes, WithSpecStage> {
 public:
  using StageNode::StageNode;

 protected:
  ElementSpec make_spec() const override { return given().spec; }
};

}  // namespace

NodePtr make_with_spec(SerializedOp op) { return WithSpecNode::read(op); }

}  // namespace cohort::data
