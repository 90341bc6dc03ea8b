// SPDX-License-Identifier: Apache-2.0
// batch: batch_size elements stacked along a new first dimension.
#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/parallel/reordering_op.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kBatchName = "batch";
// With num_parallel_calls. An op of its own as in tf, whose rewrites do not see its batch size.
constexpr std::string_view kParallelName = "parallel_batch";

class BatchStage final : public Stage {
 public:
  BatchStage(const Node& node, std::unique_ptr<Stage> input, std::int64_t size, bool drop_remainder)
      : Stage(node), input_(std::move(input)), size_(size), drop_remainder_(drop_remainder) {}

  bool next(Fields& fields) override {
    try {
      const std::int64_t got = input_->next_batch(size_, fields);
      return got == size_ || (got > 0 && !drop_remainder_);
    } catch (const UnevenBatch& uneven) {
      if (drop_remainder_ && uneven.size() < size_) return false;
      Error error(uneven);  // its size is none of a batch of these batches
      const ElementSpec* elements = node().input().known_spec();
      if (elements != nullptr) throw std::move(error).during("batching " + elements->to_string());
      throw Error(std::move(error));
    }
  }

  void save(ByteWriter& writer) const override { input_->save(writer); }
  void restore(ByteReader& reader) override { input_->restore(reader); }

 private:
  std::unique_ptr<Stage> input_;
  std::int64_t size_;
  bool drop_remainder_;
};

class BatchNode final : public Node, public ReorderingOp {
 public:
  BatchNode(NodePtr input, std::int64_t size, BatchOptions options)
      : Node(options.num_parallel_calls == 0 ? kBatchName : kParallelName, {std::move(input)}),
        ReorderingOp(options.num_parallel_calls, options.deterministic),
        size_(size),
        options_(options) {
    COHORT_CHECK(size > 0, ErrorCode::invalid_argument,
                 "[data.batch] expected batch_size > 0, got ", size);
    COHORT_CHECK(options.num_parallel_calls >= 0 || options.num_parallel_calls == kAutotune,
                 ErrorCode::invalid_argument,
                 "[data.batch] expected num_parallel_calls >= 0 or kAutotune, got ",
                 options.num_parallel_calls);
  }

  std::int64_t cardinality() const override {
    const std::int64_t n = input().cardinality();
    return n < 0 ? n : n / size_ + (!options_.drop_remainder && n % size_ != 0 ? 1 : 0);
  }

  Attributes attributes() const override {
    Attributes all = {{"batch_size", size_}, {"drop_remainder", options_.drop_remainder}};
    if (options_.num_parallel_calls != 0) add_parallel_attributes(all);
    return all;
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<BatchNode>(std::move(inputs[0]), size_, options_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::int64_t size = size_;
    if (context.purpose() == Purpose::short_preview && !options_.drop_remainder) {
      const std::int64_t n = input().cardinality();
      if (n > 0 && n % size_ != 0) size = n % size_;
    }
    std::unique_ptr<Stage> from = input().start(context.input(0));
    // tf runs a map and its batch as one op, in which an error costs the batch.
    const std::string_view before = input().op();
    const bool is_of_map = before == "map" || before == "map_field" || before == "typed_map";
    if (options_.num_parallel_calls != 0 || !is_of_map) from->stop_at_errors();
    return std::make_unique<BatchStage>(*this, std::move(from), size, options_.drop_remainder);
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (TensorSpec& field : spec.fields) {
      if (field.sizes)
        field.sizes->insert(field.sizes->begin(), options_.drop_remainder ? size_ : -1);
    }
    return spec;
  }

 private:
  std::int64_t size_;
  BatchOptions options_;
};

}  // namespace

NodePtr make_batch(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<BatchNode>(
      std::move(inputs[0]), attributes.integer("batch_size"),
      BatchOptions{.drop_remainder = attributes.boolean("drop_remainder")});
}

NodePtr make_parallel_batch(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  BatchOptions options{.drop_remainder = attributes.boolean("drop_remainder"),
                       .num_parallel_calls = attributes.integer("num_parallel_calls")};
  COHORT_CHECK(options.num_parallel_calls != 0, ErrorCode::invalid_argument,
               "[data.batch] expected num_parallel_calls != 0 of a parallel batch, got 0");
  if (attributes.has("deterministic")) options.deterministic = attributes.boolean("deterministic");
  return std::make_shared<BatchNode>(std::move(inputs[0]), attributes.integer("batch_size"),
                                     options);
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::batch(std::int64_t batch_size, BatchOptions options) const {
  return Dataset(std::make_shared<data::BatchNode>(node_, batch_size, options));
}

}  // namespace cohort
