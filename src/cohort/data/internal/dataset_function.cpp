// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/dataset_function.h"

#include "cohort/core/error.h"
#include "cohort/data/internal/examples.h"
#include "cohort/data/internal/map_function.h"

namespace cohort::data {

std::shared_ptr<const DatasetFunction> make_dataset_function(DatasetBody body, std::size_t arity) {
  COHORT_CHECK(arity > 0, ErrorCode::invalid_argument,
               "[data.flat_map] expected a function of the element, got one without parameters");
  return std::make_shared<DatasetFunction>(std::move(body), arity);
}

NodePtr DatasetFunction::call(const Nest& structure, const Fields& fields) const {
  const std::vector<Nest> arguments = arguments_of(structure, fields, arity_, "dataset function");
  return body_(arguments).node();
}

const Node& DatasetFunction::example(const Node& input) const {
  std::call_once(example_once_, [&] {
    const std::vector<Fields> examples = draw_examples(input, Purpose::preview, {});
    example_ = call(input.structure(), examples[0]);
  });
  return *example_;
}

}  // namespace cohort::data
