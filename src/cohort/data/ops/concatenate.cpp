// SPDX-License-Identifier: Apache-2.0
// concatenate: the elements of one dataset, then those of another.
#include <array>
#include <limits>

#include "cohort/data/graph/op_node.h"
#include "cohort/data/held_rows.h"

namespace cohort::data {
namespace {

struct ConcatenateAttributes {
  static constexpr std::string_view kOp = "concatenate";
  static void describe(auto&, auto&) {}
};

class ConcatenateStage final : public Stage {
 public:
  ConcatenateStage(const Node& node, std::unique_ptr<Stage> first, std::unique_ptr<Stage> second)
      : Stage(node),
        inputs_{std::move(first), std::move(second)},
        has_rows_(inputs_[0]->rows() != nullptr && inputs_[1]->rows() != nullptr) {}

  bool next(Fields& fields) override {
    for (; current_ < inputs_.size(); ++current_) {
      if (inputs_[current_]->next(fields)) return true;
    }
    return false;
  }

  // Draws whole batches from row stages.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (!has_rows_ || !are_alike()) return Stage::next_batch(count, batch);
    std::vector<Fields> parts;
    std::int64_t got = 0;
    for (; current_ < inputs_.size(); ++current_) {
      Fields more;
      const std::int64_t added = inputs_[current_]->next_batch(count - got, more);
      if (added > 0) parts.push_back(std::move(more));
      got += added;
      if (got == count) break;
    }
    if (got > 0) batch = join_batches(std::move(parts));
    return got;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (current_ < inputs_.size()) {
      skipped += inputs_[current_]->skip(count - skipped);
      if (skipped == count) break;
      ++current_;
    }
    return skipped;
  }

  void describe_position(Position& at) override {
    at(current_);
    at.check(current_ <= inputs_.size(), "the number of an input");
    for (const auto& input : inputs_) at(*input);
  }

 private:
  bool are_alike() const {
    return node().inputs()[0]->spec().fields == node().inputs()[1]->spec().fields;
  }

  std::array<std::unique_ptr<Stage>, 2> inputs_;
  bool has_rows_;
  std::size_t current_ = 0;
};

class ConcatenateNode final : public OpNode<ConcatenateNode, ConcatenateAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    const std::int64_t a = inputs()[0]->cardinality();
    const std::int64_t b = inputs()[1]->cardinality();
    if (a == kInfiniteCardinality || b == kInfiniteCardinality) return kInfiniteCardinality;
    if (a < 0 || b < 0) return kUnknownCardinality;
    std::int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
  }

  Nest structure() const override { return input().structure(); }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<ConcatenateStage>(*this, inputs()[0]->start(context.input(0)),
                                              inputs()[1]->start(context.input(1)));
  }

 protected:
  ElementSpec make_spec() const override {
    return common(inputs()[0]->spec(), inputs()[1]->spec());
  }

 public:
  static ElementSpec common(const ElementSpec& a, const ElementSpec& b) {
    try {
      return a.common_with(b);
    } catch (const Error& error) {
      throw Error(error).during("making concatenate(other) of " + a.to_string() + " and " +
                                b.to_string());
    }
  }
};

}  // namespace

NodePtr make_concatenate(SerializedOp op) { return ConcatenateNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::concatenate(const Dataset& other) const {
  const ElementSpec* mine = node_->known_spec();
  const ElementSpec* others = other.node_->known_spec();
  if (mine != nullptr && others != nullptr) data::ConcatenateNode::common(*mine, *others);
  return data::ConcatenateNode::over({node_, other.node_}, {});
}

}  // namespace cohort
