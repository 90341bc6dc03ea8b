// SPDX-License-Identifier: Apache-2.0
// take: the first `count` elements.
#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/positions/left_count.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kTakeName = "take";

bool fills_cache_file(const Node& node) {
  if (node.op() == "cache" && node.attributes().find("file")->second.text() != "") return true;
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return fills_cache_file(*input); });
}

class RowTake final : public RowStage {
 public:
  RowTake(const Node& node, std::unique_ptr<Stage> input, std::int64_t count)
      : RowStage(node), input_(std::move(input)), left_(count) {}

  const RowStore& store() const override { return input_->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    const std::size_t wanted = std::min(rows.size(), static_cast<std::size_t>(left_));
    return took(wanted, input_->rows()->next_rows(rows.first(wanted)));
  }

  std::size_t skip_rows(std::size_t count) override {
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(left_));
    return took(wanted, input_->rows()->skip_rows(wanted));
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(left_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    left_ = read_left(reader, kTakeName);
    input_->restore(reader);
  }

 private:
  std::size_t took(std::size_t wanted, std::size_t got) {
    left_ = got < wanted ? 0 : left_ - static_cast<std::int64_t>(got);
    return got;
  }

  std::unique_ptr<Stage> input_;
  std::int64_t left_;
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

  void save(ByteWriter& writer) const override {
    writer.zigzag(left_);
    if (left_ > 0) input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    left_ = read_left(reader, kTakeName);
    if (left_ == 0) {
      end();
      return;
    }
    if (!input_) input_ = node().input().start(context_);
    input_->restore(reader);
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

class TakeNode final : public Node {
 public:
  TakeNode(NodePtr input, std::int64_t count)
      : Node(kTakeName, {std::move(input)}), count_(count) {}

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (count_ < 0 || n == kUnknownCardinality) return n;
    return n == kInfiniteCardinality ? count_ : std::min(n, count_);
  }

  Attributes attributes() const override { return {{"count", count_}}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<TakeNode>(std::move(inputs[0]), count_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const StageContext of_input = context.input(0);
    std::unique_ptr<Stage> from = input().start(of_input);
    if (count_ < 0) return from;
    if (from->rows() != nullptr) return std::make_unique<RowTake>(*this, std::move(from), count_);
    return std::make_unique<ElementTake>(*this, of_input, std::move(from), count_);
  }

 private:
  std::int64_t count_;
};

}  // namespace

NodePtr make_take(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<TakeNode>(std::move(inputs[0]), attributes.integer("count"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::take(std::int64_t count) const {
  return Dataset(std::make_shared<data::TakeNode>(node_, count));
}

}  // namespace cohort
