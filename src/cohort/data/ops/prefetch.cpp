// SPDX-License-Identifier: Apache-2.0
// prefetch: a thread computes some elements ahead.
#include <optional>

#include "cohort/data/ahead_reader.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/stages/stage_profiler.h"

namespace cohort::data {
namespace {

struct PrefetchAttributes {
  static constexpr std::string_view kOp = "prefetch";
  std::int64_t buffer_size = 0;
  static void describe(auto& visit, auto& all) {
    visit("buffer_size", all.buffer_size, AtLeast{-1, ">= -1 (-1: tuned, 0: none)"});
  }
};

constexpr std::int64_t kTunedElements = 8;  // for buffer_size -1

// At most so many bytes are computed ahead, whatever buffer_size is (but always one element).
constexpr std::size_t kBytesAheadMax = 256 << 20;

class PrefetchStage final : public Stage {
 public:
  // `cancellation` is the input's; the destructor cancels it.
  PrefetchStage(const Node& node, std::shared_ptr<Cancellation> cancellation,
                std::unique_ptr<Stage> input, std::size_t elements_max)
      : Stage(node),
        input_cancellation_(std::move(cancellation)),
        input_(std::move(input)),
        ahead_("to prefetch elements", *input_, input_cancellation_->token(),
               {.elements = elements_max, .bytes = kBytesAheadMax}) {}

  ~PrefetchStage() override { input_cancellation_->cancel(); }

  bool next(Fields& fields) override {
    check_cancelled();
    std::optional<Item> item;
    {
      const ScopedWait waiting;
      item = ahead_.take();
    }
    check_cancelled();
    if (item) fields = std::move(*item).take();
    return item.has_value();
  }

  void describe_position(Position& at) override {
    bool is_at_end = ahead_.is_at_end();
    at(is_at_end);
    if (at.is_restored()) {
      ahead_.restore(*at.reader(), is_at_end);
    } else {
      ahead_.save(*at.writer());
    }
  }

 private:
  const std::shared_ptr<Cancellation> input_cancellation_;
  std::unique_ptr<Stage> input_;
  AheadReader ahead_;
};

class PrefetchNode final : public OpNode<PrefetchNode, PrefetchAttributes> {
 public:
  using OpNode::OpNode;

  Attributes identity() const override { return {}; }  // the buffer's size changes no element

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    if (context.purpose() != Purpose::run || given().buffer_size == 0)
      return input().start(context.input(0));
    const StageContext before = context.with_own_cancellation();
    std::unique_ptr<Stage> from = input().start(before.input(0));
    // Computing row numbers is cheaper than passing them between threads.
    if (from->rows() != nullptr) return from;
    const std::int64_t elements = given().buffer_size < 0 ? kTunedElements : given().buffer_size;
    return std::make_unique<PrefetchStage>(*this, before.cancellation(), std::move(from),
                                           static_cast<std::size_t>(elements));
  }
};

}  // namespace

NodePtr make_prefetch(SerializedOp op) { return PrefetchNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::prefetch(std::int64_t buffer_size) const {
  return data::PrefetchNode::over(node_, {buffer_size});
}

}  // namespace cohort
