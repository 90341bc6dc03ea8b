// SPDX-License-Identifier: Apache-2.0
// assert_cardinality: the same elements, and an error if their number is not the asserted one.
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct AssertAttributes {
  static constexpr std::string_view kOp = "assert_cardinality";
  std::int64_t cardinality = 0;
  static void describe(auto& visit, auto& all) { visit("cardinality", all.cardinality); }
};

class AssertStage final : public InputStage<AssertAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    if (is_done_) return false;
    const bool has_next = input().next(fields);  // an error is not counted
    if (has_next == (count_ != expected_)) {
      if (has_next) ++count_;
      return has_next;
    }
    is_done_ = true;  // reported once
    internal::throw_error(ErrorCode::failed_precondition, "[data.assert_cardinality] expected ",
                          expected_ < 0 ? "infinitely many" : std::to_string(expected_),
                          " elements, got ", has_next ? "more" : std::to_string(count_));
  }

  void describe_position(Position& at) override {
    auto count = static_cast<std::uint64_t>(count_);
    at(is_done_, count);
    count_ = static_cast<std::int64_t>(count);
    at.check(count_ >= 0 && (expected_ < 0 || count_ <= expected_), "a number of elements");
    InputStage::describe_position(at);
  }

 private:
  const std::int64_t expected_ = given().cardinality;
  std::int64_t count_ = 0;
  bool is_done_ = false;
};

class AssertNode final : public OpNode<AssertNode, AssertAttributes> {
 public:
  AssertNode(std::vector<NodePtr> inputs, AssertAttributes given)
      : OpNode(std::move(inputs), given) {
    COHORT_CHECK(given.cardinality >= 0 || given.cardinality == kInfiniteCardinality,
                 ErrorCode::invalid_argument,
                 "[data.assert_cardinality] expected a number of elements or "
                 "kInfiniteCardinality, got ",
                 given.cardinality);
  }

  std::int64_t cardinality() const override { return given().cardinality; }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::unique_ptr<Stage> from = input().start(context.input(0));
    // A row stage yields exactly cardinality() rows.
    if (from->rows() != nullptr && input().cardinality() == given().cardinality) return from;
    return run<AssertStage>(std::move(from));
  }
};

}  // namespace

NodePtr make_assertion(SerializedOp op) { return AssertNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::assert_cardinality(std::int64_t cardinality) const {
  return data::AssertNode::over(node_, {cardinality});
}

}  // namespace cohort
