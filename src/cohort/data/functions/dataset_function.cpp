// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/functions/dataset_function.h"

#include <functional>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/thread_value.h"
#include "cohort/data/functions/call_scope.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/graph_template.h"
#include "cohort/data/graph/spec_inference.h"

namespace cohort::data {
namespace {

// The value of a scalar whose dtype `fits`; `expected` describes it in the error.
template <class Fits>
c10::Scalar scalar_in(const Nest& argument, const char* expected, Fits fits) {
  const bool is_scalar = argument.is_tensor() && argument.tensor().defined() &&
                         !StringTensor::is(argument.tensor()) && argument.tensor().dim() == 0;
  COHORT_CHECK(
      is_scalar && fits(argument.tensor().scalar_type()), ErrorCode::invalid_argument,
      "[data.flat_map] expected ", expected, " for a parameter of the function, got ",
      argument.is_tensor() ? TensorSpec::of(argument.tensor()).to_string() : argument.structure(),
      "; give the parameter the type of the element's field");
  return argument.tensor().item();
}

// Whether this thread is in a call of a dataset function. Its inner dataset functions are not
// checked, since they are built again for each element.
thread_local bool is_in_call = false;

}  // namespace

std::int64_t integer_in(const Nest& scalar) {
  return scalar_in(scalar, "an integer scalar",
                   [](at::ScalarType dtype) { return c10::isIntegralType(dtype, false); })
      .toLong();
}

double real_in(const Nest& scalar) {
  return scalar_in(scalar, "a floating-point scalar",
                   [](at::ScalarType dtype) { return c10::isFloatingType(dtype); })
      .toDouble();
}

bool boolean_in(const Nest& scalar) {
  return scalar_in(scalar, "a bool scalar",
                   [](at::ScalarType dtype) { return dtype == at::ScalarType::Bool; })
      .toBool();
}

std::shared_ptr<const DatasetFunction> make_dataset_function(DatasetBody body, std::size_t arity) {
  COHORT_CHECK(arity > 0, ErrorCode::invalid_argument,
               "[data.flat_map] expected a function of the element, got one without parameters");
  return std::make_shared<DatasetFunction>(std::move(body), arity);
}

NodePtr DatasetFunction::call(const Nest& structure, const Fields& fields) const {
  const std::vector<Nest> arguments = arguments_of(structure, fields, arity_, "dataset function");
  const internal::ScopedValue<bool> in_call(is_in_call, true);
  NodePtr node = body_(arguments).node();
  COHORT_CHECK(
      node != nullptr, ErrorCode::invalid_argument,
      "[data.dataset_function] expected the function to return a dataset, got one that was "
      "moved from or never made; return a Dataset");
  return node;
}

IterationOptions DatasetFunction::preview_options() const {
  IterationOptions options;
  if (origin_ == Origin::wire) options.data_dirs.emplace();  // a peer's graph opens no file
  return options;
}

void DatasetFunction::check(const Node& input, std::string_view op) const {
  if (is_in_call || !is_free_to_draw(input)) return;
  const CallScope scope(kRandomOfPreviews, 0);
  const Nest structure = input.structure();
  std::optional<Error> refusal;
  bool is_for_the_run = false;  // a call succeeded, or failed with another code
  try {
    is_for_the_run = any_example(input, preview_options(), [&](const Fields& element) {
      try {
        call(structure, element);
        return true;
      } catch (...) {
        refusal = current_error();
        return refusal->code() != ErrorCode::invalid_argument;
      }
    });
  } catch (const Error&) {
    return;  // drawing an element failed
  }
  if (!is_for_the_run && refusal) {
    throw std::move(*refusal).during("trying the function of " + std::string(op));
  }
}

ElementSpec DatasetFunction::element_spec(const Node& input) const {
  const CallScope scope(kRandomOfPreviews, 0);
  const ElementSpec& elements = input.spec();
  // Uses real elements if all ranks are known: a function may look its element up in a table, which
  // has no entry for a made-up one.
  if (has_ranks(elements)) return spec_of_examples(input);
  if (auto spec = spec_of_made_up(input.structure(), elements)) return *spec;
  ElementSpec spec = spec_of_examples(input);
  for (TensorSpec& field : spec.fields) field.sizes.reset();  // not tried with another rank
  return spec;
}

std::optional<ElementSpec> DatasetFunction::spec_of_made_up(const Nest& structure,
                                                            const ElementSpec& input) const {
  std::optional<ElementSpec> spec;
  int made = 0;
  for (const Fields& element : made_up_elements(input)) {
    try {
      const ElementSpec found = call(structure, element)->spec();
      spec = spec ? spec->common_with(found) : found;
      ++made;
    } catch (...) {
      // The function does not accept these values or this rank.
    }
  }
  constexpr int kNeeded = 2;  // a function of any rank may refuse scalars
  return made >= kNeeded ? spec : std::nullopt;
}

ElementSpec DatasetFunction::spec_of_examples(const Node& input) const {
  return spec_of_results(
      input, preview_options(),
      [&](const Fields& element) { return call(input.structure(), element)->spec(); },
      std::mem_fn(&ElementSpec::common_with));
}

const Node& DatasetFunction::example(const Node& input) const {
  example_once_.call([&] {
    const CallScope scope(kRandomOfPreviews, 0);
    const std::vector<Fields> examples = draw_examples(input, Purpose::preview, preview_options());
    example_ = call(input.structure(), examples[0]);
  });
  return *example_;
}

Attributes DatasetFunction::attributes(const Node& input, std::string_view op) const {
  try {
    return {{"function", GraphTemplate::of(*this, input).to_nest()}};
  } catch (...) {
    throw current_error().during("shipping the function of " + std::string(op));
  }
}

namespace {

// Makes its graphs from a deserialized template.
class ShippedFunction final : public DatasetFunction {
 public:
  explicit ShippedFunction(std::shared_ptr<const GraphTemplate> graph)
      : DatasetFunction(
            [graph](std::span<const Nest> element) {
              return Dataset(graph->graph_of(element[0].flatten_tensors()));
            },
            1, Origin::wire),
        graph_(std::move(graph)) {}

  Attributes attributes(const Node&, std::string_view) const override {
    return {{"function", graph_->to_nest()}};
  }

 private:
  std::shared_ptr<const GraphTemplate> graph_;  // shared with the body
};

}  // namespace

std::shared_ptr<const DatasetFunction> read_dataset_function(AttributeReader& attributes) {
  return std::make_shared<ShippedFunction>(std::make_shared<const GraphTemplate>(
      GraphTemplate::read(attributes.nest("function"), source_in(attributes))));
}

}  // namespace cohort::data
