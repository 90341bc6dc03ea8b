// SPDX-License-Identifier: Apache-2.0
// skip: the elements after the first `count`.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/positions/left_count.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kSkipName = "skip";

class RowSkip final : public RowStage {
 public:
  RowSkip(const Node& node, std::unique_ptr<Stage> input, std::int64_t count)
      : RowStage(node), input_(std::move(input)), left_(count) {}

  const RowStore& store() const override { return input_->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    skip();
    return input_->rows()->next_rows(rows);
  }

  std::size_t skip_rows(std::size_t count) override {
    skip();
    return input_->rows()->skip_rows(count);
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(left_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    left_ = read_left(reader, kSkipName);
    input_->restore(reader);
  }

 private:
  void skip() {
    if (left_ > 0) input_->rows()->skip_rows(static_cast<std::size_t>(left_));
    left_ = 0;
  }

  std::unique_ptr<Stage> input_;
  std::int64_t left_;
};

class ElementSkip final : public Stage {
 public:
  ElementSkip(const Node& node, std::unique_ptr<Stage> input, std::int64_t count)
      : Stage(node), input_(std::move(input)), left_(count) {}

  // Throws an error in a skipped element, so that no error is lost silently.
  bool next(Fields& fields) override {
    while (left_ > 0) {
      check_cancelled();
      --left_;
      if (!input_->next(fields)) left_ = 0;
    }
    return input_->next(fields);
  }

  void stop_at_errors() override {
    Stage::stop_at_errors();
    input_->stop_at_errors();
  }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    return left_ > 0 ? Stage::next_batch(count, batch) : input_->next_batch(count, batch);
  }

  std::int64_t skip(std::int64_t count) override {
    if (left_ > 0) input_->skip(std::exchange(left_, 0));
    return input_->skip(count);
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(left_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    left_ = read_left(reader, kSkipName);
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  std::int64_t left_;
};

// The stage of skip(-1), which does not read its input, since that may be infinite.
class NoElements final : public Stage {
 public:
  using Stage::Stage;
  bool next(Fields&) override { return false; }
  void save(ByteWriter&) const override {}
  void restore(ByteReader&) override {}
};

class SkipNode final : public Node {
 public:
  SkipNode(NodePtr input, std::int64_t count)
      : Node(kSkipName, {std::move(input)}), count_(count) {}

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (n < 0) return n;
    return count_ < 0 ? 0 : n - std::min(n, count_);
  }

  Attributes attributes() const override { return {{"count", count_}}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<SkipNode>(std::move(inputs[0]), count_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    if (count_ < 0) return std::make_unique<NoElements>(*this);
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (count_ == 0) return from;
    if (from->rows() != nullptr) return std::make_unique<RowSkip>(*this, std::move(from), count_);
    return std::make_unique<ElementSkip>(*this, std::move(from), count_);
  }

 private:
  std::int64_t count_;
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

NodePtr make_skip(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<SkipNode>(std::move(inputs[0]), attributes.integer("count"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::skip(std::int64_t count) const {
  const auto node = std::make_shared<data::SkipNode>(node_, count);
  if (count > 0 && data::divides_at_random(*node_)) data::warn_of_division(node->pipeline());
  return Dataset(node);
}

}  // namespace cohort
