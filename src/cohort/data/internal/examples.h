// SPDX-License-Identifier: Apache-2.0
// A few elements of a graph, for learning what a function does with them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cohort/data/internal/node.h"

namespace cohort::data {

// One or two elements that `node` really yields, of equal specs; of zeros and ones where none can
// be drawn and the spec is static. failed_precondition naming the reason where neither is possible.
std::vector<Fields> draw_examples(const Node& node, Purpose purpose, const RunOptions& options);
// An element of zeros and empty strings, of size 1 where a size is not known; nullopt where a rank
// is not.
std::optional<Fields> zeros_of(const ElementSpec& spec);
// Shows `visit` a few elements that `node` really yields, until it returns true; returns whether it
// did. Throws what they throw.
bool any_example(const Node& node, const RunOptions& options,
                 const std::function<bool(const Fields&)>& visit);
bool has_ranks(const ElementSpec& spec);
// Three elements of `spec` made up: of other values, of other sizes where one is not known, of
// other ranks where a rank is not. None where they would be large.
std::vector<Fields> made_up_elements(const ElementSpec& spec);
// Whether drawing elements of `node` runs nothing of the user's, opens no file and ends soon.
bool is_free_to_draw(const Node& node);
// Whether an op before `node` has no end.
bool has_endless_input(const Node& node);
// The same specs, other values.
Fields with_other_values(const Fields& element);
// Another element of `spec`: where a size is not known, another size.
Fields with_other_sizes(const Fields& element, const ElementSpec& spec);

std::vector<TensorSpec> specs_of(const Fields& fields);
// "(uint8[64, 28, 28], uint8[64])".
std::string describe(const std::vector<TensorSpec>& specs);

}  // namespace cohort::data
