// SPDX-License-Identifier: Apache-2.0
// For tests only: groups of every backend, whose members are threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/collective/group.h"

namespace cohort::testing::every_group {

using Groups = std::vector<std::shared_ptr<collective::Group>>;

struct Backend {
  std::string name;
  std::function<Groups(int size)> make;
  friend void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }
};

const std::vector<Backend>& backends();
// If mpirun has started several processes, they are one group; else there is none.
const std::vector<Backend>& mpi_backends();

}  // namespace cohort::testing::every_group
