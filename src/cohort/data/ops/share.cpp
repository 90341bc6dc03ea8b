// SPDX-License-Identifier: Apache-2.0
// share: yields the same as batch(batch_size), rebatch_split(parts) and shard(num_shards, index)
// one after the other, but computes only this worker's elements and never makes the global batch.
// Runs the three ops instead if the input's length is unknown before it is read, or if it splits
// batches and the input's shapes are not static. Only rewrites use it.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/op_table.h"
#include "cohort/data/internal/sharding/graph_edit.h"
#include "cohort/data/internal/sharding/share_layout.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kShareName = "share";
// Limits for attributes from a peer, so that products do not overflow and tables stay small.
constexpr std::int64_t kBatchSizeMax = std::int64_t{1} << 40;
constexpr std::int64_t kPartsMax = 1 << 20;

// Whether an empty mini-batch can be made from the spec alone.
bool is_static(const ElementSpec& spec) {
  return std::all_of(spec.fields.begin(), spec.fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); });
}

// A batch without rows. All sizes of the spec but the first must be static.
Fields no_rows(const ElementSpec& batch_spec) {
  Fields fields;
  for (const TensorSpec& field : batch_spec.fields) {
    std::vector<std::int64_t> sizes = *field.sizes;
    sizes.front() = 0;
    fields.push_back(field.dtype == kString
                         ? StringTensor(std::move(sizes), std::initializer_list<std::string>{})
                         : at::empty(sizes, field.dtype));
  }
  return fields;
}

class ShareStage final : public Stage {
 public:
  // `input` yields only this worker's elements.
  ShareStage(const Node& node, std::unique_ptr<Stage> input, const Share& share,
             std::shared_ptr<const ShareLayout> layout)
      : Stage(node),
        input_(std::move(input)),
        share_(share),
        layout_(std::move(layout)),
        minibatch_(share.index) {}

  bool next(Fields& fields) override {
    if (!layout_->has(minibatch_)) return false;
    const std::int64_t length = layout_->rows(minibatch_).length();
    minibatch_ += share_.num_shards;  // also if the input throws
    if (share_.batch_size == 0) return input_->next(fields);
    if (length == 0) {
      fields = no_rows(spec());
      return true;
    }
    try {
      return input_->next_batch(length, fields) > 0;
    } catch (const UnevenBatch& uneven) {
      throw Error(uneven);  // its size is that of a mini-batch, not of a batch of elements
    }
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(minibatch_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    minibatch_ = reader.zigzag();
    if (minibatch_ < 0 || minibatch_ % share_.num_shards != share_.index) {
      reader.fail("a share's mini-batch");
    }
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  Share share_;
  std::shared_ptr<const ShareLayout> layout_;
  std::int64_t minibatch_;  // the next of this worker
};

class ShareNode final : public Node {
 public:
  ShareNode(NodePtr input, const Share& share)
      : Node(kShareName, {std::move(input)}), share_(share) {
    COHORT_CHECK(share.batch_size >= 0 && share.batch_size < kBatchSizeMax && share.parts >= 1 &&
                     share.parts <= kPartsMax &&
                     (share.batch_size > 0 || (share.parts == 1 && !share.drop_remainder)),
                 ErrorCode::invalid_argument,
                 "[data.share] expected parts >= 1 of a batch_size > 0, got ", share.parts, " of ",
                 share.batch_size);
    COHORT_CHECK(
        share.index >= 0 && share.index < share.num_shards && share.num_shards <= kPartsMax,
        ErrorCode::invalid_argument, "[data.share] expected 0 <= index < num_shards, got ",
        share.index, " and ", share.num_shards);
  }

  // As reported by the ops that it replaces: sharding must not change the cardinality.
  std::int64_t cardinality() const override {
    if (share_.parts > 1) return kUnknownCardinality;
    const std::int64_t n = input().cardinality();
    const std::int64_t all = n < 0 ? n : ShareLayout(share_, n).minibatches();
    return all < 0 ? all : all / share_.num_shards + (share_.index < all % share_.num_shards);
  }

  Attributes attributes() const override {
    return {{"batch_size", share_.batch_size},
            {"drop_remainder", share_.drop_remainder},
            {"parts", share_.parts},
            {"num_shards", share_.num_shards},
            {"index", share_.index}};
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<ShareNode>(std::move(inputs[0]), share_);
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    if (share_.batch_size == 0) return spec;
    const bool is_even = share_.drop_remainder && share_.batch_size % share_.parts == 0;
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes) continue;
      field.sizes->insert(field.sizes->begin(), is_even ? share_.batch_size / share_.parts : -1);
    }
    return spec;
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const std::int64_t n = count_of_run(input(), context.input(0));
    if (n == kUnknownCardinality || (share_.parts > 1 && !is_static(input().spec()))) {
      return long_way()->start(context);
    }
    Share share = share_;
    const bool is_short = context.purpose() == Purpose::short_preview && share.batch_size > 0 &&
                          !share.drop_remainder && n > 0 && n % share.batch_size != 0;
    if (is_short) share.batch_size = n % share.batch_size;
    auto layout = std::make_shared<const ShareLayout>(share, n);
    std::unique_ptr<Stage> from = input().start(context.input(0).selecting(layout));
    return std::make_unique<ShareStage>(*this, std::move(from), share, std::move(layout));
  }

 private:
  // The three ops.
  NodePtr long_way() const {
    NodePtr node = inputs().front();
    if (share_.batch_size > 0) {
      node =
          make_node("batch", {std::move(node)},
                    {{"batch_size", share_.batch_size}, {"drop_remainder", share_.drop_remainder}});
    }
    if (share_.parts > 1) {
      node = make_node("rebatch_split", {std::move(node)}, {{"parts", share_.parts}});
    }
    return sharded(std::move(node), share_.num_shards, share_.index);
  }

  Share share_;
};

}  // namespace

NodePtr make_share(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<ShareNode>(std::move(inputs[0]),
                                     Share{.batch_size = attributes.integer("batch_size"),
                                           .drop_remainder = attributes.boolean("drop_remainder"),
                                           .parts = attributes.integer("parts"),
                                           .num_shards = attributes.integer("num_shards"),
                                           .index = attributes.integer("index")});
}

}  // namespace cohort::data
