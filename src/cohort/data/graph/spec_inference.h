// SPDX-License-Identifier: Apache-2.0
// Example elements of a graph, on which functions are run to find their result specs.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// One or two elements that `node` yields, of equal specs. If none can be drawn but all ranks are
// known, two elements of zeros and of ones, where an unknown size is 1. Otherwise
// failed_precondition, naming the reason.
std::vector<Fields> draw_examples(const Node& node, Purpose purpose,
                                  const IterationOptions& options);
// An element of zeros and empty strings, where an unknown size is 1; nullopt if a rank is unknown.
std::optional<Fields> zeros_of(const ElementSpec& spec);
// Calls visit() for a few elements that `node` yields, until it returns true; returns whether it
// did. Throws what drawing an element or visit() throws.
bool any_example(const Node& node, const IterationOptions& options,
                 const std::function<bool(const Fields&)>& visit);
// The spec of what a function makes of elements of `node`: made_of() of examples, of which common()
// combines two. A size that the elements have not in common may be another one in the result.
ElementSpec spec_of_results(
    const Node& node, const IterationOptions& options,
    const std::function<ElementSpec(const Fields&)>& made_of,
    const std::function<ElementSpec(const ElementSpec&, const ElementSpec&)>& common);
// Whether all sizes of all fields are known.
bool is_static(const ElementSpec& spec);
// Whether the ranks of all fields are known.
bool has_ranks(const ElementSpec& spec);
// Three made-up elements of `spec`, which differ in unknown sizes and unknown ranks; the second one
// has other values. Empty if they would be large.
std::vector<Fields> made_up_elements(const ElementSpec& spec);
// Whether drawing elements of `node` runs no user code, opens no file and ends soon.
bool is_free_to_draw(const Node& node);
// Whether `node` or an op before it is infinite.
bool has_endless_input(const Node& node);
// An element of the same specs with other values.
Fields with_other_values(const Fields& element);
// A variant of `element` with other sizes where `spec` has unknown sizes.
Fields with_other_sizes(const Fields& element, const ElementSpec& spec);

std::vector<TensorSpec> specs_of(const Fields& fields);
// "(uint8[64, 28, 28], uint8[64])".
std::string describe(const std::vector<TensorSpec>& specs);

}  // namespace cohort::data
