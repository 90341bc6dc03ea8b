// SPDX-License-Identifier: Apache-2.0
// rebatch_split: each incoming batch in a number of parts (spec 3.4, V1).
#include "cohort/core/error.h"
#include "cohort/data/batch_parts.h"
#include "cohort/data/batching/rebatching.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/rows/field_rows.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kRebatchSplitName = "rebatch_split";

class RebatchSplitStage final : public Stage {
 public:
  RebatchSplitStage(const Node& node, std::unique_ptr<Stage> input, std::int64_t parts)
      : Stage(node), input_(std::move(input)), parts_(parts), given_(parts) {}

  // The parts share the memory of their batch.
  bool next(Fields& fields) override {
    if (given_ == parts_ && !read()) return false;
    fields.clear();
    for (const at::Tensor& field : batch_) {
      const RowRange part = part_of_batch(field.size(0), given_, parts_);
      fields.push_back(narrow_rows(field, part.begin, part.end));
    }
    if (++given_ == parts_) batch_.clear();
    return true;
  }

  void save(ByteWriter& writer) const override {
    writer.zigzag(given_);
    if (given_ < parts_) write_fields(writer, batch_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    given_ = reader.zigzag();
    if (given_ < 0 || given_ > parts_) reader.fail("the number of a part");
    batch_ = given_ < parts_ ? read_fields(reader) : Fields();
    for (const at::Tensor& field : batch_) {
      if (field.dim() == 0) reader.fail("a batch");
    }
    input_->restore(reader);
  }

 private:
  bool read() {
    Fields batch;
    if (!input_->next(batch)) return false;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      COHORT_CHECK(batch[i].dim() > 0, ErrorCode::invalid_argument,
                   "[data.rebatch_split] expected batches, got the scalar ",
                   TensorSpec::of(batch[i]).to_string(), " in field ", i, "; batch() first");
    }
    warn_of_other_rows(batch);
    batch_ = std::move(batch);
    given_ = 0;
    return true;
  }

  std::unique_ptr<Stage> input_;
  std::int64_t parts_;
  Fields batch_;
  std::int64_t given_;  // parts of batch_; all: there is none
};

class RebatchSplitNode final : public Node {
 public:
  RebatchSplitNode(NodePtr input, std::int64_t parts)
      : Node(kRebatchSplitName, {std::move(input)}), parts_(parts) {
    COHORT_CHECK(parts > 0, ErrorCode::invalid_argument,
                 "[data.rebatch_split] expected parts > 0, got ", parts);
  }

  std::int64_t cardinality() const override { return kUnknownCardinality; }
  Attributes attributes() const override { return {{"parts", parts_}}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<RebatchSplitNode>(std::move(inputs[0]), parts_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<RebatchSplitStage>(*this, input().start(context.input(0)), parts_);
  }

  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes || field.sizes->empty()) continue;
      std::int64_t& rows = field.sizes->front();
      rows = rows >= 0 && rows % parts_ == 0 ? rows / parts_ : -1;
    }
    return spec;
  }

 private:
  std::int64_t parts_;
};

}  // namespace

NodePtr make_rebatch_split(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<RebatchSplitNode>(std::move(inputs[0]), attributes.integer("parts"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::rebatch_split(std::int64_t parts) const {
  const auto node = std::make_shared<data::RebatchSplitNode>(node_, parts);
  data::check_batches(*node_, data::kRebatchSplitName);
  return Dataset(node);
}

}  // namespace cohort
