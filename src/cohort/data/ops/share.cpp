// SPDX-License-Identifier: Apache-2.0
// share: what batch(batch_size), rebatch_split(parts) and shard(num_shards, index) one behind the
// other yield, made from this worker's elements alone: all others are passed over unmade, and the
// global batch never exists. Only rewrites use it, over inputs that know their length.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/op_table.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kName = "share";
constexpr std::int64_t kMax = std::int64_t{1} << 40;  // of sizes: products do not overflow

struct Share {
  std::int64_t batch_size = 0;  // 0: elements are dealt out as they are
  bool drop_remainder = false;
  std::int64_t parts = 1;  // of each batch
  std::int64_t num_shards = 1;
  std::int64_t index = 0;
};

struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Which elements each mini-batch is made of. `count` is the number of elements, or
// kInfiniteCardinality. A value type.
class Layout {
 public:
  Layout(const Share& share, std::int64_t count) : share_(share), count_(count) {
    if (share_.batch_size == 0) share_.batch_size = 1;
  }

  std::int64_t minibatches() const {
    if (count_ < 0) return count_;
    const std::int64_t full = count_ / share_.batch_size;
    const bool has_short = !share_.drop_remainder && count_ % share_.batch_size != 0;
    std::int64_t all = 0;
    return __builtin_mul_overflow(full + (has_short ? 1 : 0), share_.parts, &all)
               ? std::numeric_limits<std::int64_t>::max() - share_.num_shards
               : all;
  }

  bool has(std::int64_t minibatch) const { return count_ < 0 || minibatch < minibatches(); }

  // As rebatch_split cuts a batch.
  Rows rows(std::int64_t minibatch) const {
    const std::int64_t first = minibatch / share_.parts * share_.batch_size;
    const std::int64_t length =
        count_ < 0 ? share_.batch_size : std::min(share_.batch_size, count_ - first);
    const std::int64_t step = (length + share_.parts - 1) / share_.parts;
    const std::int64_t begin = std::min(minibatch % share_.parts * step, length);
    return {.begin = first + begin, .end = first + std::min(begin + step, length)};
  }

 private:
  Share share_;
  std::int64_t count_;
};

// No rows, of a spec that is static but for the first size.
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
  ShareStage(const Node& node, std::unique_ptr<Stage> input, const Share& share, Layout layout)
      : Stage(node),
        input_(std::move(input)),
        share_(share),
        layout_(layout),
        minibatch_(share.index) {}

  bool next(Fields& fields) override {
    if (!layout_.has(minibatch_)) return false;
    const Rows rows = layout_.rows(minibatch_);
    minibatch_ += share_.num_shards;
    input_->skip(rows.begin - position_);
    position_ = rows.end;  // also where the input throws: the error takes the mini-batch's place
    if (share_.batch_size == 0) return input_->next(fields);
    if (rows.begin < rows.end) return input_->next_batch(rows.end - rows.begin, fields) > 0;
    fields = no_rows(spec());
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    if (layout_.has(minibatch_)) {
      const std::int64_t all = layout_.minibatches();
      const std::int64_t left =
          all < 0 ? count : (all - minibatch_ + share_.num_shards - 1) / share_.num_shards;
      skipped = std::min(count, left);
    }
    minibatch_ += skipped * share_.num_shards;
    return skipped;
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(minibatch_);
    writer.zigzag(position_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    minibatch_ = reader.zigzag();
    position_ = reader.zigzag();
    if (minibatch_ < 0 || minibatch_ % share_.num_shards != share_.index || position_ < 0 ||
        (layout_.has(minibatch_) && position_ > layout_.rows(minibatch_).begin)) {
      reader.fail("a share's position");
    }
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  Share share_;
  Layout layout_;
  std::int64_t minibatch_;     // the next of this worker
  std::int64_t position_ = 0;  // elements drawn or passed over
};

class ShareNode final : public Node {
 public:
  ShareNode(NodePtr input, const Share& share) : Node(kName, {std::move(input)}), share_(share) {
    COHORT_CHECK(share.batch_size >= 0 && share.batch_size < kMax && share.parts >= 1 &&
                     share.parts < kMax &&
                     (share.batch_size > 0 || (share.parts == 1 && !share.drop_remainder)),
                 ErrorCode::invalid_argument,
                 "[data.share] expected parts >= 1 of a batch_size > 0, got ", share.parts, " of ",
                 share.batch_size);
    COHORT_CHECK(share.index >= 0 && share.index < share.num_shards, ErrorCode::invalid_argument,
                 "[data.share] expected 0 <= index < num_shards, got ", share.index, " and ",
                 share.num_shards);
  }

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    const std::int64_t all = n < 0 ? n : Layout(share_, n).minibatches();
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
    std::int64_t n = input().cardinality();
    COHORT_CHECK(n != kUnknownCardinality, ErrorCode::failed_precondition,
                 "[data.share] expected an input of known length, got '", input().op(), "'");
    if (share_.parts > 1) check_static();
    const bool is_short = context.purpose() == Purpose::short_preview && share_.batch_size > 0 &&
                          !share_.drop_remainder && n > 0 && n % share_.batch_size != 0;
    Share share = share_;
    if (is_short) share.batch_size = n % share.batch_size;
    return std::make_unique<ShareStage>(*this, input().start(context.input(0)), share,
                                        Layout(share, n));
  }

 private:
  // Empty mini-batches are made without an example.
  void check_static() const {
    for (const TensorSpec& field : input().spec().fields) {
      COHORT_CHECK(field.is_static(), ErrorCode::failed_precondition,
                   "[data.share] expected elements of static shapes, got ",
                   input().spec().to_string());
    }
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
