// SPDX-License-Identifier: Apache-2.0
// filter: the elements for which a predicate is true.
#include <c10/core/GradMode.h>

#include <limits>
#include <optional>

#include "cohort/core/random.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/graph/spec_inference.h"

namespace cohort::data {
namespace {

struct FilterAttributes {
  static constexpr std::string_view kOp = "filter";
  std::shared_ptr<const MapFunction> predicate = {};
  static void describe(auto&, auto&) {}
};

void check(const MapFunction::Result& result, const std::string& name) {
  COHORT_CHECK(result.fields.size() == 1 && result.structure.is_leaf() &&
                   result.fields[0].scalar_type() == at::kBool && result.fields[0].dim() == 0,
               ErrorCode::invalid_argument, "[data.filter] expected a scalar bool from '", name,
               "', got ", describe(specs_of(result.fields)));
}

class FilterNode final : public OpNode<FilterNode, FilterAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override { return kUnknownCardinality; }

  Attributes attributes() const override {
    Attributes all = map_function()->attributes(*this);
    // "spec" is the spec of the function's result, which for a predicate is a bool.
    if (all.contains("spec")) {
      all["spec"] = nest_of(ElementSpec::tuple({{at::kBool, std::vector<std::int64_t>{}}}));
    }
    return all;
  }
  Attributes identity() const override { return {{"name", map_function()->name()}}; }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  // Calls the predicate for an element of zeros and checks the result's type. If the predicate
  // throws, it may be because of the zeros, so the error is left to the run.
  void check_predicate() const {
    const ElementSpec* elements = input().known_spec();
    if (elements == nullptr) return;
    MapFunction::Result result;
    try {
      const c10::NoGradGuard no_grad;
      const CallScope scope(kRandomOfPreviews, 0);
      const std::optional<Fields> example = zeros_of(*elements);
      if (!example) return;
      result = map_function()->call(elements->structure, *example, 0);
    } catch (...) {
      return;
    }
    check(result, map_function()->name());
  }

  const MapFunction* map_function() const override { return given().predicate.get(); }
};

class FilterStage final : public InputStage<FilterAttributes> {
 public:
  // Ends after it rejected `passed_over_max` elements in a row.
  FilterStage(const FilterNode& node, const FilterAttributes& given, std::unique_ptr<Stage> input,
              const CallRandom& random, std::int64_t passed_over_max)
      : InputStage(node, given, std::move(input)),
        filter_(node),
        random_(random),
        passed_over_max_(passed_over_max) {}

  bool next(Fields& fields) override {
    for (std::int64_t passed_over = 0; passed_over < passed_over_max_; ++passed_over) {
      check_cancelled();
      const std::uint64_t index = next_index_++;
      if (!input().next(fields)) return false;
      if (keeps(fields, index)) return true;
    }
    return false;
  }

  void describe_position(Position& at) override {
    at(Fixed{random_.seed}, next_index_);
    InputStage::describe_position(at);
  }

 private:
  bool keeps(const Fields& fields, std::uint64_t index) {
    if (!structure_) structure_ = filter_.input().structure();
    try {
      const c10::NoGradGuard no_grad;
      const CallScope scope(random_, index);
      const MapFunction::Result result =
          filter_.map_function()->call(*structure_, fields, mix_seed(random_.seed, index));
      check(result, filter_.map_function()->name());
      return result.fields[0].item<bool>();
    } catch (...) {
      throw call_error("filtering element " + std::to_string(index) + " with '" +
                       filter_.map_function()->name() + "'");
    }
  }

  const FilterNode& filter_;
  CallRandom random_;
  std::int64_t passed_over_max_;
  std::uint64_t next_index_ = 0;
  std::optional<Nest> structure_;
};

std::unique_ptr<Stage> FilterNode::make_stage(const StageContext& context) const {
  // A preview of an infinite input must end even if the predicate rejects every element.
  constexpr std::int64_t kPreviewedMax = 10'000;
  const bool is_bounded = context.purpose() != Purpose::run && has_endless_input(*this);
  return std::make_unique<FilterStage>(
      *this, given(), input().start(context.input(0)), random_of(*map_function(), *this, context),
      is_bounded ? kPreviewedMax : std::numeric_limits<std::int64_t>::max());
}

}  // namespace

NodePtr make_filter(SerializedOp op) {
  return FilterNode::read(op, {read_map_function(op.attributes)});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::filter(Function predicate) const {
  const auto node = std::make_shared<data::FilterNode>(
      std::vector{node_}, data::FilterAttributes{data::local_function(std::move(predicate))});
  node->check_predicate();
  return Dataset(node);
}

}  // namespace cohort
