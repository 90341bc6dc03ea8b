// SPDX-License-Identifier: Apache-2.0
// map_field: a field function of each element.
#include "cohort/core/error.h"
#include "cohort/core/once.h"
#include "cohort/data/dataset.h"
#include "cohort/data/internal/examples.h"
#include "cohort/data/internal/field_kernels/field_kernel.h"
#include "cohort/data/internal/op_table.h"
#include "cohort/data/internal/sharding/selection.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kMapFieldName = "map_field";

class MapFieldNode final : public Node {
 public:
  MapFieldNode(NodePtr input, FieldFunction function)
      : Node(kMapFieldName, {std::move(input)}),
        function_(std::move(function)),
        field_(function_.field().to_string()) {}

  std::int64_t cardinality() const override { return input().cardinality(); }
  Nest structure() const override { return input().structure(); }

  Attributes attributes() const override {
    Attributes all = function_.kernel()->attributes();
    Nest::Items path;
    for (const FieldPath::Step& step : function_.field().steps()) {
      path.push_back(std::visit([](const auto& value) { return Nest(value); }, step));
    }
    all.emplace("field", Nest::list(std::move(path)));
    all.emplace("function", std::string(function_.kernel()->name()));
    return all;
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<MapFieldNode>(std::move(inputs[0]), function_);
  }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  const std::string& field() const { return field_; }
  std::size_t index_in(const ElementSpec& element) const {
    return field_index(function_.field(), element, function_.kernel()->name());
  }
  ElementSpec spec_over(const ElementSpec& element) const {
    ElementSpec spec = element;
    TensorSpec& field = spec.fields.at(index_in(element));
    field = function_.kernel()->spec(field, field_);
    return spec;
  }

 protected:
  ElementSpec make_spec() const override { return spec_over(input().spec()); }

 private:
  FieldFunction function_;
  std::string field_;
};

class MapFieldStage final : public Stage {
 public:
  MapFieldStage(const MapFieldNode& node, std::unique_ptr<Stage> input,
                std::shared_ptr<const FieldKernel> kernel,
                std::shared_ptr<const Selection> selection)
      : Stage(node),
        map_(node),
        input_(std::move(input)),
        kernel_(std::move(kernel)),
        selection_(std::move(selection)) {}

  bool next(Fields& fields) override {
    const std::uint64_t index = next_index_++;
    if (!input_->next(fields)) return false;
    try {
      apply(fields);
    } catch (...) {
      throw current_error().during("mapping " + map_.field() + " of element " +
                                   std::to_string(position_of(selection_.get(), index)));
    }
    return true;
  }

  // The whole batch at once. An error costs the batch, which is what its batch() wants of a map.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (stops_at_errors() || !kernel_->is_element_wise()) return Stage::next_batch(count, batch);
    const std::uint64_t first = next_index_;
    next_index_ += static_cast<std::uint64_t>(count);
    const std::int64_t size = input_->next_batch(count, batch);
    if (size == 0) return 0;
    try {
      apply(batch);
    } catch (...) {
      throw current_error().during("mapping " + map_.field() + " of " + std::to_string(size) +
                                   " elements from element " +
                                   std::to_string(position_of(selection_.get(), first)));
    }
    return size;
  }

  // Without calling the function.
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = input_->skip(count);
    next_index_ += static_cast<std::uint64_t>(skipped);
    return skipped;
  }

  void save(ByteWriter& writer) const override {
    writer.varint(next_index_);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    next_index_ = reader.varint();
    input_->restore(reader);
  }

 private:
  void apply(Fields& fields) {
    if (!position_) {
      position_ = map_.index_in({.structure = map_.structure(), .fields = specs_of(fields)});
    }
    at::Tensor& field = fields.at(*position_);
    field = kernel_->apply(field, map_.field());
  }

  const MapFieldNode& map_;  // kept by the stage
  std::unique_ptr<Stage> input_;
  std::shared_ptr<const FieldKernel> kernel_;  // shared with the other runs
  std::shared_ptr<const Selection> selection_;
  std::optional<std::size_t> position_;  // of the field, once there was an element
  std::uint64_t next_index_ = 0;
};

std::unique_ptr<Stage> MapFieldNode::make_stage(const StageContext& context) const {
  std::shared_ptr<const FieldKernel> kernel = function_.kernel()->opened(context.options());
  return std::make_unique<MapFieldStage>(*this, input().start(context.input(0)), std::move(kernel),
                                         context.selection());
}

FieldPath read_path(AttributeReader& attributes) {
  std::vector<FieldPath::Step> steps;
  for (const Nest& step : attributes.nest("field").items()) {
    if (step.kind() == Nest::Kind::integer) {
      steps.emplace_back(step.integer());
    } else {
      steps.emplace_back(step.text());
    }
  }
  return FieldPath(std::move(steps));
}

}  // namespace

NodePtr make_map_field(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  FieldPath path = read_path(attributes);
  return std::make_shared<MapFieldNode>(
      std::move(inputs[0]), FieldFunction(std::move(path), read_field_kernel(attributes)));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::map(const data::FieldFunction& function) const {
  auto node = std::make_shared<data::MapFieldNode>(node_, function);
  if (const ElementSpec* spec = node_->known_spec()) node->spec_over(*spec);
  return Dataset(std::move(node));
}

}  // namespace cohort
