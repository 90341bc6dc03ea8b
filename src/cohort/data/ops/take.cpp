// SPDX-License-Identifier: Apache-2.0
// take: the first `count` elements.
#include <algorithm>

#include "cohort/data/graph/op_node.h"
#include "cohort/data/positions/left_count.h"

namespace cohort::data {
namespace {

struct TakeAttributes {
  static constexpr std::string_view kOp = "take";
  std::int64_t count = 0;  // < 0: all
  static void describe(auto& visit, auto& all) { visit("count", all.count); }
};

bool fills_cache_file(const Node& node) {
  if (node.op() == "cache" && node.attributes().find("file")->second.text() != "") return true;
  return std::ranges::any_of(node.inputs(),
                             [](const NodePtr& input) { return fills_cache_file(*input); });
}

class RowTake final : public LeftCount<RowInputStage<TakeAttributes>> {
 public:
  using LeftCount::LeftCount;

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    const std::size_t wanted = std::min(rows.size(), static_cast<std::size_t>(left_));
    return took(wanted, input_rows().next_rows(rows.first(wanted)));
  }

  std::size_t skip_rows(std::size_t count) override {
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(left_));
    return took(wanted, input_rows().skip_rows(wanted));
  }

 private:
  std::size_t took(std::size_t wanted, std::size_t got) {
    left_ = got < wanted ? 0 : left_ - static_cast<std::int64_t>(got);
    return got;
  }
};

class ElementTake final : public Stage {
 public:
  ElementTake(const Node& node, StageContext context, std::unique_ptr<Stage> input,
              std::int64_t count)
      : Stage(node),
        context_(std::move(context)),
        fills_cache_(fills_cache_file(node.input())),
        input_(std::move(input)),
        left_(count) {}

  bool next(Fields& fields) override {
    if (left_ == 0) return end();
    if (!input_->next(fields)) return end();
    --left_;  // not if next() throws: an error is not counted
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t wanted = std::min(count, left_);
    if (wanted == 0) return 0;
    const std::int64_t got = input_->skip(wanted);
    left_ -= got;
    if (got < wanted) end();
    return got;
  }

  void describe_position(Position& at) override {
    describe_left(at, left_, node().op());
    if (at.is_restored() && left_ == 0) end();
    if (left_ == 0) return;
    if (!input_) input_ = node().input().start(context_);
    at(*input_);
  }

 private:
  // Destroys an input that fills a cache file, so that another iterator may write it. Keeps other
  // inputs, since destroying them would wait for their threads.
  bool end() {
    left_ = 0;
    if (fills_cache_) input_.reset();
    return false;
  }

  StageContext context_;  // of the input
  bool fills_cache_;
  std::unique_ptr<Stage> input_;
  std::int64_t left_;
};

class TakeNode final : public OpNode<TakeNode, TakeAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (given().count < 0 || n == kUnknownCardinality) return n;
    return n == kInfiniteCardinality ? given().count : std::min(n, given().count);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const StageContext of_input = context.input(0);
    std::unique_ptr<Stage> from = input().start(of_input);
    if (given().count < 0) return from;
    if (from->rows() != nullptr) return run<RowTake>(std::move(from));
    return std::make_unique<ElementTake>(*this, of_input, std::move(from), given().count);
  }
};

}  // namespace

NodePtr make_take(SerializedOp op) { return TakeNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::take(std::int64_t count) const { return data::TakeNode::over(node_, {count}); }

}  // namespace cohort
