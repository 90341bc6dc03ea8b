// SPDX-License-Identifier: Apache-2.0
// shard: every num_shards-th element, from number `index` on.
#include <deque>
#include <exception>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/parallel/item.h"
#include "cohort/data/sharding/shard_node.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kShardName = "shard";

[[noreturn]] void refuse_too_few(const Shard& shard, std::int64_t got) {
  internal::throw_error(
      ErrorCode::invalid_argument, "[data.shard] expected at least ", shard.count,
      " elements (files, or batches) for the required ", shard.count, " shards, got ", got,
      " (shard ", shard.index,
      "); use more files, or AutoShardPolicy::data for few files, or AutoShardPolicy::off; a shard "
      "of Dataset::shard() may be empty");
}

class RowShard final : public RowStage {
 public:
  RowShard(const Node& node, std::unique_ptr<Stage> input, Shard shard)
      : RowStage(node),
        input_(std::move(input)),
        shard_(shard),
        gap_(shard.index),
        must_look_ahead_(shard.require_non_empty) {}

  const RowStore& store() const override { return input_->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    RowStream& input = *input_->rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      input.skip_rows(static_cast<std::size_t>(gap_));
      if (input.next_rows(rows.subspan(i, 1)) == 0) return i;
      gap_ = must_look_ahead_ ? look_ahead() : shard_.count - 1;
    }
    return rows.size();
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(gap_);
    writer.u8(must_look_ahead_ ? 1 : 0);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    gap_ = reader.zigzag();
    if (gap_ != shard_.index && gap_ != shard_.count - 1) reader.fail("a shard's gap");
    must_look_ahead_ = reader.u8() != 0;
    input_->restore(reader);
  }

 private:
  // Called after the first row: skips the other shards' rows of the first round and throws if there
  // are too few. Returns the gap before the next row.
  std::int64_t look_ahead() {
    must_look_ahead_ = false;
    const std::int64_t others = shard_.count - 1 - shard_.index;
    const auto got =
        static_cast<std::int64_t>(input_->rows()->skip_rows(static_cast<std::size_t>(others)));
    if (got < others) refuse_too_few(shard_, shard_.index + 1 + got);
    return shard_.index;
  }

  std::unique_ptr<Stage> input_;
  Shard shard_;
  std::int64_t gap_;  // elements of other shards before the next one of this shard
  bool must_look_ahead_;
};

class ElementShard final : public Stage {
 public:
  ElementShard(const Node& node, std::unique_ptr<Stage> input, Shard shard)
      : Stage(node), input_(std::move(input)), shard_(shard) {}

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
      if (!input_->next(fields)) return false;
      if (is_ours) break;
    }
    if (shard_.require_non_empty) look_ahead();
    return true;
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(position_);
    writer.varint(pending_.size());
    for (const Item& error : pending_) write_item(writer, error);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    position_ = reader.zigzag();
    if (position_ < 0) reader.fail("a shard's position");
    pending_.clear();
    for (std::size_t left = reader.count(); left > 0; --left) {
      pending_.push_back(read_item(reader));
      if (!pending_.back().error) reader.fail("an error");
    }
    input_->restore(reader);
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
        has_next = input_->next(unused);
      } catch (...) {
        pending_.push_back({.error = std::current_exception()});
      }
      if (!has_next) refuse_too_few(shard_, position_);
    }
  }

  std::unique_ptr<Stage> input_;
  Shard shard_;
  std::int64_t position_ = 0;
  std::deque<Item> pending_;  // errors that look_ahead() met
};

class ShardNode final : public Node {
 public:
  ShardNode(NodePtr input, Shard shard) : Node(kShardName, {std::move(input)}), shard_(shard) {
    if (is_hint()) return;
    COHORT_CHECK(shard.count > 0, ErrorCode::invalid_argument,
                 "[data.shard] expected num_shards > 0, got ", shard.count);
    COHORT_CHECK(shard.index >= 0 && shard.index < shard.count, ErrorCode::invalid_argument,
                 "[data.shard] expected 0 <= index < num_shards = ", shard.count, ", got ",
                 shard.index);
  }

  bool is_hint() const { return shard_.count == kShardHint; }

  std::int64_t cardinality() const override {
    if (is_hint()) return kUnknownCardinality;
    const std::int64_t n = input().cardinality();
    return n < 0 ? n : n / shard_.count + (shard_.index < n % shard_.count ? 1 : 0);
  }

  Attributes attributes() const override {
    Attributes all = {{"num_shards", shard_.count}, {"index", shard_.index}};
    if (shard_.require_non_empty) all.emplace("require_non_empty", true);
    return all;
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<ShardNode>(std::move(inputs[0]), shard_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    COHORT_CHECK(!is_hint() || context.purpose() != Purpose::run, ErrorCode::failed_precondition,
                 "[data.shard] expected a number of shards, got the place holder "
                 "shard(kShardHint, …); distribute the dataset with AutoShardPolicy::hint");
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (is_hint() || shard_.count == 1) return from;
    if (from->rows() != nullptr) return std::make_unique<RowShard>(*this, std::move(from), shard_);
    return std::make_unique<ElementShard>(*this, std::move(from), shard_);
  }

 private:
  Shard shard_;
};

}  // namespace

NodePtr shard_node(NodePtr input, Shard shard) {
  return std::make_shared<ShardNode>(std::move(input), shard);
}

bool is_shard_hint(const Node& node) {
  const auto* shard = dynamic_cast<const ShardNode*>(&node);
  return shard != nullptr && shard->is_hint();
}

NodePtr make_shard(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  Shard shard{.count = attributes.integer("num_shards"), .index = attributes.integer("index")};
  if (attributes.has("require_non_empty")) {
    shard.require_non_empty = attributes.boolean("require_non_empty");
  }
  return shard_node(std::move(inputs[0]), shard);
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::shard(std::int64_t num_shards, std::int64_t index) const {
  return Dataset(data::shard_node(node_, {.count = num_shards, .index = index}));
}

Dataset Dataset::shard(const InputContext& input) const {
  return shard(input.num_input_pipelines, input.input_pipeline_id);
}

}  // namespace cohort
