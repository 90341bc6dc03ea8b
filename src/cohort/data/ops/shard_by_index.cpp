// SPDX-License-Identifier: Apache-2.0
// shard_by_index: yields the same as batch(batch_size), rebatch_split(parts) and shard(num_shards,
// index) one after the other, but computes only this worker's elements and never makes the global
// batch. Runs the three ops instead if the input's length is unknown before it is read, or if it
// splits batches and the input's shapes are not static. Only rewrites use it.

#include "cohort/data/batch_parts.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/sharding/graph_edit.h"
#include "cohort/data/sharding/index_shard_layout.h"

namespace cohort::data {
namespace {

// Limits for attributes from a peer, so that products do not overflow and tables stay small.
constexpr std::int64_t kBatchSizeMax = std::int64_t{1} << 40;
constexpr std::int64_t kPartsMax = 1 << 20;

struct ShardByIndexAttributes {
  static constexpr std::string_view kOp = "shard_by_index";
  IndexShard shard;
  static void describe(auto& visit, auto& all) {
    visit("batch_size", all.shard.batch_size);
    visit("drop_remainder", all.shard.drop_remainder);
    visit("parts", all.shard.parts);
    visit("num_shards", all.shard.num_shards);
    visit("index", all.shard.index);
  }
};

class ShardByIndexStage final : public InputStage<ShardByIndexAttributes> {
 public:
  // `input` yields only this worker's elements.
  ShardByIndexStage(const Node& node, const ShardByIndexAttributes& given,
                    std::unique_ptr<Stage> input, const IndexShard& shard,
                    std::shared_ptr<const IndexShardLayout> layout)
      : InputStage(node, given, std::move(input)),
        shard_(shard),
        layout_(std::move(layout)),
        minibatch_(shard.index) {}

  bool next(Fields& fields) override {
    if (!layout_->has(minibatch_)) return false;
    const std::int64_t length = layout_->rows(minibatch_).length();
    minibatch_ += shard_.num_shards;  // also if the input throws
    if (shard_.batch_size == 0) return input().next(fields);
    if (length == 0) {
      fields = empty_batch_of(spec());
      return true;
    }
    try {
      return input().next_batch(length, fields) > 0;
    } catch (const UnevenBatch& uneven) {
      throw Error(uneven);  // its size is that of a mini-batch, not of a batch of elements
    }
  }

  void describe_position(Position& at) override {
    at(minibatch_);
    at.check(minibatch_ >= 0 && minibatch_ % shard_.num_shards == shard_.index,
             "a shard's mini-batch");
    InputStage::describe_position(at);
  }

 private:
  IndexShard shard_;
  std::shared_ptr<const IndexShardLayout> layout_;
  std::int64_t minibatch_;  // the next of this worker
};

class ShardByIndexNode final : public OpNode<ShardByIndexNode, ShardByIndexAttributes> {
 public:
  ShardByIndexNode(std::vector<NodePtr> inputs, const ShardByIndexAttributes& given)
      : OpNode(std::move(inputs), given) {
    const IndexShard& shard = given.shard;
    COHORT_CHECK(shard.batch_size >= 0 && shard.batch_size < kBatchSizeMax && shard.parts >= 1 &&
                     shard.parts <= kPartsMax &&
                     (shard.batch_size > 0 || (shard.parts == 1 && !shard.drop_remainder)),
                 ErrorCode::invalid_argument,
                 "[data.shard_by_index] expected parts >= 1 of a batch_size > 0, got ", shard.parts,
                 " of ", shard.batch_size);
    COHORT_CHECK(
        shard.index >= 0 && shard.index < shard.num_shards && shard.num_shards <= kPartsMax,
        ErrorCode::invalid_argument, "[data.shard_by_index] expected 0 <= index < num_shards, got ",
        shard.index, " and ", shard.num_shards);
  }

  // As reported by the ops that it replaces: sharding must not change the cardinality.
  std::int64_t cardinality() const override {
    if (shard_.parts > 1) return kUnknownCardinality;
    const std::int64_t n = input().cardinality();
    const std::int64_t all = n < 0 ? n : IndexShardLayout(shard_, n).minibatches();
    return all < 0 ? all : all / shard_.num_shards + (shard_.index < all % shard_.num_shards);
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    if (shard_.batch_size == 0) return spec;
    const bool is_even = shard_.drop_remainder && shard_.batch_size % shard_.parts == 0;
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes) continue;
      field.sizes->insert(field.sizes->begin(), is_even ? shard_.batch_size / shard_.parts : -1);
    }
    return spec;
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const std::int64_t n = count_of_run(input(), context.input(0));
    // An empty mini-batch is made from the spec alone.
    if (n == kUnknownCardinality || (shard_.parts > 1 && !is_static(input().spec()))) {
      return long_way()->start(context);
    }
    IndexShard shard = shard_;
    const bool is_short = context.purpose() == Purpose::short_preview && shard.batch_size > 0 &&
                          !shard.drop_remainder && n > 0 && n % shard.batch_size != 0;
    if (is_short) shard.batch_size = n % shard.batch_size;
    auto layout = std::make_shared<const IndexShardLayout>(shard, n);
    std::unique_ptr<Stage> from = input().start(context.input(0).selecting(layout));
    return run<ShardByIndexStage>(std::move(from), shard, std::move(layout));
  }

 private:
  // The three ops.
  NodePtr long_way() const {
    NodePtr node = inputs().front();
    if (shard_.batch_size > 0) {
      node =
          make_node("batch", {std::move(node)},
                    {{"batch_size", shard_.batch_size}, {"drop_remainder", shard_.drop_remainder}});
    }
    if (shard_.parts > 1) {
      node = make_node("rebatch_split", {std::move(node)}, {{"parts", shard_.parts}});
    }
    return sharded(std::move(node), shard_.num_shards, shard_.index);
  }

  const IndexShard& shard_ = given().shard;
};

}  // namespace

NodePtr make_shard_by_index(SerializedOp op) { return ShardByIndexNode::read(op); }

}  // namespace cohort::data
