// SPDX-License-Identifier: Apache-2.0
// ignore_errors: skips elements that are errors.
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kIgnoreErrorsName = "ignore_errors";

class IgnoreErrorsStage final : public Stage {
 public:
  IgnoreErrorsStage(const Node& node, std::unique_ptr<Stage> input)
      : Stage(node), input_(std::move(input)) {}

  bool next(Fields& fields) override {
    while (true) {
      check_cancelled();
      try {
        return input_->next(fields);
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

  void save(ByteWriter& writer) const override { input_->save(writer); }
  void restore(ByteReader& reader) override { input_->restore(reader); }

 private:
  std::unique_ptr<Stage> input_;
};

class IgnoreErrorsNode final : public Node {
 public:
  explicit IgnoreErrorsNode(NodePtr input) : Node(kIgnoreErrorsName, {std::move(input)}) {}

  std::int64_t cardinality() const override {
    return input().cardinality() == kInfiniteCardinality ? kInfiniteCardinality
                                                         : kUnknownCardinality;
  }

  Attributes attributes() const override { return {}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<IgnoreErrorsNode>(std::move(inputs[0]));
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (from->rows() != nullptr && !from->rows()->store().can_fail()) return from;
    return std::make_unique<IgnoreErrorsStage>(*this, std::move(from));
  }
};

}  // namespace

NodePtr make_ignore_errors(std::vector<NodePtr> inputs, AttributeReader&) {
  return std::make_shared<IgnoreErrorsNode>(std::move(inputs[0]));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::ignore_errors() const {
  return Dataset(std::make_shared<data::IgnoreErrorsNode>(node_));
}

}  // namespace cohort
