// SPDX-License-Identifier: Apache-2.0
// with_spec: the elements of the input with another spec. Only rewrites use it, so that a graph
// that they change keeps the spec that the user has seen (spec 3.6). The elements may not fit that
// spec: for example, if a rebatch that drops short batches was replaced by a rebatch_split.
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kWithSpecName = "with_spec";

class WithSpecStage final : public Stage {
 public:
  WithSpecStage(const Node& node, std::unique_ptr<Stage> input)
      : Stage(node), input_(std::move(input)) {}

  bool next(Fields& fields) override { return input_->next(fields); }
  void stop_at_errors() override {
    Stage::stop_at_errors();
    input_->stop_at_errors();
  }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    return input_->next_batch(count, batch);
  }
  std::int64_t skip(std::int64_t count) override { return input_->skip(count); }
  RowStream* rows() override { return input_->rows(); }
  void save(ByteWriter& writer) const override { input_->save(writer); }
  void restore(ByteReader& reader) override { input_->restore(reader); }

 private:
  std::unique_ptr<Stage> input_;
};

class WithSpecNode final : public Node {
 public:
  WithSpecNode(NodePtr input, ElementSpec spec)
      : Node(kWithSpecName, {std::move(input)}), known_(std::move(spec)) {}

  std::int64_t cardinality() const override { return input().cardinality(); }
  Attributes attributes() const override { return {{"spec", nest_of(known_)}}; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<WithSpecNode>(std::move(inputs[0]), known_);
  }

 protected:
  ElementSpec make_spec() const override { return known_; }
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<WithSpecStage>(*this, input().start(context.input(0)));
  }

 private:
  ElementSpec known_;
};

}  // namespace

NodePtr make_with_spec(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<WithSpecNode>(std::move(inputs[0]), attributes.spec("spec"));
}

}  // namespace cohort::data
