// SPDX-License-Identifier: Apache-2.0
// shuffle: keeps a buffer of buffer_size elements and yields a random one of them at a time.
#include <algorithm>
#include <atomic>
#include <limits>

#include "cohort/core/random.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/rows/row_buffer.h"

namespace cohort::data {
namespace {

constexpr std::size_t kRowsAtOnce = 4096;

struct ShuffleAttributes {
  static constexpr std::string_view kOp = "shuffle";
  std::int64_t buffer_size = 0;
  ShuffleOptions options = {};
  static void describe(auto& visit, auto& all) {
    visit("buffer_size", all.buffer_size);
    visit("seed", all.options.seed);
    visit("reshuffle_each_iteration", all.options.reshuffle_each_iteration);
  }
};

// A counter-based generator of uniform random numbers. A value type.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}

  std::size_t below(std::size_t bound) {
    __extension__ using Product = unsigned __int128;
    return static_cast<std::size_t>((Product{mix_seed(seed_, count_++)} * bound) >> 64);
  }

  void describe_position(Position& at) { at(Fixed{seed_}, count_); }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

class ShuffleNode final : public OpNode<ShuffleNode, ShuffleAttributes> {
 public:
  ShuffleNode(std::vector<NodePtr> inputs, const ShuffleAttributes& shuffle)
      : OpNode(std::move(inputs), shuffle) {
    const std::int64_t buffer_size = shuffle.buffer_size;
    COHORT_CHECK(
        buffer_size > 0 || buffer_size == kUnknownCardinality, ErrorCode::invalid_argument,
        "[data.shuffle] expected buffer_size > 0, or kUnknownCardinality for the whole input, got ",
        buffer_size);
    COHORT_CHECK(
        buffer_size > 0 || input().cardinality() != kInfiniteCardinality,
        ErrorCode::invalid_argument,
        "[data.shuffle] expected a finite input to shuffle as a whole, got an infinite one; "
        "shuffle() before repeat()");
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  std::size_t buffer_size() const {
    return given().buffer_size > 0 ? static_cast<std::size_t>(given().buffer_size)
                                   : std::numeric_limits<std::size_t>::max();
  }

  // The number of this op's iteration that the pipeline runs. Epochs of a repeat are counted
  // separately.
  std::uint64_t iteration(const StageContext& context) const {
    return context.iterations().of(this, context.path(), [this] { return iterations_++; });
  }

  // Later iterations continue after this one, also in a process that has not run those before it.
  void set_iteration(const StageContext& context, std::uint64_t number) const {
    context.iterations().set(this, context.path(), number);
    std::uint64_t next = iterations_;
    while (next <= number && !iterations_.compare_exchange_weak(next, number + 1)) {
    }
  }

  std::uint64_t order_seed(const StageContext& context) const {
    std::uint64_t seed = process_seed_;
    if (given().options.seed) {
      seed = static_cast<std::uint64_t>(*given().options.seed);
    } else if (context.options().seed != 0) {
      seed = mix_seed(context.options().seed, context.path());
    }
    if (!given().options.reshuffle_each_iteration) return seed;
    return mix_seed(mix_seed(seed, iteration(context)), context.epoch());
  }

 private:
  std::uint64_t process_seed_ = draw_number();
  // The number of pipelines started so far, so that each shuffles in another order.
  mutable std::atomic<std::uint64_t> iterations_ = 0;
};

// The common state of both kinds of stages. Used only from their thread.
class ShuffleState {
 public:
  ShuffleState(const ShuffleNode& node, StageContext context, std::unique_ptr<Stage> from)
      : input(std::move(from)),
        draws(node.order_seed(context)),
        node_(node),
        context_(std::move(context)) {}

  void describe_position(Position& at) {
    std::uint64_t iteration = at.is_restored() ? 0 : node_.iteration(context_);
    at(draws, Fixed{iteration});
    if (at.is_restored()) node_.set_iteration(context_, iteration);
    at(is_at_end, *input);
  }

  std::unique_ptr<Stage> input;
  Draws draws;
  bool is_at_end = false;

 private:
  const ShuffleNode& node_;
  StageContext context_;
};

class RowShuffle final : public RowStage {
 public:
  RowShuffle(const ShuffleNode& node, const StageContext& context, std::unique_ptr<Stage> from)
      : RowStage(node), state_(node, context, std::move(from)), capacity_(node.buffer_size()) {}

  const RowStore& store() const override { return state_.input->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    fill();
    // Reads all replacements of the yielded rows at once.
    refills_.resize(rows.size());
    refills_.resize(read(refills_));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (buffer_.empty()) return i;
      const std::size_t place = state_.draws.below(buffer_.size());
      std::int64_t& slot = buffer_[place];
      rows[i] = slot;
      if (i < refills_.size()) {
        slot = refills_[i];
      } else {
        const std::int64_t last = buffer_.take_back();
        if (place < buffer_.size()) slot = last;  // else it was the last one itself
      }
    }
    return rows.size();
  }

  void describe_position(Position& at) override {
    at(state_);
    std::size_t count = buffer_.size();
    at.count(count);
    if (at.is_restored()) buffer_.clear();
    const std::int64_t rows = store().size();
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t row = at.is_restored() ? 0 : buffer_[i];
      at(row);
      at.check(row >= 0 && row < rows, "a row of the source");
      if (at.is_restored()) buffer_.append(std::span(&row, 1));
    }
  }

 private:
  std::size_t read(std::span<std::int64_t> rows) {
    if (state_.is_at_end) return 0;
    const std::size_t got = state_.input->rows()->next_rows(rows);
    state_.is_at_end = got < rows.size();
    return got;
  }

  void fill() {
    while (buffer_.size() < capacity_ && !state_.is_at_end) {
      check_cancelled();
      // Does not read into the buffer, so that the buffer is unchanged if reading throws.
      refills_.resize(buffer_.make_room(std::min(kRowsAtOnce, capacity_ - buffer_.size())));
      refills_.resize(read(refills_));
      buffer_.append(refills_);
    }
  }

  ShuffleState state_;
  std::size_t capacity_;
  RowBuffer buffer_;
  std::vector<std::int64_t> refills_;
};

class ElementShuffle final : public Stage {
 public:
  ElementShuffle(const ShuffleNode& node, const StageContext& context, std::unique_ptr<Stage> from)
      : Stage(node), state_(node, context, std::move(from)), capacity_(node.buffer_size()) {}

  // Throws an error of the input when it reads it, before it yields any element after the error.
  bool next(Fields& fields) override {
    refill_hole();
    Fields element;
    while (buffer_.size() < capacity_ && read(element)) {
      buffer_.push_back(std::move(element));
      check_cancelled();
    }
    if (buffer_.empty()) return false;
    hole_ = static_cast<std::int64_t>(state_.draws.below(buffer_.size()));
    fields = std::move(buffer_[static_cast<std::size_t>(hole_)]);
    return true;
  }

  void describe_position(Position& at) override {
    at(state_, hole_);
    at.list(buffer_);
    at.check(hole_ >= -1 && hole_ < static_cast<std::int64_t>(buffer_.size()),
             "a place in the buffer");
  }

 private:
  bool read(Fields& fields) {
    if (!state_.is_at_end) state_.is_at_end = !state_.input->next(fields);
    return !state_.is_at_end;
  }

  // Replaces the last yielded element by the input's next one, as RowShuffle does.
  void refill_hole() {
    if (hole_ < 0) return;
    Fields& slot = buffer_[static_cast<std::size_t>(hole_)];
    if (!read(slot)) {
      slot = std::move(buffer_.back());
      buffer_.pop_back();
    }
    hole_ = -1;
  }

  ShuffleState state_;
  std::size_t capacity_;
  std::vector<Fields> buffer_;
  std::int64_t hole_ = -1;
};

std::unique_ptr<Stage> ShuffleNode::make_stage(const StageContext& context) const {
  std::unique_ptr<Stage> from = input().start(context.input(0));
  if (context.purpose() != Purpose::run) return from;
  if (from->rows() != nullptr) return std::make_unique<RowShuffle>(*this, context, std::move(from));
  return std::make_unique<ElementShuffle>(*this, context, std::move(from));
}

}  // namespace

NodePtr make_shuffle(SerializedOp op) { return ShuffleNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::shuffle(std::int64_t buffer_size, ShuffleOptions options) const {
  return data::ShuffleNode::over(node_, {buffer_size, options});
}

}  // namespace cohort
