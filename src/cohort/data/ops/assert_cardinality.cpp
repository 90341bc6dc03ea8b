// SPDX-License-Identifier: Apache-2.0
// assert_cardinality: the same elements, and an error if their number is not the asserted one.
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kAssertCardinalityName = "assert_cardinality";

class AssertStage final : public Stage {
 public:
  AssertStage(const Node& node, std::unique_ptr<Stage> input, std::int64_t expected)
      : Stage(node), input_(std::move(input)), expected_(expected) {}

  bool next(Fields& fields) override {
    if (is_done_) return false;
    const bool has_next = input_->next(fields);  // an error is not counted
    if (has_next == (count_ != expected_)) {
      if (has_next) ++count_;
      return has_next;
    }
    is_done_ = true;  // reported once
    internal::throw_error(ErrorCode::failed_precondition, "[data.assert_cardinality] expected ",
                          expected_ < 0 ? "infinitely many" : std::to_string(expected_),
                          " elements, got ", has_next ? "more" : std::to_string(count_));
  }

  void save(ByteWriter& writer) const override {
    writer.u8(is_done_ ? 1 : 0);
    writer.varint(static_cast<std::uint64_t>(count_));
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    is_done_ = reader.u8() != 0;
    count_ = static_cast<std::int64_t>(reader.varint());
    if (count_ < 0 || (expected_ >= 0 && count_ > expected_)) reader.fail("a number of elements");
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  std::int64_t expected_;
  std::int64_t count_ = 0;
  bool is_done_ = false;
};

class AssertNode final : public Node {
 public:
  AssertNode(NodePtr input, std::int64_t cardinality)
      : Node(kAssertCardinalityName, {std::move(input)}), cardinality_(cardinality) {
    COHORT_CHECK(cardinality >= 0 || cardinality == kInfiniteCardinality,
                 ErrorCode::invalid_argument,
                 "[data.assert_cardinality] expected a number of elements or "
                 "kInfiniteCardinality, got ",
                 cardinality);
  }

  std::int64_t cardinality() const override { return cardinality_; }
  Attributes attributes() const override { return {{"cardinality", cardinality_}}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<AssertNode>(std::move(inputs[0]), cardinality_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::unique_ptr<Stage> from = input().start(context.input(0));
    // A row stage yields exactly cardinality() rows.
    if (from->rows() != nullptr && input().cardinality() == cardinality_) return from;
    return std::make_unique<AssertStage>(*this, std::move(from), cardinality_);
  }

 private:
  std::int64_t cardinality_;
};

}  // namespace

NodePtr make_assertion(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<AssertNode>(std::move(inputs[0]), attributes.integer("cardinality"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::assert_cardinality(std::int64_t cardinality) const {
  return Dataset(std::make_shared<data::AssertNode>(node_, cardinality));
}

}  // namespace cohort
