// SPDX-License-Identifier: Apache-2.0
// map: a function of each element.
#include <c10/core/GradMode.h>

#include <optional>

#include "cohort/core/once.h"
#include "cohort/core/random.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/parallel/parallel_calls.h"
#include "cohort/data/positions/numbered_stage.h"
#include "cohort/data/sharding/selection.h"

namespace cohort::data {
namespace {

// The sizes on which both agree.
ElementSpec common(const ElementSpec& a, const ElementSpec& b, const std::string& name) {
  Nest::check_same_structure(a.structure, b.structure, "the result of '" + name + "'");
  for (std::size_t i = 0; i < a.fields.size(); ++i) {
    COHORT_CHECK(a.fields[i].dtype == b.fields[i].dtype, ErrorCode::invalid_argument,
                 "[data.map] expected '", name, "' to return one dtype for every element, got ",
                 dtype_name(a.fields[i].dtype), " and ", dtype_name(b.fields[i].dtype));
  }
  return a.common_with(b);
}

enum class MapOrigin { here, wire };

struct MapAttributes {
  static constexpr std::string_view kOp = "map";
  std::shared_ptr<const MapFunction> function = {};
  MapOptions options = {};
  MapOrigin origin = MapOrigin::here;
  static void describe(auto& visit, auto& all) { describe_parallel(visit, all.options); }
};

class MapNode final : public ReorderingNode<MapNode, MapAttributes> {
 public:
  using ReorderingNode::ReorderingNode;

  Attributes attributes() const override {
    Attributes all = map_function()->attributes(*this);
    all.merge(ReorderingNode::attributes());
    return all;
  }
  Attributes identity() const override { return {{"name", map_function()->name()}}; }

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

  Nest structure() const override {
    if (std::optional<Nest> noted = structure_.get()) return *std::move(noted);
    try {
      return spec().structure;
    } catch (...) {
      // One element had a result before another one failed.
      if (std::optional<Nest> noted = structure_.get()) return *std::move(noted);
      throw;
    }
  }

  const MapFunction* map_function() const override { return given().function.get(); }
  bool has_given_spec() const override { return given().options.output_spec.has_value(); }

  void note_structure(const Nest& structure) const { structure_.offer(structure); }

 protected:
  ElementSpec make_spec() const override {
    if (given().options.output_spec) return *given().options.output_spec;
    try {
      return learned_spec();
    } catch (...) {
      throw current_error().during(
          "finding the element spec of " + map_function_named(map_function()->name()) +
          " with the first elements; where they may be bad, set MapOptions::output_spec");
    }
  }

 private:
  ElementSpec learned_spec() const {
    const c10::NoGradGuard no_grad;
    const CallScope scope(kRandomOfPreviews, 0);
    IterationOptions options;
    if (given().origin == MapOrigin::wire)
      options.data_dirs.emplace();  // a peer's graph opens nothing before it is run
    return spec_of_results(
        input(), options,
        [&](const Fields& element) {
          const MapFunction::Result result = map_function()->call(input().structure(), element, 0);
          note_structure(result.structure);
          return ElementSpec{.structure = result.structure, .fields = specs_of(result.fields)};
        },
        [&](const ElementSpec& a, const ElementSpec& b) {
          return common(a, b, map_function()->name());
        });
  }

  mutable SharedValue<std::optional<Nest>> structure_;
};

// The function as the stages of one iteration call it. Thread-safe.
class MapCalls {
 public:
  MapCalls(const MapNode& node, std::shared_ptr<const Selection> selection)
      : map_(node), selection_(std::move(selection)) {}

  // Maps the stage's element `number`.
  void operator()(Fields& fields, std::uint64_t number, const CallRandom& random) {
    const std::uint64_t index = position_of(selection_.get(), number);
    try {
      const c10::NoGradGuard no_grad;
      input_once_.call([this] { input_structure_ = map_.input().structure(); });
      const CallScope scope(random, index);
      MapFunction::Result result =
          map_.map_function()->call(input_structure_, fields, mix_seed(random.seed, index));
      check(result.structure);
      fields = std::move(result.fields);
    } catch (...) {
      throw call_error("mapping element " + std::to_string(index) + " with '" +
                       map_.map_function()->name() + "'");
    }
  }

 private:
  void check(const Nest& structure) {
    bool is_first = false;
    once_.call([&] {
      structure_ = structure;
      map_.note_structure(structure);
      is_first = true;
    });
    if (is_first) return;
    Nest::check_same_structure(structure_, structure,
                               "the result of '" + map_.map_function()->name() + "'");
  }

  const MapNode& map_;  // kept by the stage
  std::shared_ptr<const Selection> selection_;
  Once input_once_;
  Nest input_structure_;
  Once once_;
  Nest structure_;
};

class MapStage final : public NumberedStage {
 public:
  MapStage(const MapNode& node, std::unique_ptr<Stage> input, const StageContext& context)
      : NumberedStage(node, std::move(input)),
        calls_(node, context.selection()),
        random_(random_of(*node.map_function(), node, context)) {}

  bool next(Fields& fields) override {
    const std::uint64_t number = take_numbers();
    if (!input().next(fields)) return false;
    calls_(fields, number, random_);
    return true;
  }

  void describe_position(Position& at) override {
    at(Fixed{random_.seed});
    NumberedStage::describe_position(at);
  }

 private:
  MapCalls calls_;
  CallRandom random_;
};

std::unique_ptr<Stage> MapNode::make_stage(const StageContext& context) const {
  if (given().options.num_parallel_calls == 0 || context.purpose() != Purpose::run) {
    return std::make_unique<MapStage>(*this, input().start(context.input(0)), context);
  }
  const auto calls =
      std::make_shared<MapCalls>(*this, context.selection());  // std::function copies
  const CallRandom random = random_of(*map_function(), *this, context.ahead());
  return start_parallel_calls(
      *this, context,
      [calls, is_own = random.is_own](Fields& fields, std::uint64_t index, std::uint64_t seed) {
        (*calls)(fields, index, {.seed = seed, .is_own = is_own});
      },
      {.calls = given().options.num_parallel_calls,
       .is_deterministic = context.is_deterministic(given().options.deterministic),
       .seed = random.seed});
}

}  // namespace

NodePtr make_map(SerializedOp op) {
  MapAttributes given{.function = read_map_function(op.attributes), .origin = MapOrigin::wire};
  if (op.attributes.has("spec")) given.options.output_spec = op.attributes.spec("spec");
  return MapNode::read(op, std::move(given));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::map(Function fn, MapOptions options) const {
  return data::MapNode::over(node_, {data::local_function(std::move(fn)), std::move(options)});
}

}  // namespace cohort
