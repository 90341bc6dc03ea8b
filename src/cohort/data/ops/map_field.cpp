// SPDX-License-Identifier: Apache-2.0
// map_field: a field function of each element.
#include "cohort/core/once.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/parallel/parallel_calls.h"
#include "cohort/data/positions/numbered_stage.h"
#include "cohort/data/sharding/selection.h"

namespace cohort::data {
namespace {

struct MapFieldAttributes {
  static constexpr std::string_view kOp = "map_field";
  FieldFunction function;
  MapOptions options = {};
  static void describe(auto& visit, auto& all) { describe_parallel(visit, all.options); }
};

class MapFieldNode final : public ReorderingNode<MapFieldNode, MapFieldAttributes> {
 public:
  MapFieldNode(std::vector<NodePtr> inputs, MapFieldAttributes given)
      : ReorderingNode(std::move(inputs), std::move(given)) {
    COHORT_CHECK(!this->given().options.output_spec, ErrorCode::invalid_argument,
                 "[data.map_field] expected no .output_spec, since a field function has one, got ",
                 this->given().options.output_spec->to_string());
  }

  Nest structure() const override { return input().structure(); }

  Attributes attributes() const override {
    Attributes all = function_.kernel()->attributes();
    Nest::Items path;
    for (const FieldPath::Step& step : function_.field().steps()) {
      path.push_back(std::visit([](const auto& value) { return Nest(value); }, step));
    }
    all.emplace("field", Nest::list(std::move(path)));
    all.emplace("function", std::string(function_.kernel()->name()));
    all.merge(ReorderingNode::attributes());
    return all;
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
  const FieldFunction& function_ = given().function;
  const std::string field_ = function_.field().to_string();
};

// The function as the stages of one run call it. Thread-safe.
class MapFieldCalls {
 public:
  MapFieldCalls(const MapFieldNode& node, std::shared_ptr<const FieldKernel> kernel,
                std::shared_ptr<const Selection> selection)
      : map_(node), kernel_(std::move(kernel)), selection_(std::move(selection)) {}

  bool is_element_wise() const { return kernel_->is_element_wise(); }

  // Maps the field in the stage's element `number`, or in a batch of `size` elements from there.
  void operator()(Fields& fields, std::uint64_t number, std::int64_t size = 1) {
    try {
      once_.call([&] {
        position_ = map_.index_in({.structure = map_.structure(), .fields = specs_of(fields)});
      });
      at::Tensor& field = fields.at(position_);
      field = kernel_->apply(field, map_.field());
    } catch (...) {
      const std::string which = size == 1 ? "" : std::to_string(size) + " elements from ";
      throw current_error().during("mapping " + map_.field() + " of " + which + "element " +
                                   std::to_string(position_of(selection_.get(), number)));
    }
  }

 private:
  const MapFieldNode& map_;                    // kept by the stage
  std::shared_ptr<const FieldKernel> kernel_;  // shared with the other runs
  std::shared_ptr<const Selection> selection_;
  Once once_;
  std::size_t position_ = 0;  // of the field, once there was an element
};

class MapFieldStage final : public NumberedStage {
 public:
  MapFieldStage(const MapFieldNode& node, std::unique_ptr<Stage> input,
                std::shared_ptr<MapFieldCalls> calls)
      : NumberedStage(node, std::move(input)), calls_(std::move(calls)) {}

  bool next(Fields& fields) override {
    const std::uint64_t number = take_numbers();
    if (!input().next(fields)) return false;
    (*calls_)(fields, number);
    return true;
  }

  // The whole batch at once. An error costs the batch, which is what its batch() wants of a map.
  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (stops_at_errors() || !calls_->is_element_wise()) return Stage::next_batch(count, batch);
    const std::uint64_t first = take_numbers(count);
    const std::int64_t size = input().next_batch(count, batch);
    if (size > 0) (*calls_)(batch, first, size);
    return size;
  }

 private:
  std::shared_ptr<MapFieldCalls> calls_;  // std::function copies those of a parallel stage
};

std::unique_ptr<Stage> MapFieldNode::make_stage(const StageContext& context) const {
  auto calls = std::make_shared<MapFieldCalls>(*this, function_.kernel()->opened(context),
                                               context.selection());
  if (given().options.num_parallel_calls == 0 || context.purpose() != Purpose::run) {
    return std::make_unique<MapFieldStage>(*this, input().start(context.input(0)),
                                           std::move(calls));
  }
  return start_parallel_calls(
      *this, context,
      [calls](Fields& fields, std::uint64_t index, std::uint64_t) { (*calls)(fields, index); },
      {.calls = given().options.num_parallel_calls,
       .is_deterministic = context.is_deterministic(given().options.deterministic),
       .seed = context.random_seed()});
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

NodePtr make_map_field(SerializedOp op) {
  FieldPath path = read_path(op.attributes);
  return MapFieldNode::read(op, {FieldFunction(std::move(path), read_field_kernel(op.attributes))});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::map(const data::FieldFunction& function, MapOptions options) const {
  auto node = std::make_shared<data::MapFieldNode>(
      std::vector{node_}, data::MapFieldAttributes{function, std::move(options)});
  if (const ElementSpec* spec = node_->known_spec()) node->spec_over(*spec);
  return Dataset(std::move(node));
}

}  // namespace cohort
