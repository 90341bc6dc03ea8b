// SPDX-License-Identifier: Apache-2.0
// repeat: the input `count` times, or forever.
#include <optional>

#include "cohort/data/batching/batch_builder.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct RepeatAttributes {
  static constexpr std::string_view kOp = "repeat";
  std::int64_t count = 0;  // < 0: forever
  static void describe(auto& visit, auto& all) { visit("count", all.count); }
};

// The current epoch. Used only from a repeat's stage.
class Epochs {
 public:
  Epochs(const Node& input, StageContext context, std::int64_t count)
      : input_(input), context_(std::move(context)), count_(count) {
    if (count != 0) start();
  }

  // nullptr after the last epoch.
  Stage* current() const { return stage_.get(); }
  void note_yield() { has_yielded_ = true; }
  // Call at the end of an epoch. An epoch that yielded nothing is the last, since repeating an
  // empty input forever would never return.
  void advance() {
    ++epoch_;
    stage_.reset();
    if (has_yielded_ && (count_ < 0 || epoch_ < count_)) start();
  }

  void describe_position(Position& at) {
    at(epoch_);
    at.check(epoch_ >= 0, "an epoch");
    bool is_running = stage_ != nullptr;
    bool has_yielded = has_yielded_;
    at(is_running, has_yielded);
    if (at.is_restored()) {
      stage_.reset();
      if (is_running) start();
    }
    if (stage_) at(*stage_);
    has_yielded_ = has_yielded;
  }

 private:
  void start() {
    stage_ = input_.start(context_.input_in_epoch(0, static_cast<std::uint64_t>(epoch_)));
    has_yielded_ = false;
  }

  const Node& input_;
  StageContext context_;
  std::int64_t count_;
  std::int64_t epoch_ = 0;
  bool has_yielded_ = false;
  std::unique_ptr<Stage> stage_;
};

class RowRepeat final : public RowStage {
 public:
  RowRepeat(const Node& node, Epochs epochs)
      : RowStage(node), epochs_(std::move(epochs)), store_(&epochs_.current()->rows()->store()) {}

  const RowStore& store() const override { return *store_; }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    std::size_t filled = 0;
    while (filled < rows.size() && epochs_.current() != nullptr) {
      check_cancelled();
      const std::size_t got = epochs_.current()->rows()->next_rows(rows.subspan(filled));
      if (got > 0) epochs_.note_yield();
      filled += got;
      if (filled < rows.size()) epochs_.advance();
    }
    return filled;
  }

  void describe_position(Position& at) override { at(epochs_); }

 private:
  Epochs epochs_;
  const RowStore* store_;  // the node's; all stages of a node share it
};

class ElementRepeat final : public Stage {
 public:
  ElementRepeat(const Node& node, Epochs epochs) : Stage(node), epochs_(std::move(epochs)) {}

  bool next(Fields& fields) override {
    while (epochs_.current() != nullptr) {
      check_cancelled();
      try {
        if (epochs_.current()->next(fields)) {
          epochs_.note_yield();
          return true;
        }
      } catch (...) {
        epochs_.note_yield();
        throw;
      }
      epochs_.advance();
    }
    return false;
  }

  // A batch within one epoch is not copied.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    std::vector<Fields> parts;
    std::optional<Error> uneven;
    std::int64_t filled = 0;
    while (filled < count && epochs_.current() != nullptr) {
      check_cancelled();
      Fields part;
      std::int64_t got = 0;
      try {
        if (stops_at_errors()) epochs_.current()->stop_at_errors();
        got = epochs_.current()->next_batch(count - filled, part);
      } catch (const UnevenBatch& error) {
        uneven = error;
        got = error.size();
      } catch (...) {
        epochs_.note_yield();
        throw;
      }
      if (got > 0) {
        epochs_.note_yield();
        parts.push_back(std::move(part));
      }
      filled += got;
      if (filled < count) epochs_.advance();
    }
    if (uneven) throw UnevenBatch(*uneven, filled);
    if (filled > 0) batch = even([&] { return concatenated(std::move(parts), node()); }, filled);
    return filled;
  }

  void describe_position(Position& at) override { at(epochs_); }

 private:
  Epochs epochs_;
};

class RepeatNode final : public OpNode<RepeatNode, RepeatAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    if (n == 0 || given().count == 0) return 0;
    if (given().count < 0) return kInfiniteCardinality;
    if (n < 0) return n;
    return saturated_product(n, given().count);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    Epochs epochs(input(), context, given().count);
    if (epochs.current() != nullptr && epochs.current()->rows() != nullptr) {
      return std::make_unique<RowRepeat>(*this, std::move(epochs));
    }
    return std::make_unique<ElementRepeat>(*this, std::move(epochs));
  }
};

}  // namespace

NodePtr make_repeat(SerializedOp op) { return RepeatNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::repeat(std::int64_t count) const { return data::RepeatNode::over(node_, {count}); }

}  // namespace cohort
