// SPDX-License-Identifier: Apache-2.0
// typed_map: a C++ function of numbers over scalar fields, a batch at a time.
#include <ATen/ops/empty.h>

#include "cohort/data/functions/call_scope.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/positions/numbered_stage.h"
#include "cohort/data/sharding/selection.h"

namespace cohort::data {
namespace {

struct TypedMapAttributes {
  static constexpr std::string_view kOp = "typed_map";
  std::shared_ptr<const TypedFunction> function = {};
  static void describe(auto&, auto&) {}
};

void check(const TypedFunction& function, const ElementSpec& spec) {
  COHORT_CHECK(function.inputs.size() == spec.fields.size(), ErrorCode::invalid_argument,
               "[data.map] expected a function of ", spec.fields.size(), " numbers for elements ",
               spec.to_string(), ", got one of ", function.inputs.size(), " parameters");
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    const TensorSpec wanted{function.inputs[i], std::vector<std::int64_t>{}};
    COHORT_CHECK(spec.fields[i] == wanted, ErrorCode::invalid_argument, "[data.map] expected ",
                 wanted.to_string(), " for parameter ", i, " of a function of numbers, got ",
                 spec.fields[i].to_string(),
                 "; take at::Tensor for other elements, or change the parameter's type");
  }
}

class TypedMapStage final : public NumberedStage {
 public:
  TypedMapStage(const Node& node, const TypedFunction& function, std::unique_ptr<Stage> input,
                const StageContext& context)
      : NumberedStage(node, std::move(input)),
        function_(function),
        selection_(context.selection()),
        random_(CallRandom::of(node, context)) {}

  bool next(Fields& fields) override {
    if (!input().next(fields)) return false;
    run(fields, std::nullopt);
    return true;
  }

  Stage* batch_source() override { return &input(); }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    const std::int64_t got = input().next_batch(count, batch);
    if (got > 0) run(batch, got);
    return got;
  }

 private:
  // On an element, or on a batch of so many.
  void run(Fields& fields, std::optional<std::int64_t> batch_size) {
    const std::int64_t count = batch_size.value_or(1);
    in_.clear();
    out_.clear();
    for (const at::Tensor& field : fields) in_.push_back(field.data_ptr());
    results_.clear();
    for (std::size_t i = 0; i < function_.outputs.size(); ++i) {
      // A column of the input's type takes its result: a batch is ours alone, while an element may
      // be a tensor that the function of a map before keeps.
      const bool is_free = batch_size && i < fields.size() &&
                           function_.inputs[i] == function_.outputs[i] &&
                           function_.outputs.size() == 1;
      results_.push_back(is_free      ? fields[i]
                         : batch_size ? at::empty({count}, function_.outputs[i])
                                      : at::empty({}, function_.outputs[i]));
      out_.push_back(results_.back().data_ptr());
    }
    const std::uint64_t first = take_numbers(count);
    std::int64_t at = 0;
    try {
      const CallScope scope(random_, first);
      function_.loop(in_.data(), out_.data(), count, &at);
    } catch (...) {
      throw call_error("mapping element " +
                       std::to_string(position_of(selection_.get(), first + at)));
    }
    std::swap(fields, results_);
  }

  const TypedFunction& function_;
  std::shared_ptr<const Selection> selection_;
  const CallRandom random_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  Fields results_;
};

class TypedMapNode final : public OpNode<TypedMapNode, TypedMapAttributes> {
 public:
  TypedMapNode(std::vector<NodePtr> inputs, TypedMapAttributes given)
      : OpNode(std::move(inputs), std::move(given)) {
    check(*this->given().function, input().spec());
  }

  Attributes attributes() const override {
    internal::throw_error(
        ErrorCode::unimplemented,
        "[data.serialize] expected map functions that can be traced, got a C++ function of "
        "numbers; take and return at::Tensor, or use Function::registered(name)");
  }
  Attributes identity() const override { return {{"spec", nest_of(spec())}}; }

  Nest structure() const override { return spec().structure; }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<TypedMapStage>(*this, *given().function,
                                           input().start(context.input(0)), context);
  }

  ElementSpec make_spec() const override {
    std::vector<TensorSpec> fields;
    for (const c10::ScalarType type : given().function->outputs) {
      fields.push_back({type, std::vector<std::int64_t>{}});
    }
    if (!given().function->returns_tuple || fields.size() > 1) return ElementSpec::tuple(fields);
    return {.structure = Nest::tuple({Nest(0)}), .fields = std::move(fields)};
  }
};

}  // namespace

NodePtr make_typed_map(SerializedOp) {
  internal::throw_error(ErrorCode::data_loss,
                        "[data.deserialize] expected ops that can be shipped, got a map function "
                        "of numbers");
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::map_typed(data::TypedFunction function) const {
  return data::TypedMapNode::over(
      node_, {std::make_shared<const data::TypedFunction>(std::move(function))});
}

}  // namespace cohort
