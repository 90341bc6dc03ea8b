// SPDX-License-Identifier: Apache-2.0
// skip: the elements after the first `count`.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/positions/left_count.h"

namespace cohort::data {
namespace {

struct SkipAttributes {
  static constexpr std::string_view kOp = "skip";
  std::int64_t count = 0;  // < 0: all
  static void describe(auto& visit, auto& all) { visit("count", all.count); }
};

class RowSkip final : public LeftCount<RowInputStage<SkipAttributes>> {
 public:
  using LeftCount::LeftCount;

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    skip();
    return input_rows().next_rows(rows);
  }

  std::size_t skip_rows(std::size_t count) override {
    skip();
    return input_rows().skip_rows(count);
  }

 private:
  void skip() {
    if (left_ > 0) input_rows().skip_rows(static_cast<std::size_t>(left_));
    left_ = 0;
  }
};

class ElementSkip final : public LeftCount<InputStage<SkipAttributes>> {
 public:
  using LeftCount::LeftCount;

  // Throws an error in a skipped element, so that no error is lost silently.
  bool next(Fields& fields) override {
    while (left_ > 0) {
      check_cancelled();
      --left_;
      if (!input().next(fields)) left_ = 0;
    }
    return input().next(fields);
  }

  Stage* batch_source() override { return &input(); }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    return left_ > 0 ? Stage::next_batch(count, batch) : input().next_batch(count, batch);
  }

  std::int64_t skip(std::int64_t count) override {
    if (left_ > 0) input().skip(std::exchange(left_, 0));
    return input().skip(count);
  }
};

// The stage of skip(-1), which does not read its input, since that may be infinite.
class NoElements final : public Stage {
 public:
  using Stage::Stage;
  bool next(Fields&) override { return false; }
  void describe_position(Position&) override {}
};

class SkipNode final : public OpNode<SkipNode, SkipAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (n < 0) return n;
    return given().count < 0 ? 0 : n - std::min(n, given().count);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    if (given().count < 0) return std::make_unique<NoElements>(*this);
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (given().count == 0) return from;
    if (from->rows() != nullptr) return run<RowSkip>(std::move(from));
    return run<ElementSkip>(std::move(from));
  }
};

// Whether another iteration, or another process, may skip other elements, because a shuffle before
// the skip orders them in another way. Neither after a cache nor in a repeated stream is it a
// division of the same elements.
bool divides_at_random(const Node& input) {
  const Node* node = &input;
  while (node->op() != "shuffle") {
    if (node->inputs().size() != 1 || node->op() == "cache" || node->op() == "repeat") return false;
    node = &node->input();
  }
  const Attributes shuffle = node->attributes();
  return shuffle.at("reshuffle_each_iteration").boolean() || shuffle.at("seed").is_null();
}

void warn_of_division(const std::string& pipeline) {
  constexpr std::size_t kWarnedMax = 1024;
  static Mutex mutex;
  static std::set<std::string> warned;
  {
    const Lock lock(mutex);
    if (warned.size() == kWarnedMax || !warned.insert(pipeline).second) return;
  }
  log_warn(
      "[data.skip] expected an order that stays before skip() in the pipeline '", pipeline,
      "', got a shuffle() that gives each pass, or each process, another one: where take() and "
      "skip() divide a dataset, elements for validation get into training; write shuffle(…, "
      "{.seed = 1, .reshuffle_each_iteration = false}) before them, and another shuffle() after "
      "skip()");
}

}  // namespace

NodePtr make_skip(SerializedOp op) { return SkipNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::skip(std::int64_t count) const {
  const Dataset rest = data::SkipNode::over(node_, {count});
  if (count > 0 && data::divides_at_random(*node_)) data::warn_of_division(rest.node()->pipeline());
  return rest;
}

}  // namespace cohort
