// SPDX-License-Identifier: Apache-2.0
// shard: every num_shards-th element, beginning with number `index`.
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/op_table.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kName = "shard";

struct Shard {
  std::int64_t count;
  std::int64_t index;
};

class RowShard final : public RowStage {
 public:
  RowShard(const Node& node, std::unique_ptr<Stage> input, Shard shard)
      : RowStage(node), input_(std::move(input)), shard_(shard), gap_(shard.index) {}

  const RowStore& store() const override { return input_->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    RowStream& input = *input_->rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      input.skip_rows(static_cast<std::size_t>(gap_));
      if (input.next_rows(rows.subspan(i, 1)) == 0) return i;
      gap_ = shard_.count - 1;
    }
    return rows.size();
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(gap_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    gap_ = reader.zigzag();
    if (gap_ != shard_.index && gap_ != shard_.count - 1) reader.fail("a shard's gap");
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  Shard shard_;
  std::int64_t gap_;  // elements of other shards before the next of this one
};

class ElementShard final : public Stage {
 public:
  ElementShard(const Node& node, std::unique_ptr<Stage> input, Shard shard)
      : Stage(node), input_(std::move(input)), shard_(shard) {}

  bool next(Fields& fields) override {
    while (true) {
      const bool is_ours = position_ % shard_.count == shard_.index;
      ++position_;  // also where next() throws: the error takes the element's place
      if (!input_->next(fields)) return false;
      if (is_ours) return true;
    }
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(position_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    position_ = reader.zigzag();
    if (position_ < 0) reader.fail("a shard's position");
    input_->restore(reader);
  }

 private:
  std::unique_ptr<Stage> input_;
  Shard shard_;
  std::int64_t position_ = 0;
};

class ShardNode final : public Node {
 public:
  ShardNode(NodePtr input, Shard shard) : Node(kName, {std::move(input)}), shard_(shard) {
    COHORT_CHECK(shard.count > 0, ErrorCode::invalid_argument,
                 "[data.shard] expected num_shards > 0, got ", shard.count);
    COHORT_CHECK(shard.index >= 0 && shard.index < shard.count, ErrorCode::invalid_argument,
                 "[data.shard] expected 0 <= index < num_shards = ", shard.count, ", got ",
                 shard.index);
  }

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    return n < 0 ? n : n / shard_.count + (shard_.index < n % shard_.count ? 1 : 0);
  }

  Attributes attributes() const override {
    return {{"num_shards", shard_.count}, {"index", shard_.index}};
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<ShardNode>(std::move(inputs[0]), shard_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::unique_ptr<Stage> from = input().start(context.input(0));
    if (from->rows() != nullptr) return std::make_unique<RowShard>(*this, std::move(from), shard_);
    return std::make_unique<ElementShard>(*this, std::move(from), shard_);
  }

 private:
  Shard shard_;
};

}  // namespace

NodePtr make_shard(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<ShardNode>(
      std::move(inputs[0]),
      Shard{.count = attributes.integer("num_shards"), .index = attributes.integer("index")});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::shard(std::int64_t num_shards, std::int64_t index) const {
  return Dataset(
      std::make_shared<data::ShardNode>(node_, data::Shard{.count = num_shards, .index = index}));
}

Dataset Dataset::shard(const InputContext& input) const {
  return shard(input.num_input_pipelines, input.input_pipeline_id);
}

}  // namespace cohort
