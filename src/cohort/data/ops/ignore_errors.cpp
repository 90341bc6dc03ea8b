// SPDX-License-Identifier: Apache-2.0
// ignore_errors: skips elements that are errors.
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct IgnoreErrorsAttributes {
  static constexpr std::string_view kOp = "ignore_errors";
  static void describe(auto&, auto&) {}
};

class IgnoreErrorsStage final : public InputStage<IgnoreErrorsAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    while (true) {
      check_cancelled();
      try {
        return input().next(fields);
      } catch (...) {
        const Error error = current_error();
        const ErrorCode code = error.code();
        // These are not bad data: a cancellation, an internal error, and an element for which a
        // serialized function has no program.
        if (code == ErrorCode::cancelled || code == ErrorCode::internal ||
            error.cause() == ErrorCause::closure_input) {
          throw;
        }
      }
    }
  }
};

class IgnoreErrorsNode final : public OpNode<IgnoreErrorsNode, IgnoreErrorsAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    return input().cardinality() == kInfiniteCardinality ? kInfiniteCardinality
                                                         : kUnknownCardinality;
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (from->rows() != nullptr && !from->rows()->store().can_fail()) return from;
    return run<IgnoreErrorsStage>(std::move(from));
  }
};

}  // namespace

NodePtr make_ignore_errors(SerializedOp op) { return IgnoreErrorsNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::ignore_errors() const { return data::IgnoreErrorsNode::over(node_, {}); }

}  // namespace cohort
