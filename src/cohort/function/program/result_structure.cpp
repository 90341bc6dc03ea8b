// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/result_structure.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/call_signature.h"

namespace cohort::function {
namespace {

Nest filled_part(const Nest& part, const std::vector<at::Tensor>& tensors) {
  if (part.is_leaf()) return part;
  if (part.kind() == Nest::Kind::map) {
    const auto number = part.entries().find("");
    if (number != part.entries().end() && part.entries().size() == 1) {
      return tensors.at(static_cast<std::size_t>(number->second.integer()));
    }
    Nest::Map entries;
    for (const auto& [key, value] : part.entries())
      entries.emplace(key, filled_part(value, tensors));
    return Nest::map(std::move(entries));
  }
  Nest::Items items;
  for (const Nest& item : part.items()) items.push_back(filled_part(item, tensors));
  return part.kind() == Nest::Kind::list ? Nest::list(std::move(items))
                                         : Nest::tuple(std::move(items));
}

}  // namespace

ResultStructure::ResultStructure(const Nest& result, std::vector<at::Tensor>& tensors) {
  structure_ = result.map_leaves([&](const Nest& leaf) -> Nest {
    if (!leaf.is_tensor()) return leaf;
    tensors.push_back(leaf.tensor());
    return Nest::map({{"", static_cast<std::int64_t>(tensor_count_++)}});
  });
}

Nest ResultStructure::filled(const std::vector<at::Tensor>& tensors) const {
  return filled_part(structure_, tensors);
}

void ResultStructure::check_same(const ResultStructure& actual, const std::string& name,
                                 const std::string& when) const {
  Nest::check_same_structure(structure_, actual.structure_, "the result of '" + name + "' " + when);
  const std::vector<Nest> before = structure_.flatten();
  const std::vector<Nest> now = actual.structure_.flatten();
  for (std::size_t i = 0; i < before.size(); ++i) {
    COHORT_CHECK(is_same_leaf(before[i], now[i]), ErrorCode::invalid_argument, "[function.trace] '",
                 name, "' returned another number or text as part ", i, " of its result ", when,
                 ": it depends on tensors, their sizes or state of the host, and every call would "
                 "return the value of the first trace; return a tensor, for example "
                 "torch::scalar_tensor(x.size(0), torch::kLong)");
  }
}

}  // namespace cohort::function
