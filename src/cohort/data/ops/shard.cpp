// SPDX-License-Identifier: Apache-2.0
// shard: every num_shards-th element, from number `index` on.
#include <deque>
#include <exception>

#include "cohort/data/graph/op_node.h"
#include "cohort/data/parallel/item.h"

namespace cohort::data {
namespace {

struct Shard {
  std::int64_t count = 1;  // or kShardHint
  std::int64_t index = 0;
  // If there are fewer elements than shards, a shard that has an element throws invalid_argument at
  // its first one (spec 3.5.4), and a shard without elements is empty.
  bool require_non_empty = false;
};

struct ShardAttributes {
  static constexpr std::string_view kOp = "shard";
  Shard shard;
  static void describe(auto& visit, auto& all) {
    visit("num_shards", all.shard.count);
    visit("index", all.shard.index);
    visit.optional("require_non_empty", all.shard.require_non_empty, false);
  }
};

[[noreturn]] void refuse_too_few(const Shard& shard, std::int64_t got) {
  internal::throw_error(
      ErrorCode::invalid_argument, "[data.shard] expected at least ", shard.count,
      " elements (files, or batches) for the required ", shard.count, " shards, got ", got,
      " (shard ", shard.index,
      "); use more files, or AutoShardPolicy::data for few files, or AutoShardPolicy::off; a shard "
      "of Dataset::shard() may be empty");
}

class RowShard final : public RowInputStage<ShardAttributes> {
 public:
  using RowInputStage::RowInputStage;

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    RowStream& from = input_rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      from.skip_rows(static_cast<std::size_t>(gap_));
      if (from.next_rows(rows.subspan(i, 1)) == 0) return i;
      gap_ = must_look_ahead_ ? look_ahead() : shard_.count - 1;
    }
    return rows.size();
  }

  void describe_position(Position& at) override {
    at(gap_);
    at.check(gap_ == shard_.index || gap_ == shard_.count - 1, "a shard's gap");
    at(must_look_ahead_);
    RowInputStage::describe_position(at);
  }

 private:
  // Called after the first row: skips the other shards' rows of the first round and throws if there
  // are too few. Returns the gap before the next row.
  std::int64_t look_ahead() {
    must_look_ahead_ = false;
    const std::int64_t others = shard_.count - 1 - shard_.index;
    const auto got =
        static_cast<std::int64_t>(input_rows().skip_rows(static_cast<std::size_t>(others)));
    if (got < others) refuse_too_few(shard_, shard_.index + 1 + got);
    return shard_.index;
  }

  const Shard& shard_ = given().shard;
  std::int64_t gap_ = shard_.index;  // elements of other shards before the next one of this shard
  bool must_look_ahead_ = shard_.require_non_empty;
};

class ElementShard final : public InputStage<ShardAttributes> {
 public:
  using InputStage::InputStage;

  bool next(Fields& fields) override {
    if (!pending_.empty()) {
      const Item error = std::move(pending_.front());
      pending_.pop_front();
      std::rethrow_exception(error.error);
    }
    while (true) {
      check_cancelled();
      const bool is_ours = position_ % shard_.count == shard_.index;
      ++position_;  // also if next() throws: the error replaces the element
      if (!input().next(fields)) return false;
      if (is_ours) break;
    }
    if (shard_.require_non_empty) look_ahead();
    return true;
  }

  void describe_position(Position& at) override {
    at(position_);
    at.check(position_ >= 0, "a shard's position");
    at.list(pending_, 1, [&](Item& error) {
      at(error);
      at.check(error.error != nullptr, "an error");
    });
    InputStage::describe_position(at);
  }

 private:
  // Called after the first element: skips the other shards' elements of the first round and throws
  // if there are too few.
  void look_ahead() {
    Fields unused;
    for (; position_ < shard_.count; ++position_) {
      check_cancelled();
      bool has_next = true;
      try {
        has_next = input().next(unused);
      } catch (...) {
        pending_.push_back({.error = std::current_exception()});
      }
      if (!has_next) refuse_too_few(shard_, position_);
    }
  }

  const Shard& shard_ = given().shard;
  std::int64_t position_ = 0;
  std::deque<Item> pending_;  // errors that look_ahead() met
};

class ShardNode final : public OpNode<ShardNode, ShardAttributes> {
 public:
  ShardNode(std::vector<NodePtr> inputs, const ShardAttributes& given)
      : OpNode(std::move(inputs), given) {
    const Shard& shard = given.shard;
    if (is_hint()) return;
    COHORT_CHECK(shard.count > 0, ErrorCode::invalid_argument,
                 "[data.shard] expected num_shards > 0, got ", shard.count);
    COHORT_CHECK(shard.index >= 0 && shard.index < shard.count, ErrorCode::invalid_argument,
                 "[data.shard] expected 0 <= index < num_shards = ", shard.count, ", got ",
                 shard.index);
  }

  bool is_hint() const { return given().shard.count == kShardHint; }

  std::int64_t cardinality() const override {
    if (is_hint()) return kUnknownCardinality;
    const std::int64_t n = input().cardinality();
    return n < 0
               ? n
               : n / given().shard.count + (given().shard.index < n % given().shard.count ? 1 : 0);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    COHORT_CHECK(!is_hint() || context.purpose() != Purpose::run, ErrorCode::failed_precondition,
                 "[data.shard] expected a number of shards, got the place holder "
                 "shard(kShardHint, …); distribute the dataset with AutoShardPolicy::hint");
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (is_hint() || given().shard.count == 1) return from;
    if (from->rows() != nullptr) return run<RowShard>(std::move(from));
    return run<ElementShard>(std::move(from));
  }
};

}  // namespace

NodePtr make_shard(SerializedOp op) { return ShardNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::shard(std::int64_t num_shards, std::int64_t index) const {
  return data::ShardNode::over(node_, {{.count = num_shards, .index = index}});
}

Dataset Dataset::shard(const InputContext& input) const {
  return shard(input.num_input_pipelines, input.input_pipeline_id);
}

}  // namespace cohort
