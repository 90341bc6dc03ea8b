// SPDX-License-Identifier: Apache-2.0
// batch: batch_size elements stacked along a new first dimension.

#include "cohort/data/batch_parts.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

// With num_parallel_calls. An op of its own as in tf, whose rewrites do not see its batch size.
constexpr std::string_view kParallelBatchName = "parallel_batch";

struct BatchAttributes {
  static constexpr std::string_view kOp = "batch";
  std::int64_t size = 0;
  BatchOptions options = {};
  static void describe_serial(auto& visit, auto& all) {
    visit("batch_size", all.size, kPositive);
    visit("drop_remainder", all.options.drop_remainder);
  }
  static void describe(auto& visit, auto& all) {
    describe_serial(visit, all);
    describe_parallel(visit, all.options);
  }
};

class BatchStage final : public InputStage<BatchAttributes> {
 public:
  BatchStage(const Node& node, const BatchAttributes& given, std::unique_ptr<Stage> input,
             std::int64_t size)
      : InputStage(node, given, std::move(input)), size_(size) {}

  bool next(Fields& fields) override {
    try {
      const std::int64_t got = input().next_batch(size_, fields);
      return got == size_ || (got > 0 && !given().options.drop_remainder);
    } catch (const UnevenBatch& uneven) {
      if (given().options.drop_remainder && uneven.size() < size_) return false;
      Error error(uneven);  // its size is none of a batch of these batches
      const ElementSpec* elements = node().input().known_spec();
      if (elements != nullptr) throw std::move(error).during("batching " + elements->to_string());
      throw Error(std::move(error));
    }
  }

 private:
  std::int64_t size_;
};

class BatchNode final : public ReorderingNode<BatchNode, BatchAttributes> {
 public:
  BatchNode(std::vector<NodePtr> inputs, BatchAttributes given)
      : ReorderingNode(std::move(inputs), given,
                       given.options.num_parallel_calls == 0 ? given.kOp : kParallelBatchName) {}

  std::int64_t cardinality() const override {
    return batch_count(input().cardinality(), given().size, given().options.drop_remainder);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    std::int64_t size = given().size;
    if (context.purpose() == Purpose::short_preview && !given().options.drop_remainder) {
      const std::int64_t n = input().cardinality();
      if (n > 0 && n % given().size != 0) size = n % given().size;
    }
    std::unique_ptr<Stage> from = input().start(context.input(0));
    // tf runs a map and its batch as one op, in which an error costs the batch.
    const std::string_view before = input().op();
    const bool is_of_map = before == "map" || before == "map_field" || before == "typed_map";
    if (given().options.num_parallel_calls != 0 || !is_of_map) from->stop_at_errors();
    return run<BatchStage>(std::move(from), size);
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (TensorSpec& field : spec.fields) {
      if (field.sizes)
        field.sizes->insert(field.sizes->begin(),
                            given().options.drop_remainder ? given().size : -1);
    }
    return spec;
  }
};

}  // namespace

NodePtr make_batch(SerializedOp op) {
  BatchAttributes given;
  BatchAttributes::describe_serial(op.attributes, given);
  return std::make_shared<BatchNode>(std::move(op.inputs), given);
}

NodePtr make_parallel_batch(SerializedOp op) {
  COHORT_CHECK(op.attributes.integer("num_parallel_calls") != 0, ErrorCode::invalid_argument,
               "[data.batch] expected num_parallel_calls != 0 of a parallel batch, got 0");
  return BatchNode::read(op);
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::batch(std::int64_t batch_size, BatchOptions options) const {
  if (options.num_parallel_calls == 0) options.deterministic.reset();
  return data::BatchNode::over(node_, {batch_size, options});
}

}  // namespace cohort
