// SPDX-License-Identifier: Apache-2.0
// A variable of a strategy has a component in each replica; a local variable belongs to none.
#include <ATen/ops/ones.h>

#include "page_text.h"

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    const auto mirrored_variable = [&] {
      const auto scope = strategy.scope();
      return cohort::get_strategy().variable("Variable", at::ones({}));
    }();
    page::print("MirroredVariable:{");
    const std::vector<cohort::Variable> components = strategy.local_results(mirrored_variable);
    for (const std::size_t i : c10::irange(components.size())) {
      page::print("  " + std::to_string(i) + ": " + page::repr(components[i]) +
                  (i + 1 < components.size() ? "," : ""));
    }
    page::print("}");

    const auto regular_variable = cohort::local_variable("Variable", at::ones({}));
    page::print(page::repr(regular_variable));
    return 0;
  });
}
